#include "megalith/io/reader.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Reader, LittleEndianIntegers) {
  Reader reader(bytes_of("\x01\x02\x03\x04\x05\x06\x07\x08\xff\xff\xff\xff\xfe\xff\x80"), "f");
  EXPECT_EQ(reader.u64("a"), 0x0807060504030201u);
  EXPECT_EQ(reader.i32("b"), -1);
  EXPECT_EQ(reader.u16("c"), 0xfffeu);
  EXPECT_EQ(reader.u8("d"), 0x80u);
  EXPECT_TRUE(reader.at_end());
  EXPECT_NO_THROW(reader.expect_end("d"));
}

TEST(Reader, NeverReadsPastTheEnd) {
  Reader reader(bytes_of("abc"), "x.bin", 100);
  EXPECT_EQ(reader.u8("first"), 'a');
  EXPECT_EQ(error_of<InputError>([&] { reader.u32("size"); }),
            "[x.bin] offset 101, size: needs 4 bytes, the file has 2 left");
  EXPECT_EQ(error_of<InputError>([&] { reader.bytes(~std::uint64_t{0}, "all"); }),
            "[x.bin] offset 101, all: needs 18446744073709551615 bytes, the file has 2 left");
  EXPECT_EQ(reader.text(2, "rest"), "bc");  // a failed read moves nothing
  EXPECT_EQ(error_of<InputError>([&] { reader.u8("more"); }),
            "[x.bin] offset 103, more: needs 1 bytes, the file has 0 left");
}

TEST(Reader, ProvesClaimedCountsWithoutOverflow) {
  const Reader reader(bytes_of("12345678"), "x");
  EXPECT_EQ(reader.count(2, 4, "n"), 2u);
  EXPECT_EQ(reader.count(0, 16, "n"), 0u);
  EXPECT_EQ(error_of<InputError>([&] { reader.count(3, 4, "n"); }),
            "[x] offset 0, n: 3 elements of 4 bytes are claimed, the file has 8 bytes left");
  EXPECT_THROW(reader.count(std::uint64_t{1} << 62, 8, "n"), InputError);  // the product is 0 modulo 2^64
}

TEST(Reader, PartsKeepOffsetsOfTheFile) {
  Reader reader(bytes_of("headbodytail"), "x");
  reader.bytes(4, "head");
  Reader body = reader.part(4, "body");
  EXPECT_EQ(reader.offset(), 8u);
  EXPECT_EQ(body.text(2, "bo"), "bo");
  EXPECT_EQ(error_of<InputError>([&] { body.expect_end("body"); }),
            "[x] offset 6, body: ends here, but 2 bytes follow");
  EXPECT_EQ(error_of<InputError>([&] { body.u64("n"); }), "[x] offset 6, n: needs 8 bytes, the file has 2 left");
}

TEST(Reader, Lines) {
  Reader reader(bytes_of("one\r\n\ntwo\n\nlast"), "vocab.txt");
  EXPECT_EQ(reader.next_line(), "one");
  EXPECT_EQ(reader.next_line(), "");
  EXPECT_EQ(reader.next_line(), "two");
  EXPECT_EQ(reader.next_line(), "");
  EXPECT_EQ(reader.next_line(), "last");
  EXPECT_EQ(reader.line(), 5u);
  EXPECT_EQ(reader.next_line(), std::nullopt);
  EXPECT_EQ(error_of<InputError>([&] { reader.fail("token", "is empty"); }), "[vocab.txt] line 5, token: is empty");
  Reader ended(bytes_of("a\n"), "x");
  EXPECT_EQ(ended.next_line(), "a");
  EXPECT_EQ(ended.next_line(), std::nullopt);
}

TEST(Printable, ShowsAnythingOnOneLine) {
  EXPECT_EQ(printable("tab\t, nul" + std::string(1, '\0') + ", \xc3\xa9, \xff"), "tab\\x09, nul\\x00, \xc3\xa9, \\xff");
  EXPECT_EQ(printable(std::string(100, 'a'), 10), "aaaaaaaaaa...");
}

}  // namespace
}  // namespace megalith::io
