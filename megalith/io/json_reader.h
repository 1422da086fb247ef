#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "megalith/base/error.h"

namespace megalith::io {

// Every JSON text of the program is read here, with the same bounds. Both functions throw JsonError
// "[SOURCE] line 3, column 17, ..." for what is not JSON (RFC 8259), for anything after the one value (a zero byte,
// too), for a key that comes twice in an object, and for nesting deeper than kMaxJsonDepth.

inline constexpr int kMaxJsonDepth = 64;  ///< arrays and objects in one another

/// Why a text cannot be read.
enum class JsonProblem { syntax, cut, not_utf8, lone_surrogate, control_character, zero_byte, too_deep, key_twice };

class JsonError : public InputError {
 public:
  JsonError(JsonProblem problem, const std::string& text) : InputError(text), problem_(problem) {}
  JsonProblem problem() const { return problem_; }

 private:
  JsonProblem problem_;
};

/// What a text is, for errors.
struct JsonSource {
  std::string_view name;       ///< of the file
  std::size_t first_line = 1;  ///< of the text in its file
  std::string_view part = {};  ///< of the file, where the text is not all of it: "header"
};

/// Where a reader stands: the byte that it read last. Both count from 1.
struct JsonPlace {
  std::size_t line = 1, column = 0;
};
/// "line 1, column 2"; column 1 where nothing has been read.
std::string text_of(const JsonPlace& place);

/// What a text holds, one call after another, in its order. Texts may be moved from.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual void start_object() = 0;
  virtual void end_object() = 0;
  virtual void start_array() = 0;
  virtual void end_array() = 0;
  virtual void key(std::string& name) = 0;
  virtual void text(std::string& value) = 0;
  /// A number without sign, point or exponent, below 2^64.
  virtual void count(std::uint64_t value) = 0;
  /// Any other number, true, false, null: as a message shows it ("-1", "0.5", "true").
  virtual void other(std::string_view shown) = 0;

  JsonPlace place;  ///< kept by visit_json()
};

/// Calls `visitor` while it reads. Builds nothing but the keys of the objects that are open; nesting costs no stack.
void visit_json(std::string_view text, const JsonSource& source, JsonVisitor& visitor);

/// The text as a tree.
nlohmann::json read_json(std::string_view text, const JsonSource& source);

}  // namespace megalith::io
