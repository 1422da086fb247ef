// The cases of tests/data/echo/echo.json. A new op, and a new field, fail.
#include "tests/ops/echo_vectors.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "megalith/ops/cpu/echo_stages.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/row_budget.h"

namespace megalith::ops {
namespace {

using nlohmann::json;

/// Ops of graphs, which tests/train/graph_lifecycle_test.cpp checks.
const std::set<std::string> kOfGraphs = {"graph_count", "graph_lifecycle"};

/// The functions of the CPU's planner, one by one.
class StagesOfCpu final : public EchoStageSource {
 public:
  Spill spill_of(const Longs& count, std::int64_t avg) const override {
    Spill of{Longs(count.size(), -1), Longs(count.size(), -1)};
    cpu::spill_of_rank(count.data(), std::ssize(count), avg, of.spill.data(), of.order.data());
    std::ranges::transform(of.order, of.order.begin(), cpu::index_of_key);
    return of;
  }

  Overlaps overlaps_of(const Longs& spill, const Longs& spare) const override {
    return overlaps_in_order(spill, spare, Order::sorted).of;
  }

  /// Chunks and buckets in this order already.
  static Overlaps overlaps_as_given(const Longs& spill, const Longs& spare) {
    return overlaps_in_order(spill, spare, Order::as_given).of;
  }

  Slots slots_of(const Longs& spill, const Longs& spare, Index slots_per_rank) const override {
    const Moved moved = overlaps_in_order(spill, spare, Order::sorted);
    const Index ranks = std::ssize(spare), slots = slots_per_rank;
    Longs position(spill.size());
    for (std::size_t i = 0; i < spill.size(); ++i) position[at(moved.of.spill_index[i])] = static_cast<std::int64_t>(i);
    Slots of{Ints(at(ranks * slots), -7), Ints(at(ranks * slots), -7)};
    of.dropped = cpu::fill_slots({.ranks = ranks, .experts = std::ssize(spill), .all_slots = ranks * slots},
                                 {.moves = moved.moves.data(),
                                  .num_moves = std::ssize(moved.moves),
                                  .position = position.data(),
                                  .src = of.src.data(),
                                  .cap = of.cap.data(),
                                  .wanted = nullptr});
    return of;
  }

  Shares shares_of(const Ints& counts, const Ints& capacity) const override {
    const Ints src(capacity.size(), 0);
    Shares of{.total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0}),
              .take = Ints(counts.size() * capacity.size(), -7),
              .breadth = Ints(counts.size() * capacity.size(), -7),
              .room = Ints(capacity.size(), -7)};
    Longs first(1), next(capacity.size()), left(capacity.size());
    cpu::share_slots({.ranks = std::ssize(counts), .experts = 1, .all_slots = std::ssize(capacity)},
                     {.counts = counts.data(),
                      .total = &of.total,
                      .src = src.data(),
                      .cap = capacity.data(),
                      .take = of.take.data(),
                      .breadth = of.breadth.data(),
                      .room = of.room.data(),
                      .first = first.data(),
                      .next = next.data(),
                      .left = left.data()});
    return of;
  }

 private:
  enum class Order { as_given, sorted };
  struct Moved {
    Overlaps of;
    std::vector<cpu::EchoMove> moves;
  };
  static Moved overlaps_in_order(const Longs& spill, const Longs& spare, Order order) {
    Moved moved{{Longs(spill.size()), Longs(spare.size()), Longs(spill.size() * spare.size(), 0)},
                std::vector<cpu::EchoMove>(spill.size() + spare.size())};
    Longs &spill_keys = moved.of.spill_index, &spare_keys = moved.of.spare_index;
    const cpu::EchoSizes sizes{.ranks = std::ssize(spare), .experts = std::ssize(spill)};
    if (order == Order::sorted) {
      cpu::sort_descending(spill.data(), sizes.experts, spill_keys.data());
      cpu::sort_descending(spare.data(), sizes.ranks, spare_keys.data());
    } else {
      std::iota(spill_keys.begin(), spill_keys.end(), 0);
      std::iota(spare_keys.begin(), spare_keys.end(), 0);
    }
    moved.moves.resize(at(cpu::overlap_moves(sizes, spill.data(), spill_keys.data(), spare.data(), spare_keys.data(),
                                             moved.moves.data())));
    for (const cpu::EchoMove& move : moved.moves)
      moved.of.by_number[at(move.expert * sizes.ranks + move.rank)] += move.pairs;
    for (Longs* keys : {&spill_keys, &spare_keys}) std::ranges::transform(*keys, keys->begin(), cpu::index_of_key);
    return moved;
  }
};

void check_overlap(const json& input, const json& expect) {
  const Longs chunks = input.at("chunks"), buckets = input.at("buckets");
  compare(expect, overlap_json(chunks, buckets, StagesOfCpu::overlaps_as_given(chunks, buckets)),
          {"chunk_interval", "bucket_interval"});
}

/// The operands of a loop over groups, as elements from the beginning of their tensors. No memory is accessed.
void check_products(const json& input, const json& expect) {
  using Kind = GroupedProduct::Kind;
  const Ints sizes = input.at("group_rows");
  const Index n = input.at("N"), k = input.at("K"), bytes = input.at("elem_bytes");
  Ints begin;
  Index end = 0;
  for (const std::int32_t size : sizes) {
    begin.push_back(static_cast<std::int32_t>(end));
    end += size;
  }
  auto* const base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  const Tensor x(base, {end, k}, DType::bf16), y(base, {end, n}, DType::bf16),
      w(base, {static_cast<Index>(sizes.size()), n, k}, DType::bf16);
  const auto element = [&](const Tensor& tensor) { return (static_cast<std::byte*>(tensor.raw()) - base) / bytes; };
  json got{{"row_offset", begin}, {"total", end}, {"a_byte_offsets_16B_aligned", true}};
  const auto product_json = [&](const GroupedProduct& product, const char* b_field, const char* d_field) {
    json all{{"problem", json::array()}, {"a_elem", json::array()}};
    for (std::size_t g = 0; g < sizes.size(); ++g) {
      const Matmul of = product.of(static_cast<Index>(g), begin[g], sizes[g]);
      const bool is_weights = product.kind == Kind::weight_grad;
      all["problem"].push_back({of.c.dim(0), of.c.dim(1), is_weights ? of.a.dim(0) : of.a.dim(1)});
      all["a_elem"].push_back(element(of.a));
      if (element(of.a) * bytes % 16 != 0) got["a_byte_offsets_16B_aligned"] = false;
      if (b_field != nullptr) all[b_field].push_back(element(of.b));
      if (d_field != nullptr) all[d_field].push_back(element(of.c));
      all["lda"] = of.a.dim(1);
      all["ldd"] = of.c.dim(1);
    }
    return all;
  };
  got["fprop"] =
      product_json({.kind = Kind::forward, .rows = x, .weights = w, .others = y, .groups = {}}, nullptr, "d_elem");
  got["dgrad"] =
      product_json({.kind = Kind::input_grad, .rows = y, .weights = w, .others = x, .groups = {}}, nullptr, "d_elem");
  got["wgrad"] =
      product_json({.kind = Kind::weight_grad, .rows = y, .weights = w, .others = x, .groups = {}}, "b_elem", nullptr);
  compare(expect, got, {"fprop", "dgrad", "wgrad"});
  compare(expect.at("fprop"), got.at("fprop"));
  compare(expect.at("dgrad"), got.at("dgrad"));
  compare(expect.at("wgrad"), got.at("wgrad"), {"d_elem"});
}

/// The vectors round a buffer up to `align`, and give each group its padding whatever the rows.
void check_row_budget(const json& input, const json& expect) {
  for (std::size_t i = 0; i < input.at("items").size(); ++i) {
    const json& item = input.at("items")[i];
    const Index align = item.at("align"), group_align = item.value("group_align", 1), groups = item.value("groups", 1);
    const Index rows =
        rows_of_factor(item.at("tokens").get<Index>() * item.at("topk").get<Index>(), item.at("factor_permille"));
    const Index want = expect.at("rows")[i], ours = capacity_of_groups(rows, groups, group_align);
    EXPECT_EQ(round_up(rows + groups * (group_align - 1), align), want) << "item " << i;
    EXPECT_EQ(round_up(ours, align), want) << "item " << i;
  }
}

TEST(EchoVectors, EveryCaseOfThePlanner) {
  const StagesOfCpu stages;
  std::map<std::string, EchoCheck> checks = echo_checks(stages, Device::cpu);
  checks["interval_overlap"] = check_overlap;
  checks["grouped_gemm_args"] = check_products;
  checks["row_budget"] = check_row_budget;
  EXPECT_EQ(check_echo_vectors(checks, kOfGraphs), 40);
}

// As a GPU's planner is checked, whose stages cannot be called one by one.
TEST(EchoVectors, EveryCaseWithinWholePlans) {
  const StagesOfPlans stages(Device::cpu);
  EXPECT_EQ(check_echo_vectors(echo_checks(stages, Device::cpu), kNotOfPlans), 35);
}

}  // namespace
}  // namespace megalith::ops
