#include "megalith/data/parquet_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/data/document_reader.h"
#include "megalith/data/parquet_page.h"

#include "tests/io/temp_dir.h"
#include "tests/test_data.h"

namespace megalith::data {
namespace {

using Rows = std::vector<std::pair<std::uint64_t, std::string>>;

io::Path test_file(const std::string& name) { return io::Path(MEGALITH_TEST_DATA) / "parquet" / name; }

Rows rows_of(const io::Path& file, const std::string& column = "text") {
  const auto fs = io::posix_fs();
  ParquetFile parquet(*fs, file, column);
  Rows rows;
  while (const auto page = parquet.next()) {
    EXPECT_EQ(page->values.size(), page->rows.size());
    for (std::size_t i = 0; i < page->values.size(); ++i) rows.emplace_back(page->rows[i], page->values[i]);
  }
  return rows;
}

const Rows& expected() {
  static const Rows rows = [] {
    Rows all;
    std::ifstream in(test_file("texts.jsonl"));
    std::string line;
    for (std::uint64_t row = 1; std::getline(in, line); ++row)
      if (const auto text = nlohmann::json::parse(line)["text"]; !text.is_null()) all.emplace_back(row, text);
    return all;
  }();
  return rows;
}

TEST(ParquetFile, IsReadInEveryForm) {
  ASSERT_EQ(expected().size(), 86u);
  for (const char* name :
       {"none_v1", "none_v2", "snappy_v1", "snappy_v2", "gzip_v1", "gzip_v2", "zstd_v1", "zstd_v2", "plain", "groups",
        "dictionary_groups", "pages", "delta_length_byte_array", "delta_byte_array"})
    EXPECT_EQ(rows_of(test_file(str(name, ".parquet"))), expected()) << name;
  const Rows required = rows_of(test_file("required.parquet"));
  EXPECT_EQ(required.size(), 100u);
  for (const auto& row : expected()) EXPECT_EQ(required[row.first - 1], row);
}

TEST(ParquetFile, RowsAreDocuments) {
  const auto fs = io::posix_fs();
  DocumentReader reader(*fs, test_file("snappy_v1.parquet"), {});
  DocumentText text("text");
  Rows rows;
  while (const auto block = reader.next())
    for (const RawDocument& document : block->documents) rows.emplace_back(document.line, text.of(*block, document));
  EXPECT_EQ(rows, expected());
}

TEST(ParquetFile, WhatIsNotReadIsNamed) {
  const auto error = [](const std::string& name, const std::string& column) {
    return error_of<InputError>([&] { rows_of(test_file(name), column); });
  };
  EXPECT_NE(error("plain.parquet", "txt").find("has no column \"txt\"; did you mean text? --key, or data.key"),
            std::string::npos);
  EXPECT_NE(error("plain.parquet", "tags").find("is nested or repeated"), std::string::npos);
  EXPECT_NE(error("plain.parquet", "element").find("has no column"), std::string::npos) << "within tags";
  EXPECT_NE(error("plain.parquet", "id").find("must hold strings"), std::string::npos);
  EXPECT_NE(error("brotli.parquet", "text").find("codec 4: must be uncompressed, snappy, gzip or zstd"),
            std::string::npos);
}

// Whatever is cut or flipped, the rows are those of the file or an error names the place: no crash, no huge allocation.
TEST(ParquetFile, DamageIsAnErrorOrDoesNotMatter) {
  TempDir dir;
  for (const char* name : {"gzip_v1", "snappy_v2", "zstd_v1", "pages", "delta_byte_array", "plain"}) {
    const std::string good = read_all(test_file(str(name, ".parquet")));
    for (std::size_t size = 0; size < good.size(); size += 1 + size / 40) {
      write_all(dir / "cut.parquet", good.substr(0, size));
      EXPECT_NE(error_of<InputError>([&] { rows_of(dir / "cut.parquet"); }), "") << name << ' ' << size;
    }
    const RandomSite site{.seed = good.size()};
    int found = 0;
    for (std::uint64_t i = 0; i < 600; ++i) {
      std::string flipped = good;
      // Half of the flips in the footer, where the sizes stand.
      const std::size_t at = i % 2 == 0 ? site.word(2 * i) % good.size() : good.size() - 1 - site.word(2 * i) % 700;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << site.word(2 * i + 1) % 8));
      write_all(dir / "flipped.parquet", flipped);
      found += error_of<InputError>([&] { rows_of(dir / "flipped.parquet"); }).empty() ? 0 : 1;
    }
    EXPECT_GT(found, 60) << name << ": the test reaches the checks";
  }
}

TEST(ParquetFile, ALyingFooterLengthIsRefused) {
  TempDir dir;
  std::string file = read_all(test_file("plain.parquet"));
  for (const unsigned length : {0xFFFFFFFFu, 0x7FFFFFFFu, static_cast<unsigned>(file.size())}) {
    std::string lying = file;
    for (std::size_t byte = 0; byte < 4; ++byte) lying[lying.size() - 8 + byte] = static_cast<char>(length >> 8 * byte);
    write_all(dir / "lying.parquet", lying);
    EXPECT_NE(error_of<InputError>([&] { rows_of(dir / "lying.parquet"); }).find("footer length: is"),
              std::string::npos);
  }
}

/// What Thrift's compact protocol writes, as far as the file below needs it.
class Thrift {
 public:
  Thrift& number(int field, std::int64_t value) {
    return head(field, 6).varint(static_cast<std::uint64_t>(value) << 1);
  }
  Thrift& text(int field, const std::string& value) { return head(field, 8).bytes(value); }
  Thrift& structure(int field, const Thrift& value) { return head(field, 12).raw(value.end()); }
  Thrift& structures(int field, const std::vector<Thrift>& values) {
    head(field, 9).raw({static_cast<char>(values.size() << 4 | 12)});
    for (const Thrift& value : values) raw(value.end());
    return *this;
  }
  Thrift& texts(int field, const std::string& value) { return head(field, 9).raw("\x18").bytes(value); }
  std::string end() const { return out_ + '\0'; }

 private:
  Thrift& head(int field, int type) {
    out_ += static_cast<char>((field - last_) << 4 | type);
    last_ = field;
    return *this;
  }
  Thrift& varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) out_ += static_cast<char>(value | 128);
    out_ += static_cast<char>(value);
    return *this;
  }
  Thrift& bytes(const std::string& value) { return varint(value.size()).raw(value); }
  Thrift& raw(const std::string& value) {
    out_ += value;
    return *this;
  }
  std::string out_;
  int last_ = 0;
};

/// A column `text` whose only page has `rows` times the only entry of its dictionary.
std::string one_value_often(const std::string& value, std::uint64_t rows) {
  const auto le32 = [](std::uint64_t number) {
    std::string bytes;
    for (int byte = 0; byte < 4; ++byte) bytes += static_cast<char>(number >> 8 * byte);
    return bytes;
  };
  const auto page = [](int type, int field, std::uint64_t values, int encoding, const std::string& data) {
    const auto size = static_cast<std::int64_t>(data.size());
    const Thrift numbers = Thrift().number(1, static_cast<std::int64_t>(values)).number(2, encoding);
    return Thrift().number(1, type).number(2, size).number(3, size).structure(field, numbers).end() + data;
  };
  std::string run{1};  // bits of an index
  for (std::uint64_t head = rows << 1; head > 0; head >>= 7)
    run += static_cast<char>((head & 127) | (head >= 128 ? 128 : 0));
  run += '\0';
  const std::string pages = page(2, 7, 1, 0, le32(value.size()) + value) + page(0, 5, rows, 8, run);
  const auto count = static_cast<std::int64_t>(rows);
  const Thrift column = Thrift()
                            .number(1, 6)
                            .texts(3, "text")
                            .number(4, 0)
                            .number(5, count)
                            .number(7, static_cast<std::int64_t>(pages.size()))
                            .number(9, 4);
  const Thrift group =
      Thrift().structures(1, {Thrift().number(2, 4).structure(3, column)}).number(2, 1).number(3, count);
  const Thrift root = Thrift().text(4, "schema").number(5, 1);
  const Thrift text = Thrift().number(1, 6).number(3, 0).text(4, "text");
  const std::string footer =
      Thrift().number(1, 1).structures(2, {root, text}).number(3, count).structures(4, {group}).end();
  return "PAR1" + pages + footer + le32(footer.size()) + "PAR1";
}

// 16 million rows in 100 bytes, and rows of a megabyte each: what is held at a time does not follow what a page claims.
TEST(ParquetFile, APageIsHandedOutInPieces) {
  TempDir dir;
  const auto fs = io::posix_fs();
  for (const auto& [value, rows] : {std::pair{std::string("ab"), std::uint64_t{1} << 24},
                                    std::pair{std::string(700'000, 'a'), std::uint64_t{2000}}}) {
    write_all(dir / "often.parquet", one_value_often(value, rows));
    ParquetFile parquet(*fs, dir / "often.parquet", "text");
    std::uint64_t row = 0;
    while (const auto piece = parquet.next()) {
      ASSERT_LE(piece->values.size(), std::size_t{1} << 14);
      ASSERT_LE(piece->values.size() * value.size(), std::size_t{2} << 20);
      for (std::size_t i = 0; i < piece->rows.size(); ++i) {
        ASSERT_EQ(piece->rows[i], ++row);
        ASSERT_TRUE(piece->values[i].size() == value.size() && piece->values[i][0] == 'a') << row;
      }
    }
    EXPECT_EQ(row, rows);
  }
  write_all(dir / "more.parquet", one_value_often("ab", (std::uint64_t{1} << 24) + 1));
  EXPECT_NE(error_of<InputError>([&] { rows_of(dir / "more.parquet"); }).find("must be 0 to 16777216"),
            std::string::npos);
}

std::vector<std::uint32_t> hybrid(const std::vector<int>& bytes, int width, std::size_t count) {
  std::string data;
  for (const int byte : bytes) data += static_cast<char>(byte);
  HybridNumbers numbers(io::Reader(std::as_bytes(std::span(data)), "page"), width);
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(numbers.next());
  return out;
}

TEST(ParquetPage, HybridOfRunsAndPackedNumbers) {
  using Numbers = std::vector<std::uint32_t>;
  EXPECT_EQ(hybrid({0x03, 0x88, 0xC6, 0xFA}, 3, 8), (Numbers{0, 1, 2, 3, 4, 5, 6, 7})) << "the format's own example";
  EXPECT_EQ(hybrid({0x08, 0x05, 0x04, 0x01}, 3, 6), (Numbers{5, 5, 5, 5, 1, 1}));
  EXPECT_EQ(hybrid({0x06}, 0, 3), (Numbers{0, 0, 0}));
  EXPECT_NE(error_of<InputError>([] { hybrid({0x03, 0x88}, 3, 8); }), "");
  EXPECT_NE(error_of<InputError>([] { hybrid({0x00, 0x01}, 3, 8); }), "") << "an empty run would go on for ever";
  EXPECT_NE(error_of<InputError>([] { hybrid({0x01}, 3, 8); }), "");
  EXPECT_NE(error_of<InputError>([] { hybrid({}, 3, 1); }), "");
}

TEST(ParquetPage, DictionaryIndexesAreInRange) {
  const std::string data{"\x02\x04\x02", 3};  // 2 bits, a run of two times 2
  const auto read = [&](std::size_t entries) {
    const std::vector<std::string_view> dictionary(entries, "x");
    const auto strings = parquet_strings(ParquetEncoding::rle_dictionary,
                                         io::Reader(std::as_bytes(std::span(data)), "page"), 2, dictionary);
    return str(strings->next(), strings->next());
  };
  EXPECT_EQ(read(3), "xx");
  EXPECT_NE(error_of<InputError>([&] { read(2); }).find("is 2, the dictionary has 2 entries"), std::string::npos);
}

}  // namespace
}  // namespace megalith::data
