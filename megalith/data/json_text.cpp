#include "megalith/data/json_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "megalith/base/str.h"
#include "megalith/data/key_hint.h"
#include "megalith/io/json_object.h"
#include "megalith/io/json_reader.h"

namespace megalith::data {

namespace {

/// Whether an object in the value has a key twice, or so many keys that the slower reader must check.
bool may_repeat_keys(simdjson::dom::element value) {
  constexpr std::size_t kMaxCompared = 32;
  if (simdjson::dom::array array; value.get_array().get(array) == simdjson::SUCCESS)
    return std::any_of(array.begin(), array.end(), may_repeat_keys);
  simdjson::dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return false;
  std::array<std::string_view, kMaxCompared> keys;
  std::size_t count = 0;
  for (const auto& [key, member] : object) {
    if (count == kMaxCompared || std::find(keys.begin(), keys.begin() + count, key) != keys.begin() + count)
      return true;
    keys[count++] = key;
    if (may_repeat_keys(member)) return true;
  }
  return false;
}

}  // namespace

BadDocument reason_of(io::JsonProblem problem) {
  switch (problem) {
    case io::JsonProblem::cut:
      return BadDocument::cut;
    case io::JsonProblem::not_utf8:
      return BadDocument::not_utf8;
    case io::JsonProblem::lone_surrogate:
      return BadDocument::lone_surrogate;
    case io::JsonProblem::control_character:
      return BadDocument::control_character;
    case io::JsonProblem::zero_byte:
      return BadDocument::zero_byte;
    case io::JsonProblem::too_deep:
      return BadDocument::too_deep;
    case io::JsonProblem::key_twice:
      return BadDocument::key_twice;
    case io::JsonProblem::syntax:
      break;
  }
  return BadDocument::not_json;
}

struct JsonText::Parser {
  simdjson::dom::parser dom;
  std::string padded;  // a copy of a line without padding after it
};

std::string_view name_of(BadDocument reason) {
  constexpr std::array<std::string_view, kNumBadDocuments> kNames = {"not JSON",
                                                                     "JSON that is cut",
                                                                     "half of a surrogate pair",
                                                                     "control character not escaped",
                                                                     "zero byte",
                                                                     "nested too deep",
                                                                     "array, not an object",
                                                                     "no object",
                                                                     "key missing",
                                                                     "key twice",
                                                                     "text null",
                                                                     "text no string",
                                                                     "not UTF-8",
                                                                     "too long"};
  return kNames[static_cast<std::size_t>(reason)];
}

JsonText::JsonText(std::string key, std::string other_key, std::string fix)
    : key_(std::move(key)),
      other_key_(std::move(other_key)),
      fix_(fix.empty() ? std::string(kKeySetting) : std::move(fix)),
      parser_(std::make_unique<Parser>()) {}
JsonText::~JsonText() = default;
JsonText::JsonText(JsonText&&) noexcept = default;
JsonText& JsonText::operator=(JsonText&&) noexcept = default;

std::string_view JsonText::read(std::string_view line, const JsonLine& place) {
  const char* const end = line.data() + line.size();
  const bool has_padding = place.readable.data() != nullptr && place.readable.data() <= line.data() &&
                           end + simdjson::SIMDJSON_PADDING <= place.readable.data() + place.readable.size();
  if (!has_padding) {
    std::string& padded = parser_->padded;
    padded.reserve(line.size() + simdjson::SIMDJSON_PADDING);
    padded.assign(line);
    padded.append(simdjson::SIMDJSON_PADDING, ' ');
  }
  simdjson::dom::parser& dom = parser_->dom;
  const char* const data = has_padding ? line.data() : parser_->padded.data();
  if (dom.capacity() < line.size() && dom.allocate(2 * line.size(), io::kMaxJsonDepth) != simdjson::SUCCESS)
    throw std::bad_alloc();
  simdjson::dom::element value;
  simdjson::dom::object object;
  if (dom.parse(data, line.size(), false).get(value) != simdjson::SUCCESS ||
      value.get_object().get(object) != simdjson::SUCCESS || may_repeat_keys(value))
    return read_slowly(line, place);
  std::string_view text;
  bool found = false;
  std::size_t member = 0;
  other_.reset();
  for (const auto& [key, one] : object) {
    if (key == key_) {
      if (one.get_string().get(text) != simdjson::SUCCESS) return read_slowly(line, place);
      found = true;
      members_before_ = member;
    } else if (!other_key_.empty() && key == other_key_ && !other_) {
      if (std::string_view other; one.get_string().get(other) == simdjson::SUCCESS) other_ = other;
    }
    ++member;
  }
  return found ? text : read_slowly(line, place);
}

std::string_view JsonText::read_slowly(std::string_view line, const JsonLine& place) {
  constexpr std::size_t kMaxNames = 100;  // members in the error
  bool found = false;
  std::size_t member = 0;
  std::vector<std::string> names;
  other_.reset();
  const auto fail = [&](BadDocument reason, std::string_view rule) {
    throw DocumentError(reason, str("[", place.file, "] line ", place.number, ", key \"", key_, "\": ", rule));
  };
  try {
    io::visit_json_object(line, place.file, place.number, [&](io::JsonMember& one) {
      const std::size_t number = member++;
      const bool is_text = one.kind == io::JsonMember::Kind::text;
      if (!other_key_.empty() && one.key == other_key_ && one.key != key_ && is_text && !other_) other_ = *one.text;
      if (one.key != key_) {
        if (names.size() < kMaxNames) names.push_back(one.key);
        return;
      }
      if (one.kind == io::JsonMember::Kind::null) fail(BadDocument::null, "is null: must be a string");
      if (!is_text) fail(BadDocument::no_string, "must be a string");
      text_ = std::move(*one.text);
      found = true;
      members_before_ = number;
    });
  } catch (const DocumentError&) {
    throw;
  } catch (const io::JsonError& error) {
    throw DocumentError(reason_of(error.problem()), error.what());
  } catch (const InputError& error) {  // valid JSON, but no object
    const bool is_array = line.find('[') == line.find_first_not_of(" \t\r");
    throw DocumentError(is_array ? BadDocument::array : BadDocument::no_object, error.what());
  }
  if (!found) fail(BadDocument::key_missing, str("is missing", instead_of(key_, {names.begin(), names.end()}, fix_)));
  return text_;
}

namespace {

/// The place after the JSON string that begins at `at`. The JSON must be valid.
std::size_t string_end(std::string_view json, std::size_t at) {
  for (++at; json[at] != '"'; ++at)
    if (json[at] == '\\') ++at;
  return at + 1;
}

/// The place after the JSON value that begins at `at`: of the ',' or bracket that follows. The JSON must be valid.
std::size_t value_end(std::string_view json, std::size_t at) {
  for (int depth = 0; at < json.size();) {
    const char c = json[at];
    if (c == '"') {
      at = string_end(json, at);
      if (depth == 0) return at;
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') {
      if (depth == 0) return at;
      if (--depth == 0) return at + 1;
    }
    if (c == ',' && depth == 0) return at;
    ++at;
  }
  return at;
}

}  // namespace

void append_with_member(std::string& out, std::string_view line, std::size_t member, std::string_view value) {
  std::size_t at = line.find('{') + 1;
  for (;; --member) {
    at = line.find(':', string_end(line, line.find('"', at)));
    at = line.find_first_not_of(" \t\r\n", at + 1);
    if (member == 0) break;
    at = line.find(',', value_end(line, at)) + 1;
  }
  out += line.substr(0, at);
  append_json_string(out, value);
  out += line.substr(value_end(line, at));
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;  // where the bytes begin that are not yet copied
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    out += '\\';
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    if (const std::size_t at = kShort.find(static_cast<char>(c)); at != std::string_view::npos) {
      out += kLetters[at];
    } else {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "u%04x", static_cast<unsigned>(c));
      out += code.data();
    }
  }
  out.append(text, plain, text.size() - plain);
  out += '"';
}

}  // namespace megalith::data
