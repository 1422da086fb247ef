#include "megalith/io/checksum.h"

#include <random>

#include <gtest/gtest.h>

namespace megalith::io {
namespace {

// What the reference program (xxh128sum) prints for no bytes and for "a".
TEST(Checksum, KnownAnswers) {
  EXPECT_EQ(checksum({}).hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(checksum(std::as_bytes(std::span("a", 1))).hex(), "a96faf705af16834e6c632b61e964e1f");
}

TEST(Checksum, HexAndBack) {
  const Hash128 hash{0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  EXPECT_EQ(hash.hex(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(Hash128::from_hex(hash.hex()), hash);
  for (const char* bad : {"", "0123456789abcdeffedcba987654321", "0123456789abcdeffedcba98765432100",
                          "0123456789ABCDEFfedcba9876543210", "0123456789abcdeffedcba987654321g"}) {
    EXPECT_EQ(Hash128::from_hex(bad), std::nullopt) << bad;
  }
}

std::vector<std::byte> random_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::mt19937_64 random(7);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(BlockChecksums, DoNotDependOnThePieces) {
  const std::vector<std::byte> bytes = random_bytes(2 * kChecksumBlockBytes + 12345);
  const std::span<const std::byte> all(bytes);
  const FileChecksums want{
      bytes.size(),
      {checksum(all.first(kChecksumBlockBytes)), checksum(all.subspan(kChecksumBlockBytes, kChecksumBlockBytes)),
       checksum(all.subspan(2 * kChecksumBlockBytes))}};
  std::mt19937_64 random(11);
  for (const std::size_t largest : {std::size_t{1000}, std::size_t{100000}, std::size_t{5000000}, bytes.size()}) {
    BlockChecksums sums;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = std::min(bytes.size() - at, 1 + random() % largest);
      sums.update(all.subspan(at, size));
      at += size;
    }
    EXPECT_EQ(sums.finish(), want) << largest;
  }
}

TEST(BlockChecksums, ExactBlocksHaveNoEmptyLastOne) {
  const std::vector<std::byte> bytes = random_bytes(kChecksumBlockBytes);
  BlockChecksums sums;
  sums.update(std::span<const std::byte>(bytes).first(5));
  sums.update(std::span<const std::byte>(bytes).subspan(5));
  EXPECT_EQ(sums.finish().blocks, std::vector<Hash128>{checksum(bytes)});
  EXPECT_TRUE(BlockChecksums().finish().blocks.empty());
}

TEST(BlockChecksums, DigestSeesSizeOrderAndValue) {
  const FileChecksums a{10, {{1, 2}, {3, 4}}};
  FileChecksums b = a;
  EXPECT_EQ(a.digest(), b.digest());
  b.bytes = 11;
  EXPECT_NE(a.digest(), b.digest());
  b = {10, {{3, 4}, {1, 2}}};
  EXPECT_NE(a.digest(), b.digest());
}

}  // namespace
}  // namespace megalith::io
