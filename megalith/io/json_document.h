#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace megalith::io {

/// Which kind of document a text is: for error messages.
struct JsonFormat {
  std::string_view source;  ///< file name
  std::string_view what;    ///< "manifest"
  int version = 1;          ///< that this program reads
};

/// The text of a document that carries its own checksum: `members` after a member "checksum" at a fixed place. Equal
/// members give equal bytes. Throws InternalError when a text in them is not UTF-8.
std::string seal_json(const nlohmann::ordered_json& members);

/// The tree of such a text, read by read_json(). Throws InputError also when it has no checksum or another one than its
/// bytes give, or is longer than 256 MiB.
nlohmann::json parse_sealed_json(std::string_view text, const JsonFormat& format);

/// The member "version" of a text that parse_sealed_json() refuses, where it is above format.version: a later version
/// may store the checksum otherwise. Nothing if the text is no JSON object with such a number. Also nothing if the
/// checksum is right for a known version in that place: then the number is what was damaged.
std::optional<std::int64_t> later_version(std::string_view text, const JsonFormat& format);

/// A JSON value that knows where it is, so that every error (InputError) names it: "tensors[3].shape". What it is made
/// of must outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, const JsonFormat& format, std::string path = {})
      : value_(value), format_(format), path_(std::move(path)) {}

  JsonField at(const char* key) const;
  /// Refuses a member whose key is none of these.
  void expect_keys(std::initializer_list<std::string_view> keys) const;
  std::int64_t integer() const;
  std::string text() const;
  bool boolean() const;

  /// Calls f(JsonField) for each element.
  template <class F>
  void each(F&& f) const {
    if (!value_.is_array()) fail("must be an array");
    for (std::size_t i = 0; i < value_.size(); ++i)
      f(JsonField(value_[i], format_, path_ + "[" + std::to_string(i) + "]"));
  }
  /// Calls f(key, JsonField) for each member.
  template <class F>
  void each_member(F&& f) const {
    expect_object();
    for (const auto& [key, member] : value_.items()) f(key, JsonField(member, format_, member_path(key)));
  }
  [[noreturn]] void fail(std::string_view rule) const;

 private:
  void expect_object() const;
  std::string member_path(std::string_view key) const;

  const nlohmann::json& value_;
  const JsonFormat& format_;
  std::string path_;
};

}  // namespace megalith::io
