#include "megalith/data/byte_source.h"

#include <functional>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/data/document_reader.h"

#include "tests/io/temp_dir.h"
#include "tests/support/compressed.h"

namespace megalith::data {
namespace {

struct Packer {
  const char* name;
  std::function<std::string(std::string_view)> pack;
};
const std::vector<Packer>& packers() {
  static const std::vector<Packer> all{{".gz", support::gzip}, {".zst", support::zstd}, {".xz", support::xz}};
  return all;
}

class Bytes : public ::testing::Test {
 protected:
  io::Path file(const std::string& name, const std::string& contents) {
    write_all(dir_ / name, contents);
    return dir_ / name;
  }
  /// All bytes, taken `step` at a time, while the blocks are held.
  std::string read(const io::Path& path, std::size_t step) {
    const auto source = open_bytes(*fs_, path);
    std::vector<ByteBlock> blocks;
    for (;;) {
      while (source->window().size() < step && source->extend()) {
      }
      if (source->window().empty()) break;
      blocks.push_back(source->take(std::min(step, source->window().size())));
    }
    std::string out;
    for (const ByteBlock& block : blocks) out += block.bytes;
    return out;
  }
  std::string error(const std::string& name, const std::string& contents) {
    return error_of<InputError>([&] { read(file(name, contents), 1000); });
  }

  TempDir dir_;
  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
};

std::string text_of(std::size_t bytes) {
  std::string text;
  const RandomSite site{.seed = bytes};
  for (std::uint64_t i = 0; text.size() < std::min(bytes, std::size_t{1} << 20); ++i)
    text += str(site.word(i) % 5000, ' ');
  while (text.size() < bytes) text += text;
  text.resize(bytes);
  return text;
}

TEST_F(Bytes, AreThoseOfTheFileWhateverTheSteps) {
  for (const std::size_t size : {0, 1, 1000, 5 << 20}) {
    const std::string text = text_of(size);
    for (const std::size_t step : {777, 1 << 20, 3 << 20}) {
      EXPECT_EQ(read(file("plain", text), step), text);
      for (const Packer& packer : packers())
        EXPECT_EQ(read(file("packed", packer.pack(text)), step), text) << packer.name << size << ' ' << step;
    }
  }
  const std::string large = text_of(40 << 20);  // the mapping is renewed twice
  EXPECT_EQ(read(file("plain", large), 1 << 20), large);
}

TEST_F(Bytes, SeveralFramesInARowAreOneText) {
  for (const Packer& packer : packers()) {
    std::string packed, want;
    for (int i = 0; i < 20; ++i) {
      const std::string part = i % 5 == 0 ? "" : text_of(static_cast<std::size_t>(1000 * i));
      packed += packer.pack(part);
      want += part;
    }
    EXPECT_EQ(read(file("packed", packed), 4096), want) << packer.name;
  }
}

TEST_F(Bytes, ContentDecidesNotTheName) {
  EXPECT_EQ(read(file("a.gz", "plain text"), 100), "plain text");
  EXPECT_EQ(read(file("a.txt", support::zstd("text")), 100), "text");
  EXPECT_EQ(error("empty.gz", ""),
            str("[", (dir_ / "empty.gz").string(), "] is empty: a .gz file has at least a header"));
  EXPECT_NE(error("a", "%PDF-1.7").find("is a PDF file"), std::string::npos);
  EXPECT_NE(error("a.warc", "WARC/1.0\r\n").find("is a WARC file"), std::string::npos);
  EXPECT_NE(error("a.warc.gz", support::gzip("WARC/1.0\r\n")).find("is a WARC file"), std::string::npos);
  EXPECT_NE(error("a.bz2", "BZh91AY").find("bzip2"), std::string::npos);
}

TEST_F(Bytes, WhatIsCutIsRefused) {
  const std::string text = text_of(20000);
  for (const Packer& packer : packers()) {
    const std::string packed = packer.pack(text);
    for (std::size_t size = 7; size < packed.size(); size += 1 + packed.size() / 200)
      EXPECT_NE(error("cut", packed.substr(0, size)).find("the compressed file: "), std::string::npos)
          << packer.name << ' ' << size;
    EXPECT_NE(error("cut", packed + packed.substr(0, 9)).find("the compressed file: "), std::string::npos);
    EXPECT_NE(error("junk", packed + "and more").find("the compressed file: "), std::string::npos) << packer.name;
  }
}

// Within the first piece that is read, too: a decoder finds it in its block of at most 128 KiB, or by the checksum.
TEST_F(Bytes, DamageIsPlacedWhereItIsFound) {
  const RandomSite site{.seed = 3};
  std::string text;
  for (std::uint64_t i = 0; text.size() < 600'000; ++i) text += str(site.word(i), ' ');
  for (const Packer& packer : packers()) {
    std::string packed = packer.pack(text);
    ASSERT_GT(packed.size(), 200'000u);
    ASSERT_LT(packed.size(), 1u << 20);
    const std::size_t at = packed.size() - 20'000;
    packed[at] = static_cast<char>(packed[at] ^ 0x10);
    const std::string message = error("damaged", packed), before = "] at byte ";
    ASSERT_NE(message.find(before), std::string::npos) << message;
    const std::size_t place = std::stoul(message.substr(message.find(before) + before.size()));
    EXPECT_GE(place + (128 << 10), at) << packer.name;
    EXPECT_LE(place, packed.size()) << packer.name;
  }
}

// A frame without a byte, with the checksum of none. The library itself compares the sizes where it has room for
// what the header promises.
TEST_F(Bytes, AZstdFrameOfAnotherSizeThanItsHeaderPromisesIsRefused) {
  const auto frame = [](std::uint32_t size) {
    std::string bytes("\x28\xb5\x2f\xfd\xa4", 5);
    for (int byte = 0; byte < 4; ++byte) bytes += static_cast<char>(size >> 8 * byte);
    return bytes + std::string("\x01\0\0\x99\xe9\xd8\x51", 7);
  };
  EXPECT_EQ(read(file("empty", support::zstd("text") + frame(0)), 10), "text");
  for (const std::uint32_t size : {559'903u, 4u << 20})
    EXPECT_NE(error("lies", support::zstd("text") + frame(size)).find("the zstd data is damaged"), std::string::npos);
}

// A flipped bit is found, or does not matter: gzip's header holds times and names that nothing depends on.
TEST_F(Bytes, AFlippedBitIsFound) {
  const std::string text = text_of(3000);
  for (const Packer& packer : packers()) {
    const std::string packed = packer.pack(text);
    int found = 0;
    for (std::size_t bit = 0; bit < 8 * packed.size(); bit += 3) {
      std::string flipped = packed;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
      write_all(dir_ / "flipped", flipped);
      std::string got;
      if (error_of<InputError>([&] { got = read(dir_ / "flipped", 1000); }).empty() && bit >= 48)
        EXPECT_EQ(got, text) << packer.name << " bit " << bit;
      else
        ++found;
    }
    EXPECT_GT(found, static_cast<int>(8 * packed.size() / 3 * 9 / 10)) << packer.name;
  }
}

TEST_F(Bytes, DocumentsAreTheSameFromEveryPacking) {
  std::string lines;
  for (int i = 0; i < 2000; ++i)
    lines += str("{\"n\": ", i, ", \"text\": \"", text_of(static_cast<std::size_t>(i % 700)), "\"}\n");
  const auto texts = [&](const std::string& name, const std::string& contents) {
    DocumentReader reader(*fs_, file(name, contents), {.block_bytes = 10000});
    DocumentText text("text");
    std::vector<std::string> out;
    while (const auto block = reader.next())
      for (const RawDocument& document : block->documents) out.emplace_back(text.of(*block, document));
    return out;
  };
  const auto want = texts("a.jsonl", lines);
  ASSERT_EQ(want.size(), 2000u);
  for (const Packer& packer : packers())
    EXPECT_EQ(texts(str("a.jsonl", packer.name), packer.pack(lines)), want) << packer.name;
}

}  // namespace
}  // namespace megalith::data
