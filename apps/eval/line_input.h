#pragma once
#include <cstdint>
#include <string>

namespace megalith::apps {

/// Lines of standard input for a program that must not wait long for the next one.
class LineInput {
 public:
  enum class Found : std::uint8_t { nothing, line, end };
  /// Waits at most `seconds`. Of `line` writes the next one, without its end. Throws IoError if the system cannot read,
  /// InputError for a line of over 16 MiB.
  Found next(double seconds, std::string& line);
  /// Whether a person types the lines.
  static bool is_typed();

 private:
  bool take(std::string& line);

  std::string held_;
  bool has_ended_ = false;
};

}  // namespace megalith::apps
