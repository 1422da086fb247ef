// The cases of tests/data/echo/echo.json. Every field of what is expected is compared, or named as one that no stage
// shows. A new op, and a new field, fail.
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/text.h"
#include "megalith/ops/cpu/echo_stages.h"
#include "megalith/ops/echo_routing.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/row_budget.h"
#include "megalith/ops/row_exchange.h"

#include "tests/ops/echo_plans.h"
#include "tests/test_data.h"

namespace megalith::ops {
namespace {

using nlohmann::json;
using Longs = std::vector<std::int64_t>;

/// Ops of graphs, which tests/train/graph_lifecycle_test.cpp checks.
const std::set<std::string> kOfGraphs = {"graph_count", "graph_lifecycle"};

/// The rows of a matrix [rows, columns].
template <class T>
json matrix(const std::vector<T>& values, Index rows, Index columns) {
  json all = json::array();
  for (Index r = 0; r < rows; ++r) {
    json row = json::array();
    for (Index c = 0; c < columns; ++c) row.push_back(values[static_cast<std::size_t>(r * columns + c)]);
    all.push_back(std::move(row));
  }
  return all;
}

Ints flat(const json& rows) {
  Ints all;
  for (const json& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

template <class T, class Of>
std::vector<T> mapped(const std::vector<T>& values, Of of) {
  std::vector<T> all;
  for (const T& value : values) all.push_back(of(value));
  return all;
}

Longs sums(const Longs& values) {
  Longs all;
  std::int64_t sum = 0;
  for (const std::int64_t value : values) all.push_back(sum += value);
  return all;
}

std::int64_t added(const auto& values) {
  std::int64_t sum = 0;
  for (const auto value : values) sum += value;
  return sum;
}

/// `got` has every field of `expect` but those in `not_shown`, and with the same value.
void compare(const json& expect, const json& got, const std::set<std::string>& not_shown = {}) {
  for (const auto& [field, want] : expect.items()) {
    if (not_shown.contains(field)) continue;
    if (!got.contains(field)) {
      ADD_FAILURE() << "nothing to compare with " << field;
      continue;
    }
    EXPECT_EQ(got.at(field), want) << field;
  }
}

json stages_json(const PlannedEcho& plan, const EchoCase& of) {
  const Index slots = of.all_slots();
  Ints depth = plan.take;
  for (std::size_t i = 0; i < depth.size(); ++i) depth[i] -= plan.breadth[i];
  return {{"expert_total", plan.expert_total},
          {"load", plan.load},
          {"total", added(plan.load)},
          {"avg", plan.avg},
          {"spare", plan.spare},
          {"spill", plan.spill},
          {"spill_index", plan.spill_index},
          {"spare_index", plan.spare_index},
          {"slot_src", plan.src},
          {"slot_cap", plan.cap},
          {"breadth", matrix(plan.breadth, of.ranks, slots)},
          {"capacity_remaining", plan.room},
          {"depth", matrix(depth, of.ranks, slots)},
          {"offload", matrix(plan.take, of.ranks, slots)},
          {"load_after", plan.load_after},
          {"rows", matrix(plan.rows, of.ranks, of.experts + slots)},
          {"plan_hash", hex64(plan.hash)}};
}

void check_plan(const json& input, const json& expect) {
  const EchoCase of{.ranks = input.at("ranks"),
                    .experts = input.at("experts"),
                    .slots = input.at("slots_per_rank"),
                    .counts = flat(input.at("count"))};
  compare(expect, stages_json(planned_echo(of), of));
}

/// Whole ranks: an expert each.
void check_rank_spare(const json& input, const json& expect) {
  const Ints load = input.at("load");
  const Index ranks = static_cast<Index>(load.size());
  EchoCase of{.ranks = ranks, .experts = ranks, .counts = load};
  of.counts.resize(static_cast<std::size_t>(ranks * ranks));
  const PlannedEcho plan = planned_echo(of);
  json got = stages_json(plan, of);
  got["excess"] = plan.spill;
  got["deviation"] = mapped(load, [&](std::int32_t pairs) { return pairs - plan.avg; });
  compare(expect, got);
}

struct SpillOfRank {
  Longs spill, order;
};
SpillOfRank spill_of(const Longs& count, std::int64_t avg) {
  SpillOfRank of{Longs(count.size(), -1), Longs(count.size(), -1)};
  cpu::spill_of_rank(count.data(), static_cast<Index>(count.size()), avg, of.spill.data(), of.order.data());
  of.order = mapped(of.order, [](std::int64_t key) { return cpu::index_of_key(key); });
  return of;
}

/// What the spill stage adds up on its way, from its order.
json spill_json(const Longs& count, std::int64_t avg) {
  const SpillOfRank of = spill_of(count, avg);
  const auto in_order = [&](const Longs& values) {
    return mapped(of.order, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  };
  const Longs prefix = sums(in_order(count));
  Longs kept = count;
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] -= of.spill[i];
  return {{"sorted", in_order(count)},
          {"order", of.order},
          {"cumsum", prefix},
          {"minus_avg", mapped(prefix, [&](std::int64_t sum) { return sum - avg; })},
          {"clamped", sums(in_order(of.spill))},
          {"spill_sorted", in_order(of.spill)},
          {"spill", of.spill},
          {"spill_original_order", of.spill},
          {"total", added(of.spill)},
          {"correct_total", added(of.spill)},
          {"kept", kept}};
}

void check_spill(const json& input, const json& expect) {
  compare(expect, spill_json(input.at("count"), input.at("avg")));
}
void check_spill_without_sort(const json& input, const json& expect) {
  EXPECT_NE(expect.at("unsorted").at("spill"), expect.at("sorted").at("spill_original_order"));
  compare(expect.at("sorted"), spill_json(input.at("count"), input.at("avg")));
}
void check_per_expert(const json& input, const json& expect) {
  const json got = spill_json(input.at("count"), input.at("avg"));
  compare(expect, got, {"avg_per_expert", "naive_spill", "naive_total"});
  EXPECT_NE(got.at("spill"), expect.at("naive_spill"));
}

/// The overlaps of chunks and buckets that are in this order already, or are sorted before.
struct Overlaps {
  Longs spill_keys, spare_keys;
  std::vector<cpu::EchoMove> moves;
  Longs by_number;  ///< [chunks, buckets]
};
enum class Order { as_given, sorted };
Overlaps overlaps_of(const Longs& spill, const Longs& spare, Order order) {
  Overlaps of{Longs(spill.size()), Longs(spare.size()), std::vector<cpu::EchoMove>(spill.size() + spare.size()), {}};
  const cpu::EchoSizes sizes{.ranks = static_cast<Index>(spare.size()), .experts = static_cast<Index>(spill.size())};
  if (order == Order::sorted) {
    cpu::sort_descending(spill.data(), sizes.experts, of.spill_keys.data());
    cpu::sort_descending(spare.data(), sizes.ranks, of.spare_keys.data());
  } else {
    for (std::size_t i = 0; i < spill.size(); ++i) of.spill_keys[i] = static_cast<std::int64_t>(i);
    for (std::size_t i = 0; i < spare.size(); ++i) of.spare_keys[i] = static_cast<std::int64_t>(i);
  }
  of.moves.resize(static_cast<std::size_t>(cpu::overlap_moves(sizes, spill.data(), of.spill_keys.data(), spare.data(),
                                                              of.spare_keys.data(), of.moves.data())));
  of.by_number.assign(spill.size() * spare.size(), 0);
  for (const cpu::EchoMove& move : of.moves)
    of.by_number[static_cast<std::size_t>(move.expert * sizes.ranks + move.rank)] += move.pairs;
  for (Longs* keys : {&of.spill_keys, &of.spare_keys})
    *keys = mapped(*keys, [](std::int64_t key) { return cpu::index_of_key(key); });
  return of;
}

json overlap_json(const Longs& spill, const Longs& spare, Order order) {
  const Overlaps of = overlaps_of(spill, spare, order);
  const Index experts = static_cast<Index>(spill.size()), ranks = static_cast<Index>(spare.size());
  Longs sorted, chunks, buckets, unassigned;
  for (const std::int64_t e : of.spill_keys) {
    chunks.push_back(spill[static_cast<std::size_t>(e)]);
    unassigned.push_back(chunks.back());
    for (const std::int64_t q : of.spare_keys) {
      sorted.push_back(of.by_number[static_cast<std::size_t>(e * ranks + q)]);
      unassigned.back() -= sorted.back();
    }
  }
  for (const std::int64_t q : of.spare_keys) buckets.push_back(spare[static_cast<std::size_t>(q)]);
  return {{"matrix", matrix(sorted, experts, ranks)},
          {"matrix_sorted", matrix(sorted, experts, ranks)},
          {"matrix_expert_by_rank", matrix(of.by_number, experts, ranks)},
          {"spill_sorted", chunks},
          {"spill_index", of.spill_keys},
          {"spare_sorted", buckets},
          {"spare_index", of.spare_keys},
          {"chunk_cumsum", sums(chunks)},
          {"bucket_cumsum", sums(buckets)},
          {"assigned_total", added(sorted)},
          {"unassigned_chunk", unassigned},
          {"unassigned_chunk_sorted", unassigned}};
}

void check_overlap(const json& input, const json& expect) {
  compare(expect, overlap_json(input.at("chunks"), input.at("buckets"), Order::as_given),
          {"chunk_interval", "bucket_interval"});
}
void check_sort_and_overlap(const json& input, const json& expect) {
  compare(expect, overlap_json(input.at("spill"), input.at("spare"), Order::sorted));
}

void check_top_slots(const json& input, const json& expect) {
  const Longs spill = input.at("spill"), spare = input.at("spare");
  const Overlaps of = overlaps_of(spill, spare, Order::sorted);
  const Index ranks = static_cast<Index>(spare.size()), slots = input.at("slots_per_rank");
  Longs position(spill.size());
  for (std::size_t i = 0; i < spill.size(); ++i)
    position[static_cast<std::size_t>(of.spill_keys[i])] = static_cast<std::int64_t>(i);
  Ints src(static_cast<std::size_t>(ranks * slots), -7), cap = src;
  const std::int64_t dropped =
      cpu::fill_slots({.ranks = ranks, .experts = static_cast<Index>(spill.size()), .all_slots = ranks * slots},
                      {.moves = of.moves.data(),
                       .num_moves = static_cast<Index>(of.moves.size()),
                       .position = position.data(),
                       .src = src.data(),
                       .cap = cap.data(),
                       .wanted = nullptr});
  compare(expect, {{"slot_src", src}, {"slot_cap", cap}, {"dropped_from_plan", dropped}});
}

/// One expert, whose slots take `capacity` pairs each.
void check_shares(const json& input, const json& expect) {
  const bool is_one = input.at("capacity").is_number();
  const Ints counts = input.at("count_from_rank"),
             cap = is_one ? Ints{input.at("capacity").get<std::int32_t>()} : input.at("capacity").get<Ints>();
  const Index ranks = static_cast<Index>(counts.size()), slots = static_cast<Index>(cap.size());
  const Ints src(cap.size(), 0);
  Ints take(counts.size() * cap.size(), -7), breadth = take, room(cap.size(), -7);
  const std::int64_t total = added(counts);
  Longs first(1), next(cap.size()), left(cap.size());
  cpu::share_slots({.ranks = ranks, .experts = 1, .all_slots = slots}, {.counts = counts.data(),
                                                                        .total = &total,
                                                                        .src = src.data(),
                                                                        .cap = cap.data(),
                                                                        .take = take.data(),
                                                                        .breadth = breadth.data(),
                                                                        .room = room.data(),
                                                                        .first = first.data(),
                                                                        .next = next.data(),
                                                                        .left = left.data()});
  Ints depth = take, remaining = counts;
  for (std::size_t i = 0; i < take.size(); ++i) {
    depth[i] -= breadth[i];
    remaining[i / cap.size()] -= breadth[i];
  }
  const auto as_given = [&](const Ints& values) { return is_one ? json(values) : matrix(values, ranks, slots); };
  compare(expect,
          {{"total", total},
           {"floor", as_given(breadth)},
           {"floor_sum", added(breadth)},
           {"capacity_remaining", is_one ? json(room[0]) : json(room)},
           {"count_remaining", remaining},
           {"second_pass", as_given(depth)},
           {"offload", as_given(take)},
           {"offload_sum", added(take)}},
          {"ratio", "ideal", "float32_floor_wrong"});
  EXPECT_NE(json(breadth), expect.value("float32_floor_wrong", json()));
}

/// Of the other ranks only their loads are given.
void check_spill_to_slots(const json& input, const json& expect) {
  const Index ranks = input.at("ranks"), local = input.at("experts_per_rank");
  EchoCase of{.ranks = ranks, .experts = ranks * local, .slots = input.at("slots_per_rank")};
  of.counts.resize(static_cast<std::size_t>(ranks * of.experts));
  for (Index rank = 0; rank < ranks; ++rank) {
    const std::string name = "count_rank" + std::to_string(rank);
    const Ints counts = input.contains(name) ? input.at(name).get<Ints>() : Ints{input.at("load").at(rank)};
    std::copy(counts.begin(), counts.end(), of.counts.begin() + rank * local);
  }
  const PlannedEcho plan = planned_echo(of);
  EXPECT_EQ(plan.avg, input.at("avg").get<std::int32_t>());
  EXPECT_EQ(json(plan.load), input.at("load"));
  json got =
      overlap_json({plan.spill.begin(), plan.spill.end()}, {plan.spare.begin(), plan.spare.end()}, Order::sorted);
  got.update(stages_json(plan, of));
  got["spill_rank0"] = spill_json(input.at("count_rank0"), plan.avg).at("spill");
  compare(expect, got, {"spill_rank1"});
  compare(expect.at("spill_rank1"), spill_json(input.at("count_rank1"), plan.avg));
}

Ints ints_in(const Tensor& tensor) {
  const std::span<std::int32_t> all = tensor.span<std::int32_t>();
  return {all.begin(), all.end()};
}

Tensor tensor_of(Exec& ex, const Shape& shape, const Ints& values) {
  const Tensor tensor = ex.tensor(shape, DType::i32);
  std::ranges::copy(values, tensor.data<std::int32_t>());
  return tensor;
}

/// Where rank `rank` finds the results of its pairs, and the groups of its columns.
struct ExchangedColumns {
  Ints places, begin, rows;
};
ExchangedColumns exchanged(Exec& ex, const Tensor& columns, Index local, Index rank) {
  const Index ranks = columns.dim(0), rows = columns.dim(1), own = rows * columns.dim(2);
  const auto i32 = [&](const Shape& shape) { return ex.tensor(shape, DType::i32); };
  PlanExchange plan{.experts = columns,
                    .groups = {.begin = i32({local}), .rows = i32({local})},
                    .rows = {},
                    .pairs = {},
                    .places = i32({own, 2}),
                    .row_begin = i32({rows + 1}),
                    .pair_begin = i32({own + 1}),
                    .ranks = {.local_experts = local},
                    .num_experts = ranks * local,
                    .rank = rank};
  const Index arrive = pairs_to_receive(plan);
  plan.rows = {i32({2}), i32({ranks * rows, 2}), i32({ranks * rows + 1}), i32({arrive})};
  plan.pairs = {i32({2}), i32({arrive, 2}), i32({arrive + 1}), i32({arrive})};
  plan_exchange(ex, plan);
  return {ints_in(plan.places), ints_in(plan.groups.begin), ints_in(plan.groups.rows)};
}

/// [n, K] of pairs (rank, row).
json places_json(const Ints& places, Index rows, Index top_k) {
  json all = json::array();
  for (Index row = 0; row < rows; ++row)
    all.push_back(matrix(Ints(places.begin() + 2 * row * top_k, places.begin() + 2 * (row + 1) * top_k), top_k, 2));
  return all;
}

/// Choices to columns, and these to rows of the ranks that compute them.
void check_rewriting(const json& input, const json& expect) {
  const json& choices = input.at("topk");
  const Index rows = static_cast<Index>(choices[0].size()), top_k = static_cast<Index>(choices[0][0].size());
  EchoCase of{.ranks = input.at("ranks"), .experts = input.at("experts"), .slots = input.at("slots_per_rank")};
  Ints experts;
  for (const json& of_rank : choices) {
    const Ints one = flat(of_rank);
    experts.insert(experts.end(), one.begin(), one.end());
  }
  Exec ex;
  ex.poison_new_tensors();
  const Shape shape{of.ranks, rows, top_k};
  const Tensor all = tensor_of(ex, shape, experts), columns = ex.tensor(shape, DType::i32);
  const Tensor counts = ex.tensor({of.ranks, of.experts}, DType::i32);
  count_pairs(ex, {.experts = all, .counts = counts});
  of.counts = ints_in(counts);
  const PlannedEcho plan = planned_echo(of);
  rewrite_choices(ex, {.experts = all,
                       .src = tensor_of(ex, {of.all_slots()}, plan.src),
                       .take = tensor_of(ex, {of.ranks, of.all_slots()}, plan.take),
                       .columns = columns,
                       .num_experts = of.experts});
  const Index local = of.local() + of.slots;
  json got{{"load_after", plan.load_after},
           {"group_size", json::array()},
           {"group_offset", json::array()},
           {"destination_rank_row", json::array()}};
  for (Index rank = 0; rank < of.ranks; ++rank) {
    const ExchangedColumns here = exchanged(ex, columns, local, rank);
    got["group_size"].push_back(here.rows);
    got["group_offset"].push_back(here.begin);
    got["destination_rank_row"].push_back(places_json(here.places, rows, top_k));
    const Ints own = ints_in(columns.rows(rank, 1));
    json moved = json::object();
    for (Index slot = 0; slot < of.all_slots(); ++slot) {
      for (Index pair = 0; pair < rows * top_k; ++pair) {
        if (own[at(pair)] == slot / of.slots * local + of.local() + slot % of.slots)
          moved[std::to_string(slot)].push_back(pair / top_k);
      }
    }
    compare(expect.at("per_rank").at(at(rank)),
            {{"physical", matrix(own, rows, top_k)},
             {"moved_tokens", moved},
             {"rows", Ints(plan.rows.begin() + rank * (of.experts + of.all_slots()),
                           plan.rows.begin() + (rank + 1) * (of.experts + of.all_slots()))}});
  }
  compare(expect, got, {"plan", "columns", "per_rank"});
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
  const std::map<std::string, std::function<void(const json&, const json&)>> checks = {
      {"plan", check_plan},
      {"rank_spare", check_rank_spare},
      {"spillover_one_rank", check_spill},
      {"spillover_without_sort_vs_with_sort", check_spill_without_sort},
      {"naive_per_expert_subtraction", check_per_expert},
      {"interval_overlap", check_overlap},
      {"sort_and_overlap", check_sort_and_overlap},
      {"topk_slots", check_top_slots},
      {"allocate", check_shares},
      {"allocate_multi", check_shares},
      {"spill_to_slots", check_spill_to_slots},
      {"reroute", check_rewriting},
      {"grouped_gemm_args", check_products},
      {"row_budget", check_row_budget}};
  std::ifstream file(MEGALITH_TEST_DATA "/echo/echo.json");
  const json vectors = json::parse(file);
  int checked = 0, elsewhere = 0;
  for (const json& entry : vectors.at("cases")) {
    const std::string op = entry.at("op");
    SCOPED_TRACE(entry.at("id").get<std::string>() + ", " + op);
    const auto check = checks.find(op);
    elsewhere += static_cast<int>(kOfGraphs.count(op));
    if (check != checks.end()) {
      check->second(entry.at("input"), entry.at("expect"));
      ++checked;
    } else if (!kOfGraphs.contains(op)) {
      ADD_FAILURE() << "an op that no test knows";
    }
  }
  EXPECT_EQ(checked, 40);
  EXPECT_EQ(elsewhere, 2);
}

}  // namespace
}  // namespace megalith::ops
