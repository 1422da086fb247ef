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
  for (const char* name : {"none_v1", "none_v2", "snappy_v1", "snappy_v2", "gzip_v1", "gzip_v2", "zstd_v1", "zstd_v2",
                           "plain", "groups", "pages", "delta_length_byte_array", "delta_byte_array"})
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
  EXPECT_NE(error("plain.parquet", "txt").find("has no column \"txt\"; did you mean text?; --key names the column"),
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

std::vector<std::uint32_t> hybrid(const std::vector<int>& bytes, int width, std::size_t count) {
  std::string data;
  for (const int byte : bytes) data += static_cast<char>(byte);
  io::Reader in(std::as_bytes(std::span(data)), "page");
  std::vector<std::uint32_t> out;
  read_hybrid(in, width, count, out);
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
    io::Reader in(std::as_bytes(std::span(data)), "page");
    return ParquetStrings::from_dictionary(in, 2, std::vector<std::string_view>(entries, "x")).size();
  };
  EXPECT_EQ(read(3), 2u);
  EXPECT_NE(error_of<InputError>([&] { read(2); }).find("is 2, the dictionary has 2 entries"), std::string::npos);
}

}  // namespace
}  // namespace megalith::data
