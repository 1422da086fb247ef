#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace megalith::io {

/// One member of a JSON object; nested objects and arrays are `other` and what they hold is skipped.
struct JsonMember {
  enum class Kind { text, count, null, other };
  const std::string& key;
  Kind kind = Kind::other;
  std::string* text = nullptr;  ///< of text: may be moved from
  std::uint64_t count = 0;      ///< of count: a number without sign, point or exponent
  std::size_t line = 1;
};

/// Visits the members of the one object that `json` holds, in order, without building it in memory, within the bounds
/// of visit_json(). Throws InputError "[SOURCE] line N, ..." where `json` is not valid JSON or not an object; lines
/// count from `first_line`.
void visit_json_object(std::string_view json, std::string_view source, std::size_t first_line,
                       const std::function<void(JsonMember&)>& visit);

}  // namespace megalith::io
