#pragma once
#include <cstdint>
#include <string_view>

#include "megalith/io/reader.h"

namespace megalith::data {

/// Thrift's compact protocol, as far as Parquet's metadata needs it. It is read from a bounded reader, so every error
/// names the place. A struct is read field by field:
///   for (ThriftStruct s(in); s.next();) switch (s.id()) { case 1: x = s.integer(); break; default: s.skip(); }
/// Source: github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
enum class ThriftType : std::uint8_t {
  stop = 0,
  yes = 1,
  no = 2,
  byte = 3,
  i16 = 4,
  i32 = 5,
  i64 = 6,
  floating = 7,
  binary = 8,
  list = 9,
  set = 10,
  map = 11,
  structure = 12
};

inline std::uint64_t thrift_varint(io::Reader& in) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint8_t byte = in.u8("varint");
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  in.fail("varint", "must have at most 10 bytes");
}
inline std::int64_t thrift_zigzag(io::Reader& in) {
  const std::uint64_t value = thrift_varint(in);
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}
inline std::string_view thrift_text(io::Reader& in) { return in.text(thrift_varint(in), "string"); }

/// The head of a list. Each element has at least one byte, so the size is checked before anything is allocated for it.
struct ThriftList {
  ThriftType element = ThriftType::stop;
  std::size_t size = 0;
};
inline ThriftList thrift_list(io::Reader& in) {
  const std::uint8_t head = in.u8("list");
  const std::uint64_t size = head >> 4 == 15 ? thrift_varint(in) : head >> 4;
  return {static_cast<ThriftType>(head & 0x0F), in.count(size, 1, "list")};
}

inline constexpr int kThriftDepth = 16;
inline void thrift_skip(io::Reader& in, ThriftType type, int depth = 0);

class ThriftStruct {
 public:
  explicit ThriftStruct(io::Reader& in) : in_(in) {}

  bool next() {
    const std::uint8_t head = in_.u8("field");
    type_ = static_cast<ThriftType>(head & 0x0F);
    if (type_ == ThriftType::stop) return false;
    if (head >> 4 == 0)
      id_ = static_cast<std::int16_t>(thrift_zigzag(in_));
    else
      id_ = static_cast<std::int16_t>(id_ + (head >> 4));
    return true;
  }
  int id() const { return id_; }
  std::int64_t integer() {
    if (type_ != ThriftType::i16 && type_ != ThriftType::i32 && type_ != ThriftType::i64) fail("must be an integer");
    return thrift_zigzag(in_);
  }
  bool boolean() {
    if (type_ != ThriftType::yes && type_ != ThriftType::no) fail("must be a boolean");
    return type_ == ThriftType::yes;
  }
  std::string_view text() {
    expect(ThriftType::binary, "must be a string");
    return thrift_text(in_);
  }
  /// Throws unless the elements have this type.
  std::size_t list_of(ThriftType element) {
    expect(ThriftType::list, "must be a list");
    const ThriftList list = thrift_list(in_);
    if (list.size > 0 && list.element != element) fail("must be a list of other elements");
    return list.size;
  }
  void expect_structure() { expect(ThriftType::structure, "must be a struct"); }
  void skip(int depth = 0) { thrift_skip(in_, type_, depth); }

 private:
  void expect(ThriftType type, std::string_view rule) {
    if (type_ != type) fail(rule);
  }
  [[noreturn]] void fail(std::string_view rule) const { in_.fail("field " + std::to_string(id_), rule); }

  io::Reader& in_;
  ThriftType type_ = ThriftType::stop;
  std::int16_t id_ = 0;
};

inline void thrift_skip(io::Reader& in, ThriftType type, int depth) {
  if (depth > kThriftDepth) in.fail("field", "is nested too deeply");
  switch (type) {
    case ThriftType::yes:
    case ThriftType::no:
      return;
    case ThriftType::byte:
      in.u8("byte");
      return;
    case ThriftType::i16:
    case ThriftType::i32:
    case ThriftType::i64:
      thrift_varint(in);
      return;
    case ThriftType::floating:
      in.u64("double");
      return;
    case ThriftType::binary:
      thrift_text(in);
      return;
    case ThriftType::list:
    case ThriftType::set: {
      const ThriftList list = thrift_list(in);
      for (std::size_t i = 0; i < list.size; ++i) {
        if (list.element == ThriftType::yes || list.element == ThriftType::no)
          in.u8("boolean");  // in a list a boolean has a byte of its own
        else
          thrift_skip(in, list.element, depth + 1);
      }
      return;
    }
    case ThriftType::map: {
      const std::size_t size = in.count(thrift_varint(in), 2, "map");
      if (size == 0) return;
      const std::uint8_t types = in.u8("map");
      for (std::size_t i = 0; i < size; ++i) {
        thrift_skip(in, static_cast<ThriftType>(types >> 4), depth + 1);
        thrift_skip(in, static_cast<ThriftType>(types & 0x0F), depth + 1);
      }
      return;
    }
    case ThriftType::structure:
      for (ThriftStruct inner(in); inner.next();) inner.skip(depth + 1);
      return;
    case ThriftType::stop:
      break;
  }
  in.fail("field", "has a type that Thrift's compact protocol does not have");
}

}  // namespace megalith::data
