#include "tests/ops/echo_vectors.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>

#include "megalith/base/text.h"
#include "megalith/ops/echo_routing.h"
#include "megalith/ops/row_exchange.h"

#include "tests/test_data.h"

namespace megalith::ops {

void compare(const nlohmann::json& expect, const nlohmann::json& got, const std::set<std::string>& not_shown) {
  for (const auto& [field, want] : expect.items()) {
    if (not_shown.contains(field)) continue;
    if (!got.contains(field)) {
      ADD_FAILURE() << "nothing to compare with " << field;
      continue;
    }
    EXPECT_EQ(got.at(field), want) << field;
  }
}

namespace {

using nlohmann::json;
using Overlaps = EchoStageSource::Overlaps;

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

void check_plan(const json& input, const json& expect, Device device) {
  const EchoCase of{.ranks = input.at("ranks"),
                    .experts = input.at("experts"),
                    .slots = input.at("slots_per_rank"),
                    .counts = flat(input.at("count"))};
  compare(expect, stages_json(planned_echo(of, device), of));
}

/// Whole ranks: an expert each.
void check_rank_spare(const json& input, const json& expect, Device device) {
  const Ints load = input.at("load");
  const Index ranks = static_cast<Index>(load.size());
  EchoCase of{.ranks = ranks, .experts = ranks, .counts = load};
  of.counts.resize(static_cast<std::size_t>(ranks * ranks));
  const PlannedEcho plan = planned_echo(of, device);
  json got = stages_json(plan, of);
  got["excess"] = plan.spill;
  got["deviation"] = mapped(load, [&](std::int32_t pairs) { return pairs - plan.avg; });
  compare(expect, got);
}

/// What the spill stage adds up on its way, from its order.
json spill_json(const EchoStageSource& source, const Longs& count, std::int64_t avg) {
  const EchoStageSource::Spill of = source.spill_of(count, avg);
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

void check_spill(const EchoStageSource& source, const json& input, const json& expect) {
  compare(expect, spill_json(source, input.at("count"), input.at("avg")));
}
void check_spill_without_sort(const EchoStageSource& source, const json& input, const json& expect) {
  EXPECT_NE(expect.at("unsorted").at("spill"), expect.at("sorted").at("spill_original_order"));
  compare(expect.at("sorted"), spill_json(source, input.at("count"), input.at("avg")));
}
void check_per_expert(const EchoStageSource& source, const json& input, const json& expect) {
  const json got = spill_json(source, input.at("count"), input.at("avg"));
  compare(expect, got, {"avg_per_expert", "naive_spill", "naive_total"});
  EXPECT_NE(got.at("spill"), expect.at("naive_spill"));
}

void check_sort_and_overlap(const EchoStageSource& source, const json& input, const json& expect) {
  const Longs spill = input.at("spill"), spare = input.at("spare");
  compare(expect, overlap_json(spill, spare, source.overlaps_of(spill, spare)));
}

void check_top_slots(const EchoStageSource& source, const json& input, const json& expect) {
  const EchoStageSource::Slots of =
      source.slots_of(input.at("spill"), input.at("spare"), input.at("slots_per_rank").get<Index>());
  compare(expect, {{"slot_src", of.src}, {"slot_cap", of.cap}, {"dropped_from_plan", of.dropped}});
}

void check_shares(const EchoStageSource& source, const json& input, const json& expect) {
  const bool is_one = input.at("capacity").is_number();
  const Ints counts = input.at("count_from_rank"),
             cap = is_one ? Ints{input.at("capacity").get<std::int32_t>()} : input.at("capacity").get<Ints>();
  const Index ranks = static_cast<Index>(counts.size()), slots = static_cast<Index>(cap.size());
  const EchoStageSource::Shares of = source.shares_of(counts, cap);
  Ints depth = of.take, remaining = counts;
  for (std::size_t i = 0; i < of.take.size(); ++i) {
    depth[i] -= of.breadth[i];
    remaining[i / cap.size()] -= of.breadth[i];
  }
  const auto as_given = [&](const Ints& values) { return is_one ? json(values) : matrix(values, ranks, slots); };
  compare(expect,
          {{"total", of.total},
           {"floor", as_given(of.breadth)},
           {"floor_sum", added(of.breadth)},
           {"capacity_remaining", is_one ? json(of.room[0]) : json(of.room)},
           {"count_remaining", remaining},
           {"second_pass", as_given(depth)},
           {"offload", as_given(of.take)},
           {"offload_sum", added(of.take)}},
          {"ratio", "ideal", "float32_floor_wrong"});
  EXPECT_NE(json(of.breadth), expect.value("float32_floor_wrong", json()));
}

/// Of the other ranks only their loads are given.
void check_spill_to_slots(const EchoStageSource& source, const json& input, const json& expect, Device device) {
  const Index ranks = input.at("ranks"), local = input.at("experts_per_rank");
  EchoCase of{.ranks = ranks, .experts = ranks * local, .slots = input.at("slots_per_rank")};
  of.counts.resize(static_cast<std::size_t>(ranks * of.experts));
  for (Index rank = 0; rank < ranks; ++rank) {
    const std::string name = "count_rank" + std::to_string(rank);
    const Ints counts = input.contains(name) ? input.at(name).get<Ints>() : Ints{input.at("load").at(rank)};
    std::copy(counts.begin(), counts.end(), of.counts.begin() + rank * local);
  }
  const PlannedEcho plan = planned_echo(of, device);
  EXPECT_EQ(plan.avg, input.at("avg").get<std::int32_t>());
  EXPECT_EQ(json(plan.load), input.at("load"));
  const Longs spill(plan.spill.begin(), plan.spill.end()), spare(plan.spare.begin(), plan.spare.end());
  json got = overlap_json(spill, spare, source.overlaps_of(spill, spare));
  got.update(stages_json(plan, of));
  got["spill_rank0"] = spill_json(source, input.at("count_rank0"), plan.avg).at("spill");
  compare(expect, got, {"spill_rank1"});
  compare(expect.at("spill_rank1"), spill_json(source, input.at("count_rank1"), plan.avg));
}

Ints ints_in(Exec& ex, const Tensor& tensor) {
  Ints all(at(tensor.numel()));
  ex.copy(all.data(), tensor.raw(), tensor.bytes());
  ex.synchronize();
  return all;
}

Tensor tensor_of(Exec& ex, const Shape& shape, const Ints& values) {
  const Tensor tensor = ex.tensor(shape, DType::i32);
  ex.copy(tensor.raw(), values.data(), tensor.bytes());
  ex.synchronize();
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
  return {ints_in(ex, plan.places), ints_in(ex, plan.groups.begin), ints_in(ex, plan.groups.rows)};
}

/// [n, K] of pairs (rank, row).
json places_json(const Ints& places, Index rows, Index top_k) {
  json all = json::array();
  for (Index row = 0; row < rows; ++row)
    all.push_back(matrix(Ints(places.begin() + 2 * row * top_k, places.begin() + 2 * (row + 1) * top_k), top_k, 2));
  return all;
}

/// Choices to columns, and these to rows of the ranks that compute them.
void check_rewriting(const json& input, const json& expect, Device device) {
  const json& choices = input.at("topk");
  const Index rows = static_cast<Index>(choices[0].size()), top_k = static_cast<Index>(choices[0][0].size());
  EchoCase of{.ranks = input.at("ranks"), .experts = input.at("experts"), .slots = input.at("slots_per_rank")};
  Ints experts;
  for (const json& of_rank : choices) {
    const Ints one = flat(of_rank);
    experts.insert(experts.end(), one.begin(), one.end());
  }
  Exec ex(device);
  ex.poison_new_tensors();
  const Shape shape{of.ranks, rows, top_k};
  const Tensor all = tensor_of(ex, shape, experts), columns = ex.tensor(shape, DType::i32);
  const Tensor counts = ex.tensor({of.ranks, of.experts}, DType::i32);
  count_pairs(ex, {.experts = all, .counts = counts});
  of.counts = ints_in(ex, counts);
  const PlannedEcho plan = planned_echo(of, device);
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
    const Ints own = ints_in(ex, columns.rows(rank, 1));
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

json read_vectors() {
  const std::string name = "echo/echo.json";
  std::string path = MEGALITH_TEST_DATA "/" + name;
  // A program that was built on another machine runs in the root of the repository (scripts/gpu-check).
  if (!std::filesystem::exists(path)) path = "tests/data/" + name;
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path << ": run it in the root of the repository";
  return file.good() ? json::parse(file) : json::object({{"cases", json::array()}});
}

}  // namespace

nlohmann::json overlap_json(const Longs& spill, const Longs& spare, const EchoStageSource::Overlaps& of) {
  const Index experts = static_cast<Index>(spill.size()), ranks = static_cast<Index>(spare.size());
  Longs sorted, chunks, buckets, unassigned;
  for (const std::int64_t e : of.spill_index) {
    chunks.push_back(spill[static_cast<std::size_t>(e)]);
    unassigned.push_back(chunks.back());
    for (const std::int64_t q : of.spare_index) {
      sorted.push_back(of.by_number[static_cast<std::size_t>(e * ranks + q)]);
      unassigned.back() -= sorted.back();
    }
  }
  for (const std::int64_t q : of.spare_index) buckets.push_back(spare[static_cast<std::size_t>(q)]);
  return {{"matrix", matrix(sorted, experts, ranks)},
          {"matrix_sorted", matrix(sorted, experts, ranks)},
          {"matrix_expert_by_rank", matrix(of.by_number, experts, ranks)},
          {"spill_sorted", chunks},
          {"spill_index", of.spill_index},
          {"spare_sorted", buckets},
          {"spare_index", of.spare_index},
          {"chunk_cumsum", sums(chunks)},
          {"bucket_cumsum", sums(buckets)},
          {"assigned_total", added(sorted)},
          {"unassigned_chunk", unassigned},
          {"unassigned_chunk_sorted", unassigned}};
}

std::map<std::string, EchoCheck> echo_checks(const EchoStageSource& source, Device device) {
  const auto of_plans = [device](auto check) {
    return [=](const json& input, const json& expect) { check(input, expect, device); };
  };
  const auto of_stages = [&source](auto check) {
    return [&source, check](const json& input, const json& expect) { check(source, input, expect); };
  };
  return {{"plan", of_plans(check_plan)},
          {"rank_spare", of_plans(check_rank_spare)},
          {"reroute", of_plans(check_rewriting)},
          {"spill_to_slots",
           [&source, device](const json& input, const json& expect) {
             check_spill_to_slots(source, input, expect, device);
           }},
          {"spillover_one_rank", of_stages(check_spill)},
          {"spillover_without_sort_vs_with_sort", of_stages(check_spill_without_sort)},
          {"naive_per_expert_subtraction", of_stages(check_per_expert)},
          {"sort_and_overlap", of_stages(check_sort_and_overlap)},
          {"topk_slots", of_stages(check_top_slots)},
          {"allocate", of_stages(check_shares)},
          {"allocate_multi", of_stages(check_shares)}};
}

const std::set<std::string> kNotOfPlans = {"interval_overlap", "grouped_gemm_args", "row_budget", "graph_count",
                                           "graph_lifecycle"};

int check_echo_vectors(const std::map<std::string, EchoCheck>& checks, const std::set<std::string>& elsewhere) {
  int checked = 0;
  const json vectors = read_vectors();
  for (const json& entry : vectors.at("cases")) {
    const std::string op = entry.at("op");
    SCOPED_TRACE(entry.at("id").get<std::string>() + ", " + op);
    if (const auto check = checks.find(op); check != checks.end()) {
      check->second(entry.at("input"), entry.at("expect"));
      ++checked;
    } else {
      EXPECT_TRUE(elsewhere.contains(op)) << "an op that no test knows";
    }
  }
  return checked;
}

// ---- Stages of whole plans ----

namespace {

/// Counts with these loads of experts, all from source rank 0.
EchoCase case_of_loads(Index ranks, const Longs& loads, Index slots) {
  EchoCase of{.ranks = ranks, .experts = std::ssize(loads), .slots = slots};
  of.counts.resize(at(ranks * of.experts));
  std::ranges::transform(loads, of.counts.begin(), [](std::int64_t load) { return static_cast<std::int32_t>(load); });
  return of;
}

/// Spill and spare of a case as ranks with an expert each: first those that spill, then those with room. Further ranks
/// take what the case leaves over, after all others: they have the least room, and the greatest numbers.
EchoCase case_of_lists(const Longs& spill, const Longs& spare, Index slots) {
  const std::int64_t avg = std::ranges::max(spare);
  std::int64_t least = avg, left = added(spill) - added(spare);
  Longs loads;
  for (const std::int64_t pairs : spill) loads.push_back(avg + pairs);
  for (const std::int64_t room : spare) {
    loads.push_back(avg - room);
    if (room > 0) least = std::min(least, room);
  }
  EXPECT_GE(left, 0);
  for (; left > 0; left -= least) loads.push_back(avg - std::min(left, least));
  return case_of_loads(std::ssize(loads), loads, slots);
}

/// Numbers from `first` on, as numbers from 0 on.
Longs within(const Ints& order, Index first, std::size_t count) {
  Longs all;
  for (const std::int32_t number : order) {
    if (number >= first && number < first + static_cast<Index>(count)) all.push_back(number - first);
  }
  return all;
}

Overlaps overlaps_in(const PlannedEcho& plan, const Longs& spill, const Longs& spare) {
  const Index first = std::ssize(spill), ranks = std::ssize(spare);
  Overlaps of{within(plan.spill_index, 0, spill.size()), within(plan.spare_index, first, spare.size()),
              Longs(spill.size() * spare.size(), 0)};
  for (std::size_t i = 0; i + 2 < plan.moves.size() && plan.moves[i] >= 0; i += 3) {
    const Index rank = plan.moves[i + 1] - first;
    if (rank < ranks) of.by_number[at(plan.moves[i] * ranks + rank)] += plan.moves[i + 2];
  }
  return of;
}

}  // namespace

/// Rank 0 has the experts of the case. The others have room for what it has too many.
EchoStageSource::Spill StagesOfPlans::spill_of(const Longs& count, std::int64_t avg) const {
  const std::int64_t load = added(count);
  const Index local = std::ssize(count), ranks = 1 + (load + avg - 1) / avg;
  Longs loads = count;
  loads.resize(at(ranks * local), 0);
  std::int64_t left = ranks * avg - load;
  for (Index rank = 1; rank < ranks; ++rank) {
    const std::int64_t pairs = std::min(left, avg);
    loads[at(rank * local)] = pairs;
    left -= pairs;
  }
  EXPECT_EQ(left, 0);
  const PlannedEcho plan = planned_echo(case_of_loads(ranks, loads, 0), device_);
  EXPECT_EQ(plan.avg, avg);
  Spill of{Longs(plan.spill.begin(), plan.spill.begin() + local), Longs(count.size())};
  std::iota(of.order.begin(), of.order.end(), 0);
  std::ranges::stable_sort(of.order, {}, [&](std::int64_t i) { return count[at(i)]; });
  return of;
}

EchoStageSource::Overlaps StagesOfPlans::overlaps_of(const Longs& spill, const Longs& spare) const {
  const PlannedEcho plan = planned_echo(case_of_lists(spill, spare, 0), device_);
  EXPECT_TRUE(std::ranges::equal(spill, Ints(plan.spill.begin(), plan.spill.begin() + std::ssize(spill))));
  return overlaps_in(plan, spill, spare);
}

EchoStageSource::Slots StagesOfPlans::slots_of(const Longs& spill, const Longs& spare, Index slots_per_rank) const {
  const PlannedEcho plan = planned_echo(case_of_lists(spill, spare, slots_per_rank), device_);
  const Index first = std::ssize(spill) * slots_per_rank, end = first + std::ssize(spare) * slots_per_rank;
  Slots of{Ints(plan.src.begin() + first, plan.src.begin() + end),
           Ints(plan.cap.begin() + first, plan.cap.begin() + end), 0};
  of.dropped = added(overlaps_in(plan, spill, spare).by_number) - added(of.cap);
  return of;
}

/// Rank 0 has two experts. The second one, of the case, spills what the next ranks have room for, one slot each.
EchoStageSource::Shares StagesOfPlans::shares_of(const Ints& counts, const Ints& capacity) const {
  const std::int64_t total = added(counts), spill = added(capacity),
                     avg = std::max<std::int64_t>(std::ranges::max(capacity), total - spill);
  const Index slots = std::ssize(capacity), ranks = std::max<Index>(std::ssize(counts), 1 + slots);
  Longs loads(at(2 * ranks), 0);
  loads[0] = avg + spill - total;  // not above the second one's, so it stays whole
  for (Index rank = 1; rank < ranks; ++rank) loads[at(2 * rank)] = rank <= slots ? avg - capacity[at(rank - 1)] : avg;
  EchoCase of = case_of_loads(ranks, loads, 1);
  for (std::size_t source = 0; source < counts.size(); ++source) of.counts[source * at(2 * ranks) + 1] = counts[source];
  const PlannedEcho plan = planned_echo(of, device_);
  for (Index slot = 0; slot < slots; ++slot) {
    EXPECT_EQ(plan.src[at(1 + slot)], 1);
    EXPECT_EQ(plan.cap[at(1 + slot)], capacity[at(slot)]);
  }
  Shares shares{.total = plan.expert_total[1],
                .take = {},
                .breadth = {},
                .room = Ints(plan.room.begin() + 1, plan.room.begin() + 1 + slots)};
  for (Index source = 0; source < std::ssize(counts); ++source) {
    for (Index slot = 1; slot <= slots; ++slot) {
      shares.take.push_back(plan.take[at(source * ranks + slot)]);
      shares.breadth.push_back(plan.breadth[at(source * ranks + slot)]);
    }
  }
  return shares;
}

}  // namespace megalith::ops
