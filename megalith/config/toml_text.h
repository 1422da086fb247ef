#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <toml++/toml.h>

namespace megalith::config {

inline constexpr int kMaxTomlDepth = 64;  ///< tables and arrays in one another

/// Where the first level deeper than kMaxTomlDepth begins, in bytes: levels are the parts of a [table]'s name, dots in
/// keys, arrays and inline tables. Of a text that is not TOML only what comes before its first mistake is looked at
/// rightly, which is all that a parser builds.
std::optional<std::size_t> toml_too_deep(std::string_view text);

/// A text that is not TOML, or too deep. Both places count from 1.
struct TomlError {
  std::size_t line, column;
  std::string rule;
};

/// A key, or a [section], that a text has twice, and its lines, counted from 1.
struct RepeatedKey {
  std::string name;  ///< "train.steps", "[train]"
  std::size_t first_line, second_line;
};
/// In the order of the text. Looks at names as they are written, without spaces; not into inline tables.
std::vector<RepeatedKey> repeated_keys(std::string_view text);

/// The table of a text. Throws TomlError.
toml::table read_toml(std::string_view text);

}  // namespace megalith::config
