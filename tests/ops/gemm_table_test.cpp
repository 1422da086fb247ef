#include "megalith/ops/gemm_table.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/resealed.h"
#include "tests/io/temp_dir.h"
#include "tests/ops/gemms.h"

namespace megalith::ops {
namespace {

using ::testing::HasSubstr;

GemmTable small_table() {
  GemmTable table{.platform = support::kH200, .products = {}};
  table.products[{.m = 32768, .n = 768, .k = 3072}] = {.id = 66,
                                                       .tile = 20,
                                                       .stages = 36,
                                                       .split_k = 2,
                                                       .reduction = 2,
                                                       .swizzle = 1,
                                                       .custom = 4,
                                                       .inner_shape = 5,
                                                       .cluster_shape = 6,
                                                       .ordinal = 1};
  table.products[{.m = 768,
                  .n = 3072,
                  .k = 32768,
                  .in = DType::f16,
                  .out = DType::f32,
                  .transpose_a = Transpose::yes,
                  .transpose_b = Transpose::yes,
                  .write = Write::accumulate,
                  .epilogue = GemmEpilogue::gelu_backward_bias_grad,
                  .sm_margin = 8,
                  .alignment = 16}] = {.id = 67};
  table.products[{.m = 65536,
                  .n = 512,
                  .k = 1024,
                  .in = DType::u8,
                  .transpose_b = Transpose::yes,
                  .a_scales = ScaleBlocks::vectors,
                  .b_scales = ScaleBlocks::squares}] = {.id = 70};
  return table;
}

TEST(GemmTable, ComesBackFromItsText) {
  EXPECT_EQ(parse_gemm_table(gemm_table_text(small_table()), "t"), small_table());
  const GemmTable empty{.platform = support::kA100, .products = {}};
  EXPECT_EQ(parse_gemm_table(gemm_table_text(empty), "t"), empty);
}

TEST(GemmTable, EqualTablesAreEqualBytes) {
  const GemmTable table = small_table();
  GemmTable backwards{.platform = table.platform, .products = {}};
  for (auto entry = table.products.rbegin(); entry != table.products.rend(); ++entry) backwards.products.insert(*entry);
  EXPECT_EQ(gemm_table_text(backwards), gemm_table_text(table));
  GemmTable other = table;
  other.products.begin()->second.swizzle = 3;
  EXPECT_NE(gemm_table_text(other), gemm_table_text(table));
}

TEST(GemmTable, EveryFlippedBitAndEveryTruncationIsFound) {
  const std::string text = gemm_table_text(small_table());
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_THROW(parse_gemm_table(text.substr(0, i), "t"), InputError) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_THROW(parse_gemm_table(damaged, "t"), InputError) << i << ", bit " << bit;
    }
  }
  EXPECT_THAT(error_of<InputError>([] { parse_gemm_table("", "cache/H200.json"); }),
              HasSubstr("[cache/H200.json] is not a table of GEMM algorithms: it must start with its checksum"));
}

TEST(GemmTable, WrongEntriesAreRefusedWithKeyValueAndRule) {
  const std::string text = gemm_table_text(small_table());
  const std::vector<std::array<std::string, 3>> table = {
      {"\"version\": 2", "\"version\": 1", "[t] version: = 1: this program reads version 2; have the table rebuilt"},
      {"\"gpu\"", "\"cpu\"", "has a key \"cpu\" that version 2 does not have"},
      {"\"m\": 768", "\"m\": 0", "products[0].m: = 0: must be from 1 to 2147483647"},
      {"\"n\": 768", "\"n\": 2147483648", "products[1].n: = 2147483648: must be from 1 to"},
      {"\"k\": 3072", "\"k\": 1.5", "products[1].k: must be an integer"},
      {"\"in\": \"f16\"", "\"in\": \"f64\"", "products[0].in: = f64: must be f32, bf16 or f16"},
      {"\"out\": \"f32\"", "\"out\": \"fp8\"", "products[0].out: = fp8: must be f32, bf16 or f16"},
      {"\"transpose_a\": true", "\"transpose_a\": 1", "products[0].transpose_a: must be true or false"},
      {"\"epilogue\": \"none\"", "\"epilogue\": \"relu\"", "products[1].epilogue: = relu: is not a known epilogue"},
      {"\"left_free\": 8", "\"left_free\": -1", "products[0].left_free: = -1: must be from 0 to 65536"},
      {"\"left_free\": 8", "\"left_free\": true", "products[0].left_free: must be an integer"},
      {"\"alignment\": 16", "\"alignment\": 24", "products[0].alignment: = 24: must be a power of two up to 256"},
      {"\"alignment\": 16", "\"alignment\": 512", "= 512: must be a power of two up to 256"},
      {"\"tile\": 20", "\"tile\": \"20\"", "products[1].algorithm.tile: must be an integer"},
      {"\"tile\": 20", "\"title\": 20", "products[1].algorithm: has a key \"title\""},
      {"\"swizzle\": 1,", "", "products[1].algorithm: has no key \"swizzle\""},
      {"\"m\": 768,", "\"m\": 768, \"m\": 768,", "key \"m\" is there twice"},
      {"\"a_scales\": \"vectors\"", "\"a_scales\": \"rows\"", "products[2].a_scales: = rows: must be vectors or"},
      {"\"b_scales\"", "\"c_scales\"", "products[2]: has a key \"c_scales\" that version 2 does not have"},
      {"\"in\": \"u8\"", "\"in\": \"bf16\"", "products[2]: has a key \"a_scales\" that version 2 does not have"}};
  for (const auto& [from, to, error] : table) {
    EXPECT_THAT(error_of<InputError>([&] { parse_gemm_table(resealed(text, from, to), "t"); }), HasSubstr(error))
        << from << " -> " << to;
  }
}

TEST(GemmTable, AProductThatComesTwiceIsRefused) {
  GemmTable table{.platform = support::kH200, .products = {}};
  table.products[support::product(2)] = {.id = 1};
  table.products[support::product(3)] = {.id = 2};
  const std::string text = resealed(gemm_table_text(table), "\"m\": 3,", "\"m\": 2,");
  EXPECT_THAT(error_of<InputError>([&] { parse_gemm_table(text, "t"); }), HasSubstr("products[1]: is there twice"));
}

TEST(GemmTable, BytesOfOperands) {
  const GemmBytes plain = bytes_of({.m = 2, .n = 3, .k = 5, .in = DType::bf16, .out = DType::f32});
  EXPECT_EQ(plain.a, 20);
  EXPECT_EQ(plain.b, 30);
  EXPECT_EQ(plain.c, 24);
  EXPECT_EQ(plain.vector + plain.activation + plain.a_scales + plain.b_scales, 0);
  const GemmBytes scaled = bytes_of({.m = 130,
                                     .n = 300,
                                     .k = 700,
                                     .in = DType::u8,
                                     .a_scales = ScaleBlocks::vectors,
                                     .b_scales = ScaleBlocks::squares});
  EXPECT_EQ(scaled.a, 130 * 700);
  EXPECT_EQ(scaled.a_scales, 4 * 6 * 130);
  EXPECT_EQ(scaled.b_scales, 4 * 3 * 8) << "rows of scales are padded to 4";
  const auto has = [](GemmEpilogue epilogue) {
    const GemmBytes bytes = bytes_of({.m = 2, .n = 3, .k = 5, .epilogue = epilogue});
    return std::pair(bytes.vector, bytes.activation);
  };
  EXPECT_EQ(has(GemmEpilogue::bias), std::pair(Index{12}, Index{0}));
  EXPECT_EQ(has(GemmEpilogue::bias_gelu), std::pair(Index{12}, Index{12}));
  EXPECT_EQ(has(GemmEpilogue::gelu_backward), std::pair(Index{0}, Index{12}));
  EXPECT_EQ(has(GemmEpilogue::gelu_backward_bias_grad), std::pair(Index{12}, Index{12}));
}

}  // namespace
}  // namespace megalith::ops
