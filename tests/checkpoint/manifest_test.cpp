#include "megalith/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/checkpoint/fixture.h"
#include "tests/io/resealed.h"
#include "tests/io/temp_dir.h"

namespace megalith::checkpoint {
namespace {

using testing::HasSubstr;

ShardReport report_of(const std::string& file, std::vector<TensorSlice> slices, DType dtype = DType::f32) {
  ShardReport report{.file = {file, {100, {{1, 2}}}}, .pieces = {}, .digest = {3, 4}};
  for (TensorSlice& slice : slices) report.pieces.push_back({slice, dtype, slice.name});
  return report;
}

Manifest small_manifest() {
  const std::vector<ShardReport> reports = {
      report_of("b.safetensors", {{"w", {4, 6}, {0, 0}, {4, 3}}, {"bias", {4}, {0}, {4}}}),
      report_of("a.safetensors", {{"w", {4, 6}, {0, 3}, {4, 3}}, {"scale", {}, {}, {}}})};
  return build_manifest(run_state(100), reports);
}

TEST(Manifest, TextReadsBack) {
  const Manifest manifest = small_manifest();
  const std::string text = manifest_text(manifest);
  EXPECT_TRUE(text.starts_with("{\n \"checksum\": \""));
  EXPECT_EQ(parse_manifest(text, "MANIFEST"), manifest);
  ASSERT_NE(manifest.find("w"), nullptr);
  EXPECT_EQ(manifest.find("w")->slices.size(), 2u);
  EXPECT_EQ(manifest.find("v"), nullptr);
  EXPECT_EQ(manifest.bytes(), 200);
  const Digest128 of_a_report{3, 4};
  EXPECT_EQ(manifest.digest, digest_of(run_state(100)) + of_a_report + of_a_report);
}

TEST(Manifest, NotANumberSurvives) {
  Manifest manifest = small_manifest();
  manifest.run.reals = {{"nan", std::numeric_limits<double>::quiet_NaN()}, {"tiny", 5e-324}, {"minus zero", -0.0}};
  const Manifest read = parse_manifest(manifest_text(manifest), "m");
  EXPECT_TRUE(std::isnan(read.run.reals.at("nan")));
  EXPECT_EQ(read.run.reals.at("tiny"), 5e-324);
  EXPECT_TRUE(std::signbit(read.run.reals.at("minus zero")));
}

TEST(Manifest, EveryFlippedBitAndEveryTruncationIsFound) {
  const std::string text = manifest_text(small_manifest());
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_THROW(parse_manifest(text.substr(0, i), "m"), InputError) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(damaged, "m"), InputError) << i << ", bit " << bit;
    }
  }
  EXPECT_THROW(parse_manifest(text + "\n", "m"), InputError);
  EXPECT_THAT(error_of<InputError>([&] { parse_manifest("{}", "root/MANIFEST"); }),
              HasSubstr("[root/MANIFEST] is not a manifest: it must start with its checksum"));
}

TEST(Manifest, HostileTextsAreRefusedWithTheReason) {
  const std::string text = manifest_text(small_manifest());
  const std::vector<std::array<std::string, 3>> table = {
      {"\"step\": 100", "\"step\": -1", "step = -1: must not be negative"},
      {"\"step\": 100", "\"step\": 1.5", "run.step: must be an integer"},
      {"\"step\": 100", "\"step\": 9223372036854775808", "run.step: is too large"},
      {"\"step\": 100", "\"step\": 100, \"step\": 100", "key \"step\" is there twice"},
      {"\"step\": 100", "\"stop\": 100", "has a key \"stop\" that version 2 does not have"},
      {"\"grid\": \"tp2 pp2\",", "", "run: has no key \"grid\""},
      {"\"run\": {", "\"more\": 1, \"run\": {", "has a key \"more\""},
      {"\"sample\": 4096", "\"sample\": \"4096\"", "run.integers.sample: must be an integer"},
      {"\"65536\"", "\"65536x\"", "run.reals.loss_scale: must be a number as text"},
      {"\"65536\"", std::string(100'000, '['), "nested deeper than 64"},
      {"\"65536\"", "\"\xff\"", "not valid JSON"},
      {"\"bytes\": 100", "\"bytes\": -100", "files[0]: bytes must not be negative"},
      {"\"bytes\": 100", "\"bytes\": 4194305", "4194305 bytes need 2 block checksums, there are 1"},
      {"\"bytes\": 100", "\"bytes\": 9223372036854775807", "block checksums, there are 1"},
      {"\"00000000000000010000000000000002\"", "\"0001\"", "must be 32 hexadecimal digits"},
      {"\"name\": \"a.safetensors\"", "\"name\": \"../a\"", "file ../a: must be a name without a path"},
      {"\"name\": \"a.safetensors\"", "\"name\": \"\"", "file : must be a name without a path"},
      {"\"name\": \"a.safetensors\"", "\"name\": \"b.safetensors\"", "file b.safetensors: is there twice"},
      {"\"name\": \"a.safetensors\"", "\"name\": \"aa\"",
       "tensor \"scale\": the slice at [] of [] in a.safetensors: the file"},
      {"\"name\": \"bias\"", "\"name\": \"zias\"", "is there twice or out of order"},
      {"\"dtype\": \"f32\"", "\"dtype\": \"f31\"", "tensors[0].dtype: = f31 is not a known dtype"},
      {"\"shape\": [\n    4\n   ]", "\"shape\": [4, 1, 1, 1, 1]", "tensors[0].shape: has more than 4 dimensions"},
      {"\"shape\": [\n    4\n   ]", "\"shape\": 4", "tensors[0].shape: must be an array"},
      {"\"shape\": [\n    4\n   ]", "\"shape\": [5]", "tensor \"bias\": the slices hold 4 of 5 elements"},
      {"\"shape\": [\n    4\n   ]", "\"shape\": [3]", "leaves the tensor's shape [3]"},
      {"\"shape\": [\n    4\n   ]", "\"shape\": [-4]", "shape [-4] has too many elements"},
      {"\"shape\": [\n    4\n   ]", "\"shape\": [9223372036854775807]", "has too many elements"},
      {"\"offset\": [\n      0\n     ]", "\"offset\": [1]", "leaves the tensor's shape [4]"},
      {"\"offset\": [\n      0\n     ]", "\"offset\": [0, 0]", "offset and shape must have the same length"},
      {"\"offset\": [\n      0,\n      3\n     ]", "\"offset\": [0, 2]", "overlaps the slice at"}};
  for (const auto& [from, to, error] : table) {
    EXPECT_THAT(error_of<InputError>([&, f = from, t = to] { parse_manifest(resealed(text, f, t), "m"); }),
                HasSubstr(error))
        << to;
  }
}

TEST(Manifest, NewerVersionIsRefusedNotDamaged) {
  const std::string text = resealed(manifest_text(small_manifest()), "\"version\": 1", "\"version\": 3");
  EXPECT_EQ(error_of<CheckpointError>([&] { parse_manifest(text, "m"); }),
            "[m] version = 3: this program reads versions 1 to 2; use the program that wrote it, or move its folder "
            "away");
}

TEST(Manifest, OnlyPlainFilesNeedTheSecondVersion) {
  std::vector<ShardReport> reports = {report_of("a.safetensors", {{"w", {4}, {0}, {4}}})};
  const Manifest first = build_manifest(run_state(1), reports);
  EXPECT_NE(manifest_text(first).find("\"version\": 1"), std::string::npos);
  reports.push_back({.file = {"vocab.json", {100, {{1, 2}}}}, .pieces = {}, .digest = {}});
  const Manifest second = build_manifest(run_state(1), reports);
  EXPECT_NE(manifest_text(second).find("\"version\": 2"), std::string::npos);
  EXPECT_EQ(second.digest, first.digest);
  EXPECT_EQ(parse_manifest(manifest_text(second), "m"), second);
}

TEST(BuildManifest, RefusesGapsOverlapsAndContradictions) {
  const auto error = [](std::vector<ShardReport> reports) {
    return error_of<InternalError>([&] { build_manifest(run_state(1), reports); });
  };
  EXPECT_THAT(error({report_of("a.safetensors", {{"w", {4}, {0}, {3}}})}),
              HasSubstr("tensor \"w\": the slices hold 3 of 4 elements"));
  EXPECT_THAT(
      error({report_of("a.safetensors", {{"w", {4}, {0}, {3}}}), report_of("b.safetensors", {{"w", {4}, {2}, {2}}})}),
      HasSubstr("the slice at [0] of [3] in a.safetensors overlaps the slice at [2] of [2] in b.safetensors"));
  // The right number of elements, but one twice and one never.
  EXPECT_THAT(error({report_of("a.safetensors", {{"w", {2, 2}, {0, 0}, {2, 1}}}),
                     report_of("b.safetensors", {{"w", {2, 2}, {1, 0}, {1, 2}}})}),
              HasSubstr("overlaps"));
  EXPECT_THAT(error({report_of("a.safetensors", {{"s", {}, {}, {}}}), report_of("b.safetensors", {{"s", {}, {}, {}}})}),
              HasSubstr("overlaps"));
  EXPECT_THAT(
      error({report_of("a.safetensors", {{"w", {4}, {0}, {2}}}), report_of("b.safetensors", {{"w", {5}, {2}, {3}}})}),
      HasSubstr("tensor \"w\": b.safetensors says f32 [5], another rank f32 [4]"));
  EXPECT_THAT(error({report_of("a.safetensors", {{"w", {4}, {0}, {2}}}),
                     report_of("b.safetensors", {{"w", {4}, {2}, {2}}}, DType::f64)}),
              HasSubstr("says f64 [4], another rank f32 [4]"));
  EXPECT_THAT(error({report_of("a.safetensors", {}), report_of("a.safetensors", {})}), HasSubstr("is there twice"));
}

TEST(BuildManifest, RandomPartitionsAreCoveredAndMutatedOnesAreNot) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 300; ++round) {
    const Shape shape{1 + static_cast<Index>(random() % 9), 1 + static_cast<Index>(random() % 9)};
    std::vector<TensorSlice> slices;
    for (const Box& box : random_grid(shape, 2, random)) slices.push_back({"w", shape, box.offset, box.shape});
    EXPECT_NO_THROW(build_manifest(run_state(1), std::vector{report_of("a.safetensors", slices)}));
    const std::size_t which = random() % slices.size();
    std::vector<TensorSlice> doubled = slices, missing = slices;
    doubled.push_back(slices[which]);
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(which));
    EXPECT_THROW(build_manifest(run_state(1), std::vector{report_of("a.safetensors", doubled)}), InternalError);
    if (!missing.empty()) {
      EXPECT_THROW(build_manifest(run_state(1), std::vector{report_of("a.safetensors", missing)}), InternalError);
    }
  }
}

TEST(ShardReport, BytesReadBackAndEveryTruncationIsFound) {
  const ShardReport report =
      report_of("a.safetensors",
                {{"w", {4, 6}, {0, 3}, {4, 3}}, {"s", {}, {}, {}}, {"x\xc3\xa9", {2, 3, 4, 5}, {}, {2, 3, 4, 5}}});
  const std::vector<std::byte> bytes = serialize_report(report);
  EXPECT_EQ(parse_report(bytes, "rank 1"), report);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(parse_report(std::span(bytes).first(size), "rank 1"), InputError) << size;
  }
  std::mt19937_64 random(4);
  for (int round = 0; round < 5000; ++round) {  // any bytes: refused or read, never a crash or a huge allocation
    std::vector<std::byte> damaged = bytes;
    damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    try {
      parse_report(damaged, "rank 1");
    } catch (const InputError&) {
    }
  }
}

}  // namespace
}  // namespace megalith::checkpoint
