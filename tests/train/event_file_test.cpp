#include "megalith/train/event_file.h"

#include <bit>
#include <cstring>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/train/metrics.h"

#include "tests/io/temp_dir.h"

namespace megalith::train {
namespace {

template <class T>
T little(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i));
  return value;
}

std::uint32_t unmasked(std::uint32_t masked) {
  const std::uint32_t rotated = masked - 0xa282ead8u;
  return rotated >> 17 | rotated << 15;
}

/// The fields of a protocol buffers message: number -> raw values.
std::multimap<int, std::string> fields(std::string_view message) {
  std::multimap<int, std::string> found;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message[0]);
      message.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (!message.empty()) {
    const std::uint64_t key = varint();
    std::size_t size = 0;
    std::string value;
    switch (key & 7) {
      case 0:
        value = std::to_string(varint());
        break;
      case 1:
        size = 8;
        break;
      case 2:
        size = varint();
        break;
      case 5:
        size = 4;
        break;
    }
    if (size > 0) value = message.substr(0, size);
    message.remove_prefix(size);
    found.emplace(static_cast<int>(key >> 3), value);
  }
  return found;
}

std::vector<std::string> records(const io::Path& folder) {
  std::vector<std::string> found;
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes = read_all(entry.path());
  for (std::string_view rest = bytes; !rest.empty();) {
    const auto length = little<std::uint64_t>(rest);
    EXPECT_EQ(unmasked(little<std::uint32_t>(rest.substr(8))), crc32c(rest.substr(0, 8)));
    const std::string_view data = rest.substr(12, length);
    EXPECT_EQ(unmasked(little<std::uint32_t>(rest.substr(12 + length))), crc32c(data));
    found.emplace_back(data);
    rest.remove_prefix(16 + length);
  }
  return found;
}

TEST(Crc32c, IsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(EventFile, HoldsScalarsAsTensorBoardReadsThem) {
  const TempDir dir;
  {
    EventFile file(*io::posix_fs(), dir / "tensorboard", 0);
    file.write(300, {{"train/loss", 2.5}, {"train/lr", 1e-3}});
  }
  const std::vector<std::string> found = records(dir / "tensorboard");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(fields(found[0]).find(3)->second, "brain.Event:2");
  const auto event = fields(found[1]);
  EXPECT_EQ(event.find(2)->second, "300");
  const auto summary = fields(event.find(5)->second);
  ASSERT_EQ(summary.count(1), 2u);
  const auto first = fields(summary.find(1)->second);
  EXPECT_EQ(first.find(1)->second, "train/loss");
  EXPECT_EQ(std::bit_cast<float>(little<std::uint32_t>(first.find(2)->second)), 2.5f);
}

TEST(EventFile, HasTheSameNumbersOfExpertsAsTheLogOfMetrics) {
  StepMetrics metrics;
  ExpertLoad load;
  load.layer = 3, load.max_over_mean = 1.5, load.p95_over_mean = 1.25;
  load.hottest = {{5, 0.5}, {2, 0.25}};
  load.empty = 1, load.choices = 64, load.dropped = 2;
  load.echo = {.before = 2.5,
               .after = 1.125,
               .moved = 40,
               .clones = 3,
               .dropped = 7,
               .wanted = 4,
               .bytes = 1e9,
               .exposed_us = 42.5};
  metrics.result.moe.layers = {load};
  metrics.result.rerun = true;
  std::map<std::string, double> found;
  for (const Scalar& scalar : scalars_of(metrics)) found[scalar.tag] = scalar.value;
  const std::map<std::string, double> want = {
      {"max_over_mean", 1.5},   {"p95_over_mean", 1.25},  {"empty", 1},
      {"choices", 64},          {"dropped", 2},           {"hottest_1_expert", 5},
      {"hottest_1_share", 0.5}, {"hottest_2_expert", 2},  {"hottest_2_share", 0.25},
      {"echo/before", 2.5},     {"echo/after", 1.125},    {"echo/moved", 40},
      {"echo/clones", 3},       {"echo/dropped", 7},      {"echo/wanted", 4},
      {"echo/bytes", 1e9},      {"echo/exposed_us", 42.5}};
  for (const auto& [name, value] : want) EXPECT_EQ(found.at("moe/layer_3/" + name), value) << name;
  EXPECT_EQ(found.at("moe/rerun"), 1);
  metrics.result.moe.layers[0].echo.reset();
  for (const Scalar& scalar : scalars_of(metrics)) EXPECT_EQ(scalar.tag.find("/echo/"), std::string::npos);
}

TEST(EventFile, OneLossHasOneNameAndSeveralHaveTheirOwn) {
  const TempDir dir;
  StepMetrics metrics;
  metrics.result = {.loss = 2.5, .losses = {{"mlm_loss", 2, 7}}};
  const auto line = [&] {
    const io::Path file = dir / str("losses_", metrics.result.losses.size(), ".jsonl");
    MetricsLog(*io::posix_fs(), file, 0).write(metrics);
    return nlohmann::json::parse(io::posix_fs()->map(file).text());
  };
  EXPECT_EQ(line().count("mlm_loss"), 0u);
  EXPECT_EQ(scalars_of(metrics).size(), 5u);
  metrics.result.losses.push_back({"order_loss", 0.5, 4});
  const nlohmann::json both = line();
  EXPECT_EQ(both.at("loss"), 2.5);
  EXPECT_EQ(both.at("mlm_loss"), 2);
  EXPECT_EQ(both.at("order_loss"), 0.5);
  ASSERT_EQ(scalars_of(metrics).size(), 7u);
  EXPECT_EQ(scalars_of(metrics).back().tag, "train/order_loss");
  EXPECT_EQ(scalars_of(metrics).back().value, 0.5);
}

TEST(EventFile, AResumedRunVoidsWhatCameAfter) {
  const TempDir dir;
  { EventFile file(*io::posix_fs(), dir.path(), 40); }
  const std::vector<std::string> found = records(dir.path());
  ASSERT_EQ(found.size(), 2u);
  const auto event = fields(found[1]);
  EXPECT_EQ(event.find(2)->second, "41");
  EXPECT_EQ(fields(event.find(7)->second).find(1)->second, "1");  // SessionLog.START
}

}  // namespace
}  // namespace megalith::train
