// The text form of the manifest.
#include <algorithm>
#include <charconv>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/manifest.h"
#include "megalith/io/json_document.h"
#include "megalith/io/reader.h"

namespace megalith::checkpoint {
namespace {

using io::JsonField;
using nlohmann::json;
using nlohmann::ordered_json;

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

double real_from(const JsonField& field) {
  const std::string digits = field.text();
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) field.fail("must be a number as text");
  return value;
}

template <class Hex>
Hex hex_from(const JsonField& field) {
  const auto value = Hex::from_hex(field.text());
  if (!value) field.fail("must be 32 hexadecimal digits");
  return *value;
}

Shape shape_from(const JsonField& field) {
  Shape shape;
  field.each([&](const JsonField& size) {
    if (shape.rank() == Shape::kMaxRank) field.fail(str("has more than ", Shape::kMaxRank, " dimensions"));
    shape.push_back(size.integer());
  });
  return shape;
}

DType dtype_from(const JsonField& field) {
  const std::string name = field.text();
  const std::optional<DType> dtype = dtype_named(name);
  if (!dtype) field.fail(str("= ", io::printable(name), " is not a known dtype"));
  return *dtype;
}

RunState run_from(const JsonField& field) {
  field.expect_keys({"step", "config_hash", "grid", "integers", "reals", "texts"});
  RunState run{.step = field.at("step").integer(),
               .config_hash = field.at("config_hash").text(),
               .grid = field.at("grid").text(),
               .integers = {},
               .reals = {},
               .texts = {}};
  field.at("integers").each_member([&](const std::string& key, const JsonField& value) {
    run.integers[key] = value.integer();
  });
  field.at("reals").each_member(
      [&](const std::string& key, const JsonField& value) { run.reals[key] = real_from(value); });
  field.at("texts").each_member([&](const std::string& key, const JsonField& value) { run.texts[key] = value.text(); });
  return run;
}

ShardSlice slice_from(const JsonField& field) {
  field.expect_keys({"file", "entry", "offset", "shape"});
  ShardSlice slice{field.at("file").text(), field.at("entry").text(), {{}, shape_from(field.at("shape"))}};
  const Shape offset = shape_from(field.at("offset"));
  if (offset.rank() != slice.box.shape.rank()) field.fail("offset and shape must have the same length");
  for (int i = 0; i < offset.rank(); ++i) slice.box.offset[static_cast<std::size_t>(i)] = offset[i];
  return slice;
}

TensorRecord tensor_from(const JsonField& field) {
  field.expect_keys({"name", "dtype", "shape", "slices"});
  TensorRecord tensor{field.at("name").text(), dtype_from(field.at("dtype")), shape_from(field.at("shape")), {}};
  field.at("slices").each([&](const JsonField& slice) { tensor.slices.push_back(slice_from(slice)); });
  return tensor;
}

FileRecord file_from(const JsonField& field) {
  field.expect_keys({"name", "bytes", "xxh3_128_of_4_mib_blocks"});
  FileRecord file{field.at("name").text(), {}};
  const std::int64_t bytes = field.at("bytes").integer();
  if (bytes < 0) field.fail("bytes must not be negative");
  file.checksums.bytes = static_cast<std::uint64_t>(bytes);
  field.at("xxh3_128_of_4_mib_blocks").each([&](const JsonField& block) {
    file.checksums.blocks.push_back(hex_from<io::Hash128>(block));
  });
  return file;
}

[[noreturn]] void refuse_version(std::string_view source, std::int64_t version) {
  throw CheckpointError(CheckpointError::Kind::refused,
                        str("[", source, "] version = ", version, ": this program reads versions 1 to ",
                            kManifestVersion, "; use the program that wrote it, or move its folder away"));
}

/// The tree of a manifest. What a later version sealed otherwise, or not at all, is not damaged.
json tree_of(std::string_view text, const io::JsonFormat& format) {
  try {
    return io::parse_sealed_json(text, format);
  } catch (const InputError&) {
    if (const auto version = io::later_version(text, format)) refuse_version(format.source, *version);
    throw;
  }
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  const std::string problem = problem_of(manifest);
  if (!problem.empty()) throw InternalError("[manifest] " + problem);
  ordered_json tensors = ordered_json::array(), files = ordered_json::array();
  for (const TensorRecord& tensor : manifest.tensors) tensors.push_back(to_json(tensor));
  for (const FileRecord& file : manifest.files) files.push_back(to_json(file));
  // What has no plain files stays readable for programs that know none.
  const bool has_plain = std::ranges::any_of(manifest.files, is_plain);
  return io::seal_json({{"version", has_plain ? 2 : 1},
                        {"run", to_json(manifest.run)},
                        {"state_digest", manifest.digest.hex()},
                        {"files", files},
                        {"tensors", tensors}});
}

Manifest parse_manifest(std::string_view text, std::string_view source) {
  const io::JsonFormat format{.source = source, .what = "manifest", .version = kManifestVersion};
  const json tree = tree_of(text, format);
  const JsonField root(tree, format);
  const std::int64_t version = root.at("version").integer();
  if (version < 1 || version > kManifestVersion) refuse_version(source, version);
  root.expect_keys({"checksum", "version", "run", "state_digest", "files", "tensors"});
  Manifest manifest{run_from(root.at("run")), hex_from<Digest128>(root.at("state_digest")), {}, {}};
  root.at("files").each([&](const JsonField& file) { manifest.files.push_back(file_from(file)); });
  root.at("tensors").each([&](const JsonField& tensor) { manifest.tensors.push_back(tensor_from(tensor)); });
  const std::string problem = problem_of(manifest);
  if (!problem.empty()) throw InputError(str("[", source, "] ", problem));
  return manifest;
}

}  // namespace megalith::checkpoint
