#include "megalith/data/indexed_dataset.h"

#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/indexed_format.h"
#include "megalith/io/reader.h"

namespace megalith::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the ids of .bin are read in place");

IdType read_type(io::Reader& reader) {
  const std::uint8_t code = reader.u8("dtype");
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8:
      return static_cast<IdType>(code);
    default:
      reader.fail("dtype", str("code ", int{code}, " must be 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) or 8 (u16)"));
  }
}

template <class T>
T load(const io::MappedFile& file, Index offset) {
  T value;
  std::memcpy(&value, file.bytes().data() + offset, sizeof value);
  return value;
}

/// Converts ids. Returns the place of the first invalid one, or -1.
template <class T>
Index convert(const std::byte* from, std::span<std::int32_t> out) {
  bool good = true;
  const auto is_id = [](T value) {
    if constexpr (std::is_unsigned_v<T>)
      return true;
    else
      return value >= 0 && static_cast<std::int64_t>(value) <= std::numeric_limits<std::int32_t>::max();
  };
  T value;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    good = good && is_id(value);
    out[i] = static_cast<std::int32_t>(value);
  }
  if (good) return -1;
  for (std::size_t i = 0;; ++i) {
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    if (!is_id(value)) return static_cast<Index>(i);
  }
}

Index convert(IdType type, const std::byte* from, std::span<std::int32_t> out) {
  switch (type) {
    case IdType::u8:
      return convert<std::uint8_t>(from, out);
    case IdType::i8:
      return convert<std::int8_t>(from, out);
    case IdType::i16:
      return convert<std::int16_t>(from, out);
    case IdType::i32:
      return convert<std::int32_t>(from, out);
    case IdType::i64:
      return convert<std::int64_t>(from, out);
    case IdType::u16:
      return convert<std::uint16_t>(from, out);
  }
  throw InternalError("[indexed_dataset] unknown id type");
}

io::Path with_suffix(io::Path prefix, std::string_view suffix) { return prefix += suffix; }

/// Checks that the sequences fill .bin from its first to its last byte. Returns the number of tokens.
Index check_sequences(io::Reader lengths, io::Reader pointers, std::size_t count, const io::Path& bin,
                      std::uint64_t bin_bytes, std::size_t item) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t length = lengths.i32("sequence length");
    if (length < 0) lengths.fail("sequence length", str("sequence ", i, " has ", length, " ids: must not be negative"));
    const std::int64_t pointer = pointers.i64("sequence pointer");
    if (static_cast<std::uint64_t>(pointer) != end)
      pointers.fail("sequence pointer", str("sequence ", i, " begins at byte ", pointer,
                                            " of .bin: must be where the one before it ends, ", end));
    end += static_cast<std::uint64_t>(length) * item;  // no overflow: it was at most bin_bytes
    if (end > bin_bytes)
      lengths.fail("sequence length",
                   str("sequence ", i, " ends at byte ", end, ": ", bin.string(), " has only ", bin_bytes));
  }
  if (end != bin_bytes)
    throw InputError(str("[", bin.string(), "] size = ", bin_bytes, " bytes: the sequences of .idx end at ", end,
                         "; the two files are not of one build"));
  return static_cast<Index>(bin_bytes / item);
}

void check_documents(io::Reader documents, std::size_t boundaries, std::size_t sequences) {
  std::int64_t before = 0;
  for (std::size_t i = 0; i < boundaries; ++i) {
    const std::int64_t boundary = documents.i64("document index");
    if (i == 0 && boundary != 0) documents.fail("document index", str("begins with ", boundary, ": must begin with 0"));
    if (boundary < before || boundary > static_cast<std::int64_t>(sequences))
      documents.fail("document index", str("boundary ", i, " is ", boundary, ": must be from ", before,
                                           " (the boundary before it) to the number of sequences, ", sequences));
    before = boundary;
  }
  if (before != static_cast<std::int64_t>(sequences))
    documents.fail("document index", str("ends with ", before, ": must end with the number of sequences, ", sequences));
}

}  // namespace

std::size_t id_bytes(IdType type) {
  switch (type) {
    case IdType::u8:
    case IdType::i8:
      return 1;
    case IdType::i16:
    case IdType::u16:
      return 2;
    case IdType::i32:
      return 4;
    case IdType::i64:
      return 8;
  }
  throw InternalError("[indexed_dataset] unknown id type");
}

std::string_view id_type_name(IdType type) {
  switch (type) {
    case IdType::u8:
      return "u8";
    case IdType::i8:
      return "i8";
    case IdType::i16:
      return "i16";
    case IdType::i32:
      return "i32";
    case IdType::i64:
      return "i64";
    case IdType::u16:
      return "u16";
  }
  throw InternalError("[indexed_dataset] unknown id type");
}

IdType id_type_for(Index vocab_size) { return vocab_size < 65500 ? IdType::u16 : IdType::i32; }

io::Path bin_path(const io::Path& prefix) { return with_suffix(prefix, ".bin"); }
io::Path idx_path(const io::Path& prefix) { return with_suffix(prefix, ".idx"); }

IndexedDataset::IndexedDataset(io::Fs& fs, const io::Path& prefix)
    : prefix_(prefix), bin_(fs.map(bin_path(prefix))), idx_(fs.map(idx_path(prefix))) {
  io::Reader reader(idx_.bytes(), idx_path(prefix).string());
  if (reader.text(kIndexMagic.size(), "magic") != kIndexMagic)
    reader.fail("magic", "must be MMIDIDX: this is not an index of Megatron-LM (very old ones are not read)");
  if (const std::uint64_t version = reader.u64("version"); version != kIndexVersion)
    reader.fail("version", str(version, ": must be ", kIndexVersion));
  type_ = read_type(reader);
  const std::uint64_t claimed_sequences = reader.u64("sequence count");
  const std::uint64_t claimed_boundaries = reader.u64("document count");
  const std::size_t sequences =
      reader.count(claimed_sequences, sizeof(std::int32_t) + sizeof(std::int64_t), "sequence count");
  io::Reader lengths = reader.part(sequences * sizeof(std::int32_t), "sequence lengths");
  io::Reader pointers = reader.part(sequences * sizeof(std::int64_t), "sequence pointers");
  const std::size_t boundaries = reader.count(claimed_boundaries, sizeof(std::int64_t), "document count");
  if (boundaries == 0) reader.fail("document count", "0: must be at least 1, the boundary 0");
  io::Reader documents = reader.part(boundaries * sizeof(std::int64_t), "document index");
  reader.expect_end("document index");

  num_tokens_ = check_sequences(lengths, pointers, sequences, bin_path(prefix), bin_.bytes().size(), id_bytes(type_));
  check_documents(documents, boundaries, sequences);
  num_sequences_ = static_cast<Index>(sequences);
  num_documents_ = static_cast<Index>(boundaries) - 1;
}

Index IndexedDataset::sequence_length(Index sequence) const {
  if (sequence < 0 || sequence >= num_sequences_)
    throw ShapeError(str("[", idx_path(prefix_).string(), "] sequence ", sequence, ": must be below ", num_sequences_));
  return load<std::int32_t>(idx_, kIndexHeaderBytes + sequence * Index{sizeof(std::int32_t)});
}

Index IndexedDataset::sequence_begin(Index sequence) const {
  if (sequence < 0 || sequence > num_sequences_)
    throw ShapeError(
        str("[", idx_path(prefix_).string(), "] sequence ", sequence, ": must be at most ", num_sequences_));
  if (sequence == num_sequences_) return num_tokens_;
  const Index at = kIndexHeaderBytes + num_sequences_ * Index{sizeof(std::int32_t)};
  return load<std::int64_t>(idx_, at + sequence * Index{sizeof(std::int64_t)}) / static_cast<Index>(id_bytes(type_));
}

Index IndexedDataset::document_begin(Index document) const {
  if (document < 0 || document > num_documents_)
    throw ShapeError(
        str("[", idx_path(prefix_).string(), "] document ", document, ": must be at most ", num_documents_));
  constexpr Index kPerSequence = sizeof(std::int32_t) + sizeof(std::int64_t);
  return load<std::int64_t>(idx_,
                            kIndexHeaderBytes + num_sequences_ * kPerSequence + document * Index{sizeof(std::int64_t)});
}

void IndexedDataset::copy(Index first, std::span<std::int32_t> out) const {
  const auto count = static_cast<Index>(out.size());
  if (first < 0 || count > num_tokens_ - first)
    throw ShapeError(str("[", bin_path(prefix_).string(), "] tokens ", first, " to ", first + count,
                         ": the file holds ", num_tokens_));
  if (count == 0) return;
  const std::byte* from = bin_.bytes().data() + static_cast<std::size_t>(first) * id_bytes(type_);
  if (const Index bad = convert(type_, from, out); bad >= 0)
    throw InputError(
        str("[", bin_path(prefix_).string(), "] token ", first + bad, ": its id must be from 0 to 2^31 - 1"));
}

}  // namespace megalith::data
