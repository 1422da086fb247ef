#include "megalith/data/parquet_file.h"

#include <algorithm>
#include <utility>

#include <zlib.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/key_hint.h"
#include "megalith/data/parquet_page.h"
#include "megalith/data/thrift_compact.h"

namespace megalith::data {

/// The pages of the column in one row group.
struct ColumnChunk {
  std::int64_t codec = 0, values = 0, begin = 0, dictionary = 0, bytes = 0;
  std::uint64_t first_row = 0, rows = 0;
  bool is_optional = false;
};

namespace {

constexpr std::string_view kMagic = "PAR1";
// A page that claims more is refused: few bytes can stand for any number of equal values.
constexpr std::uint64_t kMaxPageValues = std::uint64_t{1} << 24;
// The most bytes and values that one call returns.
constexpr std::size_t kBatchBytes = std::size_t{1} << 20, kBatchValues = std::size_t{1} << 14;
constexpr std::int64_t kByteArray = 6, kRepeated = 2;

struct SchemaElement {
  std::string_view name;
  std::int64_t type = -1, repetition = 0, children = 0;
};

SchemaElement read_schema_element(io::Reader& in) {
  SchemaElement element;
  for (ThriftStruct s(in); s.next();) switch (s.id()) {
      case 1:
        element.type = s.integer();
        break;
      case 3:
        element.repetition = s.integer();
        break;
      case 4:
        element.name = s.text();
        break;
      case 5:
        element.children = s.integer();
        break;
      default:
        s.skip();
    }
  return element;
}

struct ColumnMetadata {
  std::vector<std::string_view> path;
  ColumnChunk chunk;
  bool has_metadata = false;
};

void read_metadata(io::Reader& in, ColumnMetadata& column) {
  ColumnChunk& chunk = column.chunk;
  column.has_metadata = true;
  for (ThriftStruct s(in); s.next();) switch (s.id()) {
      case 3:
        column.path.clear();
        for (std::size_t left = s.list_of(ThriftType::binary); left > 0; --left) column.path.push_back(thrift_text(in));
        break;
      case 4:
        chunk.codec = s.integer();
        break;
      case 5:
        chunk.values = s.integer();
        break;
      case 7:
        chunk.bytes = s.integer();
        break;
      case 9:
        chunk.begin = s.integer();
        break;
      case 11:
        chunk.dictionary = s.integer();
        break;
      default:
        s.skip();
    }
}

/// The header of a page.
struct PageHeader {
  std::int64_t type = -1, size = -1, packed_size = -1, crc = 0;
  std::int64_t values = -1, encoding = -1, definition_bytes = 0, repetition_bytes = 0;
  bool has_crc = false, is_packed = true;
};
constexpr std::int64_t kDataPage = 0, kDictionaryPage = 2, kDataPage2 = 3;

void read_page_numbers(io::Reader& in, ThriftStruct& outer, PageHeader& page, bool is_second) {
  outer.expect_structure();
  for (ThriftStruct s(in); s.next();) {
    if (s.id() == 1)
      page.values = s.integer();
    else if (s.id() == (is_second ? 4 : 2))
      page.encoding = s.integer();
    else if (is_second && s.id() == 5)
      page.definition_bytes = s.integer();
    else if (is_second && s.id() == 6)
      page.repetition_bytes = s.integer();
    else if (is_second && s.id() == 7)
      page.is_packed = s.boolean();
    else
      s.skip();
  }
}

PageHeader read_page_header(io::Reader& in, std::uint64_t max_bytes) {
  PageHeader page;
  for (ThriftStruct s(in); s.next();) switch (s.id()) {
      case 1:
        page.type = s.integer();
        break;
      case 2:
        page.size = s.integer();
        break;
      case 3:
        page.packed_size = s.integer();
        break;
      case 4:
        page.crc = s.integer();
        page.has_crc = true;
        break;
      case 5:
      case 7:
        read_page_numbers(in, s, page, false);
        break;
      case 8:
        read_page_numbers(in, s, page, true);
        break;
      default:
        s.skip();
    }
  if (page.size < 0 || page.packed_size < 0 || static_cast<std::uint64_t>(page.size) > max_bytes)
    in.fail("page size",
            str("is ", page.size, " (", page.packed_size, " packed): must be 0 to ", max_bytes, "; ", kMaxLineSetting));
  return page;
}

}  // namespace

struct ParquetFile::State {
  State(io::Fs& of_fs, io::Path of_file, std::string_view of_column, std::uint64_t max_document_bytes)
      : fs(of_fs),
        file(std::move(of_file)),
        name(file.string()),
        column(of_column),
        max_page_bytes(std::max(kMaxPageBytes, 8 * std::min(max_document_bytes, ~std::uint64_t{0} / 8))) {
    read_footer();
  }

  void read_footer();
  void find_column(const std::vector<SchemaElement>& schema, io::Reader& in);
  void read_row_group(io::Reader& in, std::uint64_t& first_row);
  bool open_page();
  ParquetValues next_values();
  void read_dictionary(io::Reader& body, const PageHeader& page);
  void start(std::string data, const PageHeader& page, const io::Reader& where);
  void enter(const ColumnChunk& chunk);

  io::Fs& fs;
  io::Path file;
  std::string name, column;
  std::uint64_t max_page_bytes;
  bool is_optional = false;
  std::vector<ColumnChunk> chunks;

  std::size_t chunk = 0;  // the next chunk; pages are of the previous one
  io::MappedFile mapped;
  std::optional<io::Reader> pages;
  std::uint64_t values_left = 0, row = 0;
  std::shared_ptr<const std::string> dictionary_bytes;
  std::vector<std::string_view> dictionary;

  /// The open page.
  struct Page {
    struct Held {
      std::string data;
      std::shared_ptr<const std::string> dictionary;
    };
    std::shared_ptr<const Held> held{};
    std::optional<HybridNumbers> levels{};  // in an optional column: 1 for a value, 0 for null
    std::unique_ptr<ParquetStrings> strings{};
    std::uint64_t rows = 0;  // left in the page
  };
  Page open{};
};

void ParquetFile::State::read_footer() {
  mapped = fs.map(file);
  const std::string_view all = mapped.text();
  io::Reader whole(mapped.bytes(), name);
  if (all.size() < 12 || !all.starts_with(kMagic) || !all.ends_with(kMagic))
    whole.fail("file", "must begin and end with PAR1: it is no Parquet file, or cut");
  const std::uint64_t footer_end = all.size() - 8;
  const std::uint32_t size = io::Reader(mapped.bytes().subspan(footer_end, 4), name, footer_end).u32("footer length");
  if (size > footer_end - 4)
    io::Reader(mapped.bytes().subspan(footer_end), name, footer_end)
        .fail("footer length", str("is ", size, ", the file has ", footer_end - 4, " bytes before it"));
  io::Reader in(mapped.bytes().subspan(footer_end - size, size), name, footer_end - size);
  bool has_schema = false;
  std::uint64_t first_row = 0;
  for (ThriftStruct s(in); s.next();) switch (s.id()) {
      case 2: {
        std::vector<SchemaElement> schema;
        for (std::size_t left = s.list_of(ThriftType::structure); left > 0; --left)
          schema.push_back(read_schema_element(in));
        find_column(schema, in);
        has_schema = true;
        break;
      }
      case 4:
        if (!has_schema) in.fail("row groups", "stand before the schema");
        for (std::size_t left = s.list_of(ThriftType::structure); left > 0; --left) read_row_group(in, first_row);
        break;
      default:
        s.skip();
    }
  if (!has_schema) in.fail("schema", "is missing");
  mapped = {};
}

void ParquetFile::State::find_column(const std::vector<SchemaElement>& schema, io::Reader& in) {
  std::vector<std::string_view> names;
  // The root comes first, then every element before its children.
  std::uint64_t skip = 0;  // elements below a nested column
  for (std::size_t i = 1; i < schema.size(); ++i) {
    const SchemaElement& element = schema[i];
    if (element.children < 0) in.fail("schema", "has a negative number of children");
    if (skip > 0) {
      skip += static_cast<std::uint64_t>(element.children) - 1;
      continue;
    }
    names.push_back(element.name);
    skip = static_cast<std::uint64_t>(element.children);
    if (element.name != column) continue;
    if (element.children > 0 || element.repetition == kRepeated)
      throw InputError(str("[", name, "] column \"", column, "\": is nested or repeated: must be one string per row"));
    if (element.type != kByteArray)
      throw InputError(str("[", name, "] column \"", column, "\": must hold strings (BYTE_ARRAY)"));
    is_optional = element.repetition != 0;
    return;
  }
  throw InputError(str("[", name, "] has no column \"", io::printable(column), "\"", instead_of(column, names)));
}

void ParquetFile::State::read_row_group(io::Reader& in, std::uint64_t& first_row) {
  std::optional<ColumnChunk> found;
  std::int64_t rows = -1;
  for (ThriftStruct s(in); s.next();) switch (s.id()) {
      case 1:
        for (std::size_t left = s.list_of(ThriftType::structure); left > 0; --left) {
          ColumnMetadata one;
          for (ThriftStruct c(in); c.next();) {
            if (c.id() == 3) {
              c.expect_structure();
              read_metadata(in, one);
            } else if (c.id() == 1) {
              throw InputError(str("[", name, "] keeps columns in other files: must hold its own"));
            } else {
              c.skip();
            }
          }
          if (one.has_metadata && one.path.size() == 1 && one.path[0] == column) found = one.chunk;
        }
        break;
      case 3:
        rows = s.integer();
        break;
      default:
        s.skip();
    }
  if (!found) in.fail("row group", str("has no column \"", column, "\""));
  ColumnChunk& c = *found;
  if (c.dictionary > 0 && c.dictionary < c.begin) c.begin = c.dictionary;
  const auto size = static_cast<std::int64_t>(fs.file_size(file));
  if (c.begin < 4 || c.bytes < 0 || c.begin > size || c.bytes > size - c.begin)
    in.fail("column", str("is listed with ", c.bytes, " bytes at ", c.begin, " of a file of ", size));
  if (rows < 0 || c.values != rows)
    in.fail("row group", str("has ", rows, " rows, and ", c.values, " values of the column"));
  if (c.codec != 0 && c.codec != 1 && c.codec != 2 && c.codec != 6)
    throw InputError(str("[", name, "] column \"", column, "\": is packed by Parquet's codec ", c.codec,
                         ": must be uncompressed, snappy, gzip or zstd"));
  c.first_row = first_row;
  c.rows = static_cast<std::uint64_t>(rows);
  first_row += c.rows;
  chunks.push_back(c);
}

void ParquetFile::State::enter(const ColumnChunk& c) {
  mapped = fs.map(file);  // again, so that pages of other row groups leave memory
  const auto begin = static_cast<std::uint64_t>(c.begin), bytes = static_cast<std::uint64_t>(c.bytes);
  if (mapped.bytes().size() < begin + bytes) throw InputError(str("[", name, "] changed while it was read"));
  pages.emplace(mapped.bytes().subspan(begin, bytes), name, begin);
  values_left = c.rows;
  row = c.first_row;
  dictionary.clear();
  dictionary_bytes.reset();
}

/// Moves on to the next page with rows; false at the end.
bool ParquetFile::State::open_page() {
  for (;;) {
    while (values_left == 0) {
      if (chunk == chunks.size()) return false;
      enter(chunks[chunk++]);
    }
    const PageHeader page = read_page_header(*pages, max_page_bytes);
    const io::Reader where = *pages;
    const std::string_view packed = pages->text(static_cast<std::uint64_t>(page.packed_size), "page");
    if (page.has_crc && static_cast<std::uint32_t>(page.crc) !=
                            ::crc32(0, reinterpret_cast<const Bytef*>(packed.data()), static_cast<uInt>(packed.size())))
      where.fail("page", "has another checksum than in its header");
    if (page.type != kDataPage && page.type != kDictionaryPage && page.type != kDataPage2) continue;
    const auto codec = static_cast<ParquetCodec>(chunks[chunk - 1].codec);
    const auto size = static_cast<std::uint64_t>(page.size);
    if (page.values < 0 || static_cast<std::uint64_t>(page.values) > kMaxPageValues)
      where.fail("values", str("are ", page.values, ": must be 0 to ", kMaxPageValues));
    if (page.type == kDictionaryPage) {
      if (dictionary_bytes) where.fail("page", "is a second dictionary");
      dictionary_bytes = std::make_shared<const std::string>(parquet_unpack(codec, packed, size, where));
      io::Reader in(std::as_bytes(std::span(*dictionary_bytes)), name, where.offset());
      const auto entries = static_cast<std::size_t>(page.values);
      const auto strings = parquet_strings(ParquetEncoding::plain, in, entries, {});
      for (std::size_t i = 0; i < entries; ++i) dictionary.push_back(strings->next());
      continue;
    }
    if (static_cast<std::uint64_t>(page.values) > values_left)
      where.fail("values", str("are ", page.values, ", the row group has ", values_left, " left"));
    std::string data;
    if (page.type == kDataPage2) {  // levels are not packed
      const std::int64_t levels = page.definition_bytes + page.repetition_bytes;
      if (page.definition_bytes < 0 || page.repetition_bytes != 0 || levels > page.size || levels > page.packed_size)
        where.fail("levels", str("take ", page.definition_bytes, " and ", page.repetition_bytes, " bytes of a page of ",
                                 page.size));
      const auto front = static_cast<std::size_t>(levels);
      data = packed.substr(0, front);
      data += parquet_unpack(page.is_packed ? codec : ParquetCodec::none, packed.substr(front), size - front, where);
    } else {
      data = parquet_unpack(codec, packed, size, where);
    }
    start(std::move(data), page, where);
    values_left -= static_cast<std::uint64_t>(page.values);
    if (page.values > 0) return true;
  }
}

void ParquetFile::State::start(std::string unpacked, const PageHeader& page, const io::Reader& where) {
  const auto held = std::make_shared<const Page::Held>(Page::Held{std::move(unpacked), dictionary_bytes});
  io::Reader in(std::as_bytes(std::span(held->data)), name, where.offset());
  open = {.held = held, .rows = static_cast<std::uint64_t>(page.values)};
  std::size_t present = open.rows;
  if (is_optional) {
    const io::Reader of_levels = page.type == kDataPage2
                                     ? in.part(static_cast<std::uint64_t>(page.definition_bytes), "levels")
                                     : in.part(in.u32("bytes of levels"), "levels");
    open.levels.emplace(of_levels, 1);
    HybridNumbers counted = *open.levels;
    present = 0;
    for (std::uint64_t i = 0; i < open.rows; ++i) present += counted.next() == 1 ? 1 : 0;
  } else if (page.type == kDataPage2) {
    in.part(static_cast<std::uint64_t>(page.definition_bytes), "levels");
  }
  if (present == 0) return;
  const auto encoding = static_cast<ParquetEncoding>(page.encoding);
  if (!dictionary_bytes &&
      (encoding == ParquetEncoding::plain_dictionary || encoding == ParquetEncoding::rle_dictionary))
    where.fail("page", "needs a dictionary, and there is none before it");
  open.strings = parquet_strings(encoding, in, present, dictionary);
  if (!open.strings)
    throw InputError(str("[", name, "] column \"", column, "\": has Parquet's encoding ", page.encoding,
                         ": must be PLAIN, dictionary, DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY"));
}

/// Some of the remaining values of the open page.
ParquetValues ParquetFile::State::next_values() {
  struct Piece {
    std::shared_ptr<const Page::Held> page;
    std::string made{};
  };
  const auto piece = std::make_shared<Piece>(Piece{open.held});
  ParquetValues out{.owner = piece};
  const bool is_made = open.strings && open.strings->is_made();
  std::vector<std::size_t> ends;  // of values that are built here
  std::size_t bytes = 0;
  for (; open.rows > 0 && bytes < kBatchBytes && out.rows.size() < kBatchValues; --open.rows) {
    ++row;
    if (open.levels && open.levels->next() != 1) continue;
    const std::string_view value = open.strings->next();
    bytes += value.size();
    out.rows.push_back(row);
    if (is_made) {
      piece->made += value;
      ends.push_back(piece->made.size());
    } else {
      out.values.push_back(value);
    }
  }
  const std::string_view made = piece->made;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    out.values.push_back(made.substr(begin, ends[i] - begin));
  }
  return out;
}

ParquetFile::ParquetFile(io::Fs& fs, const io::Path& file, std::string_view column, std::uint64_t max_document_bytes)
    : state_(std::make_unique<State>(fs, file, column, max_document_bytes)) {}
ParquetFile::~ParquetFile() = default;
std::optional<ParquetValues> ParquetFile::next() {
  if (state_->open.rows == 0 && !state_->open_page()) return std::nullopt;
  return state_->next_values();
}
std::uint64_t ParquetFile::stored_bytes() const { return state_->pages ? state_->pages->offset() : 0; }

}  // namespace megalith::data
