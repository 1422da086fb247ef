// The text form of the manifest: the one file of this folder that knows its JSON.
#include <algorithm>
#include <charconv>
#include <set>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/manifest.h"
#include "megalith/io/reader.h"

namespace megalith::checkpoint {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kPrefix = "{\n \"checksum\": \"";  ///< what every manifest starts with
constexpr std::size_t kDigits = 32;
constexpr std::uint64_t kMaxBytes = std::uint64_t{256} << 20;
constexpr int kMaxDepth = 8;

/// Of the whole text with zeros in the place of the checksum's digits.
std::string checksum_digits(std::string text) {
  text.replace(kPrefix.size(), kDigits, kDigits, '0');
  return io::checksum(std::as_bytes(std::span(text))).hex();
}

ordered_json sizes(const Shape& shape) {
  ordered_json list = ordered_json::array();
  for (int i = 0; i < shape.rank(); ++i) list.push_back(shape[i]);
  return list;
}

ordered_json offsets(const Box& box) {
  ordered_json list = ordered_json::array();
  for (int i = 0; i < box.shape.rank(); ++i) list.push_back(box.offset[static_cast<std::size_t>(i)]);
  return list;
}

ordered_json to_json(const RunState& run) {
  ordered_json reals = ordered_json::object();
  for (const auto& [name, value] : run.reals) reals[name] = exact(value);  // text: JSON has no NaN and no infinity
  return {{"step", run.step}, {"config_hash", run.config_hash},
          {"grid", run.grid}, {"integers", run.integers},
          {"reals", reals},   {"texts", run.texts}};
}

ordered_json to_json(const TensorRecord& tensor) {
  ordered_json slices = ordered_json::array();
  for (const ShardSlice& slice : tensor.slices) {
    slices.push_back({{"file", slice.file},
                      {"entry", slice.entry},
                      {"offset", offsets(slice.box)},
                      {"shape", sizes(slice.box.shape)}});
  }
  return {{"name", tensor.name}, {"dtype", name_of(tensor.dtype)}, {"shape", sizes(tensor.shape)}, {"slices", slices}};
}

ordered_json to_json(const FileRecord& file) {
  ordered_json blocks = ordered_json::array();
  for (const io::Hash128& block : file.checksums.blocks) blocks.push_back(block.hex());
  return {{"name", file.name}, {"bytes", file.checksums.bytes}, {"xxh3_128_of_4_mib_blocks", blocks}};
}

/// A JSON value that knows where it is, so that every error names it: "tensors[3].shape".
class Field {
 public:
  Field(const json& value, std::string_view source, std::string path)
      : value_(value), source_(source), path_(std::move(path)) {}

  Field at(const char* key) const {
    if (!value_.is_object()) fail("must be an object");
    const auto found = value_.find(key);
    if (found == value_.end()) fail(str("has no key \"", key, '"'));
    return {*found, source_, path_.empty() ? key : path_ + "." + key};
  }
  void expect_keys(std::initializer_list<std::string_view> keys) const {
    if (!value_.is_object()) fail("must be an object");
    for (const auto& [key, ignored] : value_.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        fail(str("has a key \"", io::printable(key), "\" that version ", kManifestVersion, " does not have"));
      }
    }
  }
  /// Calls f(Field) for each element.
  template <class F>
  void each(F&& f) const {
    if (!value_.is_array()) fail("must be an array");
    for (std::size_t i = 0; i < value_.size(); ++i) f(Field(value_[i], source_, str(path_, '[', i, ']')));
  }
  /// Calls f(key, Field) for each member.
  template <class F>
  void each_member(F&& f) const {
    if (!value_.is_object()) fail("must be an object");
    for (const auto& [key, member] : value_.items()) f(key, Field(member, source_, path_ + "." + io::printable(key)));
  }
  std::int64_t integer() const {
    if (!value_.is_number_integer()) fail("must be an integer");
    if (value_.is_number_unsigned() && value_.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      fail("is too large");
    }
    return value_.get<std::int64_t>();
  }
  std::string text() const {
    if (!value_.is_string()) fail("must be a text");
    return value_.get<std::string>();
  }
  double real() const {
    const std::string digits = text();
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) fail("must be a number as text");
    return value;
  }
  template <class Hex>
  Hex hex() const {
    const auto value = Hex::from_hex(text());
    if (!value) fail("must be 32 hexadecimal digits");
    return *value;
  }
  Shape shape() const {
    Shape shape;
    each([&](const Field& size) {
      if (shape.rank() == Shape::kMaxRank) fail(str("has more than ", Shape::kMaxRank, " dimensions"));
      shape.push_back(size.integer());
    });
    return shape;
  }
  DType dtype() const {
    const std::string name = text();
    for (const DType d :
         {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u64, DType::u8}) {
      if (name_of(d) == name) return d;
    }
    fail(str("= ", io::printable(name), " is not a known dtype"));
  }
  [[noreturn]] void fail(std::string_view rule) const {
    throw InputError(str("[", source_, "] ", path_.empty() ? "manifest" : path_, ": ", rule));
  }

 private:
  const json& value_;
  std::string_view source_;
  std::string path_;
};

/// Reads the text into a tree; refuses a key that comes twice and nesting that no manifest has.
json parse_tree(std::string_view text, std::string_view source) {
  std::vector<std::set<std::string>> keys(1);
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) throw InputError(str("[", source, "] is nested deeper than ", kMaxDepth));
    const auto level = static_cast<std::size_t>(depth);
    if (keys.size() <= level + 1) keys.resize(level + 2);
    if (event == json::parse_event_t::object_start) keys[level + 1].clear();
    if (event == json::parse_event_t::key && !keys[level].insert(value.get<std::string>()).second) {
      throw InputError(str("[", source, "] key \"", io::printable(value.get<std::string>()), "\" is there twice"));
    }
    return true;
  };
  // nlohmann's parser would take a zero byte for the end and ignore what follows.
  if (text.find('\0') != text.npos) throw InputError(str("[", source, "] is not valid JSON: it has a zero byte"));
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    throw InputError(str("[", source, "] is not valid JSON: ", io::printable(error.what(), 300)));
  }
}

RunState run_from(const Field& field) {
  field.expect_keys({"step", "config_hash", "grid", "integers", "reals", "texts"});
  RunState run{.step = field.at("step").integer(),
               .config_hash = field.at("config_hash").text(),
               .grid = field.at("grid").text(),
               .integers = {},
               .reals = {},
               .texts = {}};
  field.at("integers").each_member([&](const std::string& key, const Field& value) {
    run.integers[key] = value.integer();
  });
  field.at("reals").each_member([&](const std::string& key, const Field& value) { run.reals[key] = value.real(); });
  field.at("texts").each_member([&](const std::string& key, const Field& value) { run.texts[key] = value.text(); });
  return run;
}

ShardSlice slice_from(const Field& field) {
  field.expect_keys({"file", "entry", "offset", "shape"});
  ShardSlice slice{field.at("file").text(), field.at("entry").text(), {{}, field.at("shape").shape()}};
  const Shape offset = field.at("offset").shape();
  if (offset.rank() != slice.box.shape.rank()) field.fail("offset and shape must have the same length");
  for (int i = 0; i < offset.rank(); ++i) slice.box.offset[static_cast<std::size_t>(i)] = offset[i];
  return slice;
}

TensorRecord tensor_from(const Field& field) {
  field.expect_keys({"name", "dtype", "shape", "slices"});
  TensorRecord tensor{field.at("name").text(), field.at("dtype").dtype(), field.at("shape").shape(), {}};
  field.at("slices").each([&](const Field& slice) { tensor.slices.push_back(slice_from(slice)); });
  return tensor;
}

FileRecord file_from(const Field& field) {
  field.expect_keys({"name", "bytes", "xxh3_128_of_4_mib_blocks"});
  FileRecord file{field.at("name").text(), {}};
  const std::int64_t bytes = field.at("bytes").integer();
  if (bytes < 0) field.fail("bytes must not be negative");
  file.checksums.bytes = static_cast<std::uint64_t>(bytes);
  field.at("xxh3_128_of_4_mib_blocks").each([&](const Field& block) {
    file.checksums.blocks.push_back(block.hex<io::Hash128>());
  });
  return file;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  const std::string problem = problem_of(manifest);
  if (!problem.empty()) throw InternalError("[manifest] " + problem);
  ordered_json tensors = ordered_json::array(), files = ordered_json::array();
  for (const TensorRecord& tensor : manifest.tensors) tensors.push_back(to_json(tensor));
  for (const FileRecord& file : manifest.files) files.push_back(to_json(file));
  const ordered_json root = {{"checksum", std::string(kDigits, '0')},
                             {"version", kManifestVersion},
                             {"run", to_json(manifest.run)},
                             {"state_digest", manifest.digest.hex()},
                             {"files", files},
                             {"tensors", tensors}};
  std::string text;
  try {
    text = root.dump(1) + "\n";
  } catch (const json::exception& error) {
    throw InternalError(str("[manifest] names and texts must be UTF-8: ", error.what()));
  }
  return text.replace(kPrefix.size(), kDigits, checksum_digits(text));
}

Manifest parse_manifest(std::string_view text, std::string_view source) {
  if (text.size() > kMaxBytes)
    throw InputError(str("[", source, "] has ", text.size(), " bytes: more than ", kMaxBytes));
  if (!text.starts_with(kPrefix) || text.size() < kPrefix.size() + kDigits) {
    throw InputError(str("[", source, "] is not a manifest: it must start with its checksum"));
  }
  const std::string computed = checksum_digits(std::string(text));
  const std::string_view stored = text.substr(kPrefix.size(), kDigits);
  if (computed != stored) {
    throw InputError(str("[", source, "] checksum = ", io::printable(stored), ": the bytes give ", computed,
                         ": the file is damaged or was edited"));
  }
  const json tree = parse_tree(text, source);
  const Field root(tree, source, "");
  const std::int64_t version = root.at("version").integer();
  if (version != kManifestVersion) {
    throw CheckpointError(CheckpointError::Kind::refused,
                          str("[", source, "] version = ", version, ": this program reads version ", kManifestVersion));
  }
  root.expect_keys({"checksum", "version", "run", "state_digest", "files", "tensors"});
  Manifest manifest{run_from(root.at("run")), root.at("state_digest").hex<Digest128>(), {}, {}};
  root.at("files").each([&](const Field& file) { manifest.files.push_back(file_from(file)); });
  root.at("tensors").each([&](const Field& tensor) { manifest.tensors.push_back(tensor_from(tensor)); });
  const std::string problem = problem_of(manifest);
  if (!problem.empty()) throw InputError(str("[", source, "] ", problem));
  return manifest;
}

}  // namespace megalith::checkpoint
