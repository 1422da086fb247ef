#include "megalith/checkpoint/safetensors.h"

#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"

namespace megalith::checkpoint {
namespace {

using testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string length_of(std::uint64_t bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(bytes >> (8 * i) & 0xFF);
  return text;
}

/// A whole file: length, header, `data_bytes` bytes.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  return length_of(header.size()) + header + std::string(data_bytes, 'd');
}

SafeTensorsHeader parse(const std::string& file) { return parse_safetensors(bytes_of(file), "x.safetensors"); }

TEST(SafeTensors, ReadsTheExampleOfTheFormat) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[1,16],"data_offsets":[8,40]},)"
      R"("a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}   )";
  const SafeTensorsHeader parsed = parse(file_of(header, 40));
  ASSERT_EQ(parsed.tensors.size(), 2u);
  const TensorInfo* const b = parsed.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::f16);
  EXPECT_EQ(b->shape, (Shape{1, 16}));
  EXPECT_EQ(b->begin, 8 + header.size() + 8);
  EXPECT_EQ(b->end, 8 + header.size() + 40);
  EXPECT_EQ(parsed.find("c"), nullptr);
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
}

TEST(SafeTensors, EmptyOnesAreLegal) {
  EXPECT_TRUE(parse(file_of("{}", 0)).tensors.empty());
  const auto parsed = parse(file_of(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                                    R"("z":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[8,8]}})",
                                    8));
  EXPECT_EQ(parsed.find("s")->shape.rank(), 0);
  EXPECT_EQ(parsed.find("z")->begin, parsed.find("z")->end);
}

struct Hostile {
  const char* what;
  std::string file;
  const char* error;
};

std::string one(const std::string& fields, std::size_t data_bytes = 8) {
  return file_of(R"({"w":{)" + fields + "}}", data_bytes);
}

std::vector<Hostile> hostile_files() {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  std::vector<Hostile> table = {
      {"empty", "", "offset 0, header length: needs 8 bytes, the file has 0 left"},
      {"half a length", std::string("\x02\0\0", 3), "header length: needs 8 bytes"},
      {"length beyond the file", length_of(3) + "{}", "offset 8, header: needs 3 bytes, the file has 2 left"},
      {"length beyond the limit", length_of(100'000'001) + "{}", "header length: 100000001 is above 100000000"},
      {"length 2^64 - 1", length_of(~std::uint64_t{0}) + "{}", "header length: 18446744073709551615 is above"},
      {"no header", file_of("", 0), "must start with {"},
      {"blank in front", file_of(" {}", 0), "must start with {"},
      {"array", file_of("[]", 0), "must start with {"},
      {"broken JSON", file_of(R"({"w":)", 0), "header, line 1, column 5, not valid JSON"},
      {"rest after the object", file_of("{}{}", 0), "not valid JSON"},
      {"NUL after the object", file_of(std::string("{}\0\0", 4), 0), "not valid JSON"},
      {"name not UTF-8", file_of("{\"\xff\":{}}", 0), "not valid JSON"},
      {"deep", file_of(R"({"w":)" + std::string(100000, '[') + "}", 0), "an array is not what the format has here"},
      {"deep objects", file_of(R"({"w":{"dtype":{"x":{}}}})", 0), "tensor \"w\", dtype: an object is not what"},
      {"deep in shape", one(R"("shape":[[2]])"), "tensor \"w\", shape: an array is not what the format has here"},
      {"tensor is null", file_of(R"({"w":null})", 0), "tensor \"w\": null is not what"},
      {"tensor is a text", file_of(R"({"w":"F32"})", 0), "tensor \"w\": \"F32\" is not what"},
      {"name twice", file_of(R"({"w":{)" + good + R"(},"w":{)" + good + "}}", 8), "key \"w\" is there twice"},
      {"empty name twice",
       file_of(R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
               R"("w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
               0),
       "key \"w\" is there twice"},
      {"field twice", one(good + R"(,"dtype":"F32")"), "key \"dtype\" is there twice"},
      {"unknown field", one(good + R"(,"stride":[1])"), "tensor \"w\", stride: is not a field of the format"},
      {"no dtype", one(R"("shape":[2],"data_offsets":[0,8])"), "tensor \"w\", dtype: is missing"},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,8])"), "tensor \"w\", shape: is missing"},
      {"no offsets", one(R"("dtype":"F32","shape":[2])"), "tensor \"w\", data_offsets: is missing"},
      {"unknown dtype", one(R"("dtype":"F4","shape":[2],"data_offsets":[0,8])"),
       "tensor \"w\", dtype: \"F4\" is not one of"},
      {"dtype a number", one(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), "tensor \"w\", dtype: 4 is not what"},
      {"negative size", one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"),
       "tensor \"w\", shape: -2 is not what"},
      {"fractional size", one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "shape: 2.0 is not what"},
      {"size above 2^63", one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"), "is too large"},
      {"size above 2^64", one(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])"), "is not what"},
      {"five dimensions", one(R"("dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8])"), "more than 4 dimensions"},
      {"product overflows to 8", one(R"("dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8])"),
       "must be the bytes of f32 [4294967296, 4294967296, 2]"},
      {"bytes overflow", one(R"("dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8])"),
       "must be the bytes of"},
      {"empty, with strides that overflow",
       one(R"("dtype":"F32","shape":[9223372036854775807,3,0],"data_offsets":[0,0])", 0), "must be the bytes of"},
      {"one offset", one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "data_offsets: must be two numbers"},
      {"no offset", one(R"("dtype":"F32","shape":[2],"data_offsets":[])"), "data_offsets: must be two numbers"},
      {"three offsets", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"),
       "data_offsets: must be two numbers"},
      {"offset negative", one(R"("dtype":"F32","shape":[2],"data_offsets":[-1,8])"), "data_offsets: -1 is not what"},
      {"end before begin",
       one(R"("dtype":"F32","shape":[0],"data_offsets":[0,0]},"v":{"dtype":"F32","shape":[2],)"
           R"("data_offsets":[0,18446744073709551615])"),
       "the file has 8 bytes of data"},
      {"too few bytes", one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "must be the bytes of f32 [3]"},
      {"too many bytes", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"), "must be the bytes of f32 [1]"},
      {"starts with a gap", one(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])", 12), "must begin at 0"},
      {"data left over", one(good, 9), "the tensors end after 8 bytes of data, the file has 9"},
      {"data missing", one(good, 7), "data_offsets = [0, 8]: the file has 7 bytes of data"},
      {"gap", file_of(R"({"a":{)" + good + R"(},"b":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}})", 10),
       "tensor \"b\", data_offsets = [9, 10]: must begin at 8, where the one before ends"},
      {"overlap", file_of(R"({"a":{)" + good + R"(},"b":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}})", 8),
       "tensor \"b\", data_offsets = [7, 8]: must begin at 8"},
      {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "is there twice"},
      {"metadata key twice", file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "is there twice"},
      {"metadata a number", file_of(R"({"__metadata__":{"a":1}})", 0), "1 is not what"},
      {"metadata deep", file_of(R"({"__metadata__":{"a":{}}})", 0), "an object is not what"},
      {"metadata an array", file_of(R"({"__metadata__":[]})", 0), "an array is not what"}};
  return table;
}

TEST(SafeTensors, HostileFilesAreRefusedWithTheReason) {
  for (const Hostile& hostile : hostile_files()) {
    const std::string error = error_of<InputError>([&] { parse(hostile.file); });
    EXPECT_THAT(error, HasSubstr(hostile.error)) << hostile.what;
    EXPECT_THAT(error, HasSubstr("[x.safetensors]")) << hostile.what;
  }
}

TEST(SafeTensors, EveryTruncationIsRefused) {
  const std::string file = one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  for (std::size_t size = 0; size < file.size(); ++size) EXPECT_THROW(parse(file.substr(0, size)), InputError) << size;
  EXPECT_NO_THROW(parse(file));
}

// A mutated file is refused with an InputError or is a file whose tensors lie inside it; nothing else may happen.
TEST(SafeTensors, RandomMutationsNeverLeaveTheFile) {
  const std::string file = file_of(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,2],)"
      R"("data_offsets":[8,16]}})",
      16);
  std::mt19937_64 random(23);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mutant = file;
    for (std::uint64_t i = 0; i <= random() % 3; ++i) {
      const std::size_t at = random() % mutant.size();
      switch (random() % 4) {
        case 0:
          mutant[at] = static_cast<char>(random());
          break;
        case 1:
          mutant.erase(at, random() % 4);
          break;
        case 2:
          mutant.insert(at, mutant.substr(random() % mutant.size(), random() % 8));
          break;
        default:
          mutant[at] = "0123456789[]{},:\""[random() % 17];
          break;
      }
      if (mutant.empty()) mutant = "x";
    }
    try {
      for (const TensorInfo& info : parse(mutant).tensors) {
        ASSERT_LE(info.begin, info.end);
        ASSERT_LE(info.end, mutant.size());
        ASSERT_EQ(static_cast<std::uint64_t>(info.shape.numel() * size_of(info.dtype)), info.end - info.begin);
      }
      ++accepted;
    } catch (const InputError&) {  // refused
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 15000);
}

TEST(SafeTensorsWriter, WritesWhatTheReaderReads) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  std::vector<double> a = {1, 2, 3};
  std::vector<std::uint8_t> b = {4, 5};
  SafeTensorsWriter writer(*fs, dir / "w.safetensors",
                           {{"a \"x\" \xc3\xa9", DType::f64, {3}}, {"b", DType::u8, {1, 2}}});
  writer.write(Tensor(a.data(), {3}, DType::f64));
  writer.write(Tensor(b.data(), {2}, DType::u8));
  const io::FileChecksums checksums = writer.finish();

  const io::MappedFile file = fs->map(dir / "w.safetensors");
  EXPECT_EQ(checksums.bytes, file.bytes().size());
  EXPECT_EQ(checksums.blocks, std::vector<io::Hash128>{io::checksum(file.bytes())});
  const SafeTensorsHeader header = parse_safetensors(file.bytes(), "w");
  const TensorInfo* const info = header.find("a \"x\" \xc3\xa9");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->begin % 8, 0u);
  EXPECT_EQ(std::memcmp(file.bytes().data() + info->begin, a.data(), 24), 0);
  EXPECT_EQ(header.find("b")->shape, (Shape{1, 2}));
}

TEST(SafeTensorsWriter, RefusesWhatWasNotAnnounced) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  std::vector<float> a(4);
  EXPECT_THROW(SafeTensorsWriter(*fs, dir / "1", {{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}), InternalError);
  EXPECT_THROW(SafeTensorsWriter(*fs, dir / "2", {{"\xff", DType::f32, {1}}}), InternalError);
  EXPECT_TRUE(fs->list(dir.path()).empty());  // refused before a file exists
  SafeTensorsWriter writer(*fs, dir / "3", {{"a", DType::f32, {3}}});
  EXPECT_THROW(writer.finish(), InternalError);
  EXPECT_THROW(writer.write(Tensor(a.data(), {4}, DType::f32)), ShapeError);
  SafeTensorsWriter parts(*fs, dir / "4", {{"none", DType::f32, {0, 3}}, {"a", DType::f32, {3}}});
  parts.write(Tensor(a.data(), {2}, DType::f32));
  EXPECT_THROW(parts.finish(), InternalError) << "an element is missing";
  EXPECT_THROW(parts.write(Tensor(a.data(), {1}, DType::f64)), ShapeError);
}

}  // namespace
}  // namespace megalith::checkpoint
