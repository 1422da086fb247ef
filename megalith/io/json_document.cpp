#include "megalith/io/json_document.h"

#include <algorithm>
#include <span>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/checksum.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::io {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "{\n \"checksum\": \"";  ///< what every sealed document starts with
constexpr std::size_t kDigits = 32;
constexpr std::uint64_t kMaxBytes = std::uint64_t{256} << 20;

/// The checksum of the whole text with zeros in the place of the checksum's digits.
std::string checksum_digits(std::string text) {
  text.replace(kPrefix.size(), kDigits, kDigits, '0');
  return checksum(std::as_bytes(std::span(text))).hex();
}

bool has_prefix(std::string_view text) { return text.starts_with(kPrefix) && text.size() >= kPrefix.size() + kDigits; }

bool is_sealed(std::string_view text) {
  return has_prefix(text) && checksum_digits(std::string(text)) == text.substr(kPrefix.size(), kDigits);
}

/// Whether the seal is right once the number after it is replaced by a version up to `known`.
bool is_sealed_as_known(std::string_view text, int known) {
  constexpr std::string_view kVersion = "\",\n \"version\": ";
  constexpr std::size_t kAt = kPrefix.size() + kDigits;
  if (!has_prefix(text) || !text.substr(kAt).starts_with(kVersion)) return false;
  const std::size_t number = kAt + kVersion.size();
  const std::size_t end = std::min(text.find_first_not_of("0123456789", number), text.size());
  for (int version = 1; version <= known; ++version) {
    if (is_sealed(str(text.substr(0, number), version, text.substr(end)))) return true;
  }
  return false;
}

}  // namespace

std::string seal_json(const nlohmann::ordered_json& members) {
  nlohmann::ordered_json root = {{"checksum", std::string(kDigits, '0')}};
  root.update(members);
  std::string text;
  try {
    text = root.dump(1) + "\n";
  } catch (const json::exception& error) {
    throw InternalError(str("[json] names and texts must be UTF-8: ", error.what()));
  }
  return text.replace(kPrefix.size(), kDigits, checksum_digits(text));
}

json parse_sealed_json(std::string_view text, const JsonFormat& format) {
  if (text.size() > kMaxBytes)
    throw InputError(str("[", format.source, "] has ", text.size(), " bytes: more than ", kMaxBytes));
  if (!has_prefix(text)) {
    throw InputError(str("[", format.source, "] is not a ", format.what, ": it must start with its checksum"));
  }
  const std::string computed = checksum_digits(std::string(text));
  const std::string_view stored = text.substr(kPrefix.size(), kDigits);
  if (computed != stored) {
    throw InputError(str("[", format.source, "] checksum = ", printable(stored), ": the bytes give ", computed,
                         ": the file is damaged or was edited"));
  }
  return read_json(text, {.name = format.source});
}

std::optional<std::int64_t> later_version(std::string_view text, const JsonFormat& format) {
  if (text.size() > kMaxBytes) return std::nullopt;
  json tree;
  try {
    tree = read_json(text, {.name = format.source});
  } catch (const InputError&) {
    return std::nullopt;
  }
  const auto found = tree.is_object() ? tree.find("version") : tree.end();
  if (found == tree.end() || !found->is_number_unsigned()) return std::nullopt;
  const auto version = found->get<std::uint64_t>();
  if (version > INT64_MAX || static_cast<std::int64_t>(version) <= format.version) return std::nullopt;
  if (is_sealed_as_known(text, format.version)) return std::nullopt;
  return static_cast<std::int64_t>(version);
}

JsonField JsonField::at(const char* key) const {
  expect_object();
  const auto found = value_.find(key);
  if (found == value_.end()) fail(str("has no key \"", key, '"'));
  return {*found, format_, member_path(key)};
}

void JsonField::expect_keys(std::initializer_list<std::string_view> keys) const {
  expect_object();
  for (const auto& [key, ignored] : value_.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail(str("has a key \"", printable(key), "\" that version ", format_.version, " does not have"));
    }
  }
}

std::int64_t JsonField::integer() const {
  if (!value_.is_number_integer()) fail("must be an integer");
  if (value_.is_number_unsigned() && value_.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    fail("is too large");
  }
  return value_.get<std::int64_t>();
}

std::string JsonField::text() const {
  if (!value_.is_string()) fail("must be a text");
  return value_.get<std::string>();
}

bool JsonField::boolean() const {
  if (!value_.is_boolean()) fail("must be true or false");
  return value_.get<bool>();
}

void JsonField::fail(std::string_view rule) const {
  throw InputError(str("[", format_.source, "] ", path_.empty() ? format_.what : path_, ": ", rule));
}

void JsonField::expect_object() const {
  if (!value_.is_object()) fail("must be an object");
}

std::string JsonField::member_path(std::string_view key) const {
  const std::string name = printable(key);
  return path_.empty() ? name : path_ + "." + name;
}

}  // namespace megalith::io
