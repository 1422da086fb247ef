#include "megalith/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/checkpoint/box.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::checkpoint {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 8> kDtypes = {{{"F64", DType::f64},
                                                                        {"F32", DType::f32},
                                                                        {"BF16", DType::bf16},
                                                                        {"F16", DType::f16},
                                                                        {"I64", DType::i64},
                                                                        {"I32", DType::i32},
                                                                        {"U64", DType::u64},
                                                                        {"U8", DType::u8}}};
constexpr std::string_view kMetadata = "__metadata__";

/// Follows the JSON as events, so that nothing is built but the tensors' records, and nothing is deeper than the
/// format.
class HeaderEvents final : public io::JsonVisitor {
 public:
  HeaderEvents(std::string_view source, SafeTensorsHeader& header) : source_(source), header_(header) {}

  void other(std::string_view shown) override { fail_value(io::printable(shown)); }
  void count(std::uint64_t value) override {
    if (place_ != Place::numbers) fail_value(str(value));
    if (field_ == "shape") {
      if (info().shape.rank() == Shape::kMaxRank)
        fail(str("more than ", Shape::kMaxRank, " dimensions are not supported"));
      if (value > static_cast<std::uint64_t>(INT64_MAX)) fail(str(value, " is too large"));
      info().shape.push_back(static_cast<Index>(value));
    } else {
      if (num_offsets_ == 2) fail("must be two numbers");
      (num_offsets_++ == 0 ? info().begin : info().end) = value;
    }
  }
  void text(std::string& value) override {
    if (place_ == Place::metadata) {
      header_.metadata.emplace(field_, value);
      return;
    }
    if (place_ != Place::tensor || field_ != "dtype") fail_value(str('"', io::printable(value), '"'));
    const auto* const found =
        std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.first == value; });
    if (found == kDtypes.end()) {
      fail(str('"', io::printable(value), "\" is not one of F64 F32 BF16 F16 I64 I32 U64 U8"));
    }
    info().dtype = found->second;
  }
  void start_object() override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      place_ = name_ == kMetadata ? Place::metadata : Place::tensor;
      seen_.clear();
      num_offsets_ = 0;
    } else {
      fail_value("an object");
    }
  }
  void end_object() override {
    if (place_ == Place::tensor) {
      for (const std::string_view wanted : {"dtype", "shape", "data_offsets"}) {
        if (!seen_.contains(wanted)) {
          field_ = wanted;
          fail("is missing");
        }
      }
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
  }
  void key(std::string& name) override {
    field_ = name;
    if (place_ == Place::top) {
      name_ = name;
      field_.clear();
      if (name_ != kMetadata) {
        if (header_.tensors.size() == kMaxTensors) fail(str("more than ", kMaxTensors, " tensors"));
        header_.tensors.emplace_back().name = name_;
      }
    } else if (place_ == Place::tensor) {
      if (name != "dtype" && name != "shape" && name != "data_offsets") fail("is not a field of the format");
      seen_.insert(name);
    }
  }
  void start_array() override {
    if (place_ != Place::tensor || field_ == "dtype") fail_value("an array");
    place_ = Place::numbers;
  }
  void end_array() override {
    if (field_ == "data_offsets" && num_offsets_ != 2) fail("must be two numbers");
    place_ = Place::tensor;
  }

 private:
  enum class Place { outside, top, tensor, numbers, metadata };

  TensorInfo& info() { return header_.tensors.back(); }
  [[noreturn]] void fail(std::string_view rule) const {
    const std::string tensor = name_.empty() ? std::string("header") : str("tensor \"", io::printable(name_), '"');
    throw InputError(str("[", source_, "] ", tensor, field_.empty() ? "" : ", ", io::printable(field_), ": ", rule));
  }
  [[noreturn]] void fail_value(std::string_view what) const { fail(str(what, " is not what the format has here")); }

  std::string_view source_;
  SafeTensorsHeader& header_;
  Place place_ = Place::outside;
  std::string name_, field_;
  std::set<std::string, std::less<>> seen_;  // fields of the current tensor
  int num_offsets_ = 0;
};

[[noreturn]] void fail_tensor(std::string_view source, const TensorInfo& info, std::string_view rule) {
  throw InputError(str("[", source, "] tensor \"", io::printable(info.name), "\", data_offsets = [", info.begin, ", ",
                       info.end, "]: ", rule));
}

/// Byte counts and places, still relative to the end of the header.
void check_places(std::vector<TensorInfo>& tensors, std::uint64_t data_bytes, std::string_view source) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t expected = 0;
  for (const TensorInfo& info : tensors) {
    if (info.begin != expected) {
      fail_tensor(source, info, str("must begin at ", expected, ", where the one before ends"));
    }
    if (info.end < info.begin || info.end > data_bytes) {
      fail_tensor(source, info, str("the file has ", data_bytes, " bytes of data"));
    }
    const std::optional<Index> numel = info.shape.checked_numel();
    Index bytes = 0;
    if (!numel || __builtin_mul_overflow(*numel, size_of(info.dtype), &bytes) ||
        static_cast<std::uint64_t>(bytes) != info.end - info.begin) {
      fail_tensor(source, info, str("must be the bytes of ", name_of(info.dtype), ' ', info.shape));
    }
    expected = info.end;
  }
  if (expected != data_bytes) {
    throw InputError(
        str("[", source, "] the tensors end after ", expected, " bytes of data, the file has ", data_bytes));
  }
}

std::string header_text(const std::vector<SafeTensorsWriter::Entry>& entries,
                        const SafeTensorsWriter::Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::set<std::string_view> names;
  Index at = 0;
  for (const auto& entry : entries) {
    if (!names.insert(entry.name).second || entry.name == kMetadata || !is_utf8(entry.name)) {
      throw InternalError(str("[safetensors] tensor name = ", io::printable(entry.name), ": must be UTF-8 and unique"));
    }
    const auto* const dtype =
        std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.second == entry.dtype; });
    std::vector<Index> shape;
    for (int i = 0; i < entry.shape.rank(); ++i) shape.push_back(entry.shape[i]);
    const Index end = at + entry.shape.numel() * size_of(entry.dtype);
    header[entry.name] = {{"dtype", dtype->first}, {"shape", shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the data starts aligned to 8
  return text;
}

}  // namespace

const TensorInfo* SafeTensorsHeader::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const TensorInfo& info, std::string_view wanted) { return info.name < wanted; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

SafeTensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  io::Reader reader(file, source);
  const std::uint64_t header_bytes = reader.u64("header length");
  if (header_bytes > kMaxHeaderBytes) reader.fail("header length", str(header_bytes, " is above ", kMaxHeaderBytes));
  const std::string_view text = reader.text(header_bytes, "header");
  if (!text.starts_with('{')) throw InputError(str("[", source, "] offset 8, header: must start with {"));

  SafeTensorsHeader header;
  HeaderEvents events(source, header);
  io::visit_json(text, {.name = source, .part = "header"}, events);
  check_places(header.tensors, reader.remaining(), source);
  std::ranges::sort(header.tensors, {}, &TensorInfo::name);
  for (TensorInfo& info : header.tensors) {
    info.begin += reader.offset();
    info.end += reader.offset();
  }
  return header;
}

SafeTensorsWriter::SafeTensorsWriter(io::Fs& fs, const io::Path& path, std::vector<Entry> entries,
                                     const Metadata& metadata)
    : path_(path.string()), entries_(std::move(entries)) {
  const std::string text = header_text(entries_, metadata);
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(text.size() >> (8 * i) & 0xFF);
  file_ = fs.create(path);
  put(length);
  put(std::as_bytes(std::span(text)));
  advance();
}

void SafeTensorsWriter::put(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;  // still in the cache when it is written
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    checksums_.update(piece);
    file_->write(piece);
    bytes = bytes.subspan(piece.size());
  }
}

void SafeTensorsWriter::write(const Tensor& values) {
  if (next_ == entries_.size()) throw InternalError(str("[", path_, "] all announced tensors are written"));
  const Entry& entry = entries_[next_];
  written_ += values.numel();
  if (values.dtype() != entry.dtype || written_ > entry.shape.numel()) {
    throw ShapeError(str("[", path_, "] tensor ", entry.name, " = ", name_of(values.dtype()), ' ', values.shape(),
                         ": must be ", name_of(entry.dtype), ' ', entry.shape));
  }
  put({static_cast<const std::byte*>(values.raw()), static_cast<std::size_t>(values.bytes())});
  advance();
}

void SafeTensorsWriter::advance() {
  while (next_ < entries_.size() && written_ == entries_[next_].shape.numel()) {
    ++next_;
    written_ = 0;
  }
}

io::FileChecksums SafeTensorsWriter::finish() {
  if (next_ != entries_.size())
    throw InternalError(str("[", path_, "] tensor ", entries_[next_].name, ": not written"));
  file_->sync();
  file_->close();
  return checksums_.finish();
}

}  // namespace megalith::checkpoint
