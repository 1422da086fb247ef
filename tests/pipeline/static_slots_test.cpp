#include "megalith/pipeline/static_slots.h"

#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/pipeline/shapes.h"

namespace megalith::pipeline {
namespace {

using nlohmann::json;

std::vector<std::vector<int>> alike(const std::vector<int>& layers_per_chunk) {
  std::vector<std::vector<int>> signatures;
  for (const int layers : layers_per_chunk) signatures.emplace_back(static_cast<std::size_t>(layers), 0);
  return signatures;
}

TEST(StaticSlots, OneLayerPerChunk) {
  for (const json& entry : schedule_entries()) {
    const ScheduleShape shape = shape_of(entry);
    const auto one_each = alike(std::vector<int>(static_cast<std::size_t>(shape.num_chunks), 1));
    for (const json& rank : entry.at("ranks")) {
      const StaticSlots slots = assign_static_slots(capture_order(shape, rank.at("rank")), one_each);
      std::vector<int> slot_of_forward;
      for (const std::vector<int>& forward : slots.slot) slot_of_forward.push_back(forward.at(0));
      EXPECT_EQ(slot_of_forward, rank.at("static_input_slot_of_forward").get<std::vector<int>>()) << shape;
      EXPECT_EQ(slots.signature.size(), rank.at("static_input_slots").get<std::size_t>()) << shape;
    }
  }
}

TEST(StaticSlots, EightLayersWhateverTheNumberOfMicrobatches) {
  for (const json& entry : schedule_vectors().at("static_input_slots_8_layers")) {
    for (const int microbatches : entry.at("microbatches")) {
      const int pp = entry.at("pp"), chunks = entry.at("vpp"), layers = entry.at("layers_per_chunk");
      const ScheduleShape shape{pp, chunks, microbatches, 0};
      std::vector<std::size_t> counts;
      for (int stage = 0; stage < pp; ++stage) {
        const auto signatures = alike(std::vector<int>(static_cast<std::size_t>(chunks), layers));
        counts.push_back(assign_static_slots(capture_order(shape, stage), signatures).signature.size());
      }
      EXPECT_EQ(counts, entry.at("static_input_slots_per_rank").get<std::vector<std::size_t>>()) << shape;
    }
  }
}

TEST(StaticSlots, UnevenChunks) {
  for (const json& entry : schedule_vectors().at("uneven_chunks")) {
    const auto signatures = alike(entry.at("captured_layers_per_chunk"));
    for (const json& rank : entry.at("ranks")) {
      const std::vector<int> order = capture_order(shape_of(entry), rank.at("rank"));
      EXPECT_EQ(order, rank.at("order").get<std::vector<int>>());
      const StaticSlots slots = assign_static_slots(order, signatures);
      EXPECT_EQ(slots.slot, rank.at("slots").get<std::vector<std::vector<int>>>());
      EXPECT_EQ(slots.signature.size(), rank.at("static_input_slots").get<std::size_t>());
    }
  }
}

TEST(StaticSlots, SignaturesNeverShareABuffer) {
  const std::vector<std::vector<int>> signatures{{7, 8, 7}, {8}};
  const std::vector<int> order = capture_order({2, 2, 8, 0}, 0);
  const StaticSlots slots = assign_static_slots(order, signatures);
  std::size_t forward = 0;
  for (const int entry : order) {
    if (entry < 0) continue;
    const std::vector<int>& wanted = signatures[static_cast<std::size_t>(entry - 1)];
    const std::vector<int>& got = slots.slot.at(forward++);
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(slots.signature.at(static_cast<std::size_t>(got[i])), wanted[i]);
    EXPECT_EQ(std::set<int>(got.begin(), got.end()).size(), got.size());
  }
}

TEST(StaticSlots, RefusesOrdersThatAreNone) {
  EXPECT_THROW(assign_static_slots(std::vector<int>{1, -1, -1}, alike({1})), InternalError);
  EXPECT_THROW(assign_static_slots(std::vector<int>{2}, alike({1})), InternalError);
  EXPECT_THROW(assign_static_slots(std::vector<int>{0}, alike({1})), InternalError);
}

}  // namespace
}  // namespace megalith::pipeline
