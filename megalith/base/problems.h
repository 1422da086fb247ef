#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/base/str.h"
#include "megalith/base/types.h"

namespace megalith {

/// Collects every broken rule of a configuration, so that a user sees all of them at once.
class Problems {
 public:
  /// "key = value: rule"
  template <class Value>
  void add(std::string_view key, const Value& value, std::string_view rule) {
    lines_.push_back(str(key, " = ", value, ": ", rule));
  }
  void add_line(std::string line) { lines_.push_back(std::move(line)); }

  template <class Value>
  void require(bool holds, std::string_view key, const Value& value, std::string_view rule) {
    if (!holds) add(key, value, rule);
  }
  /// True when every value is at least 1; reports those that are not.
  bool positive(std::initializer_list<std::pair<std::string_view, Index>> values);

  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }
  /// Throws ConfigError("SOURCE: N problems\n  ...") unless empty.
  void throw_if_any(std::string_view source) const;

 private:
  std::vector<std::string> lines_;
};

}  // namespace megalith
