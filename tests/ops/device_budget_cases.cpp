#include <random>
#include <vector>

#include "megalith/ops/row_budget.h"
#include "megalith/ops/row_rounds.h"

#include "tests/ops/device_cases.h"

// Rows that have no room, and the lists of exchanges in rounds: all numbers as the CPU's.
namespace megalith::ops {
namespace {

using support::Twin;

/// R ranks with n rows of K choices, of E experts, L on each rank.
struct RoomSizes {
  Index ranks, rows, top_k, experts, local;
};

std::vector<std::int32_t> crowded_choices(const RoomSizes& of) {
  std::mt19937 random(static_cast<unsigned>(of.rows));
  std::vector<std::int32_t> all;
  for (Index row = 0; row < of.ranks * of.rows; ++row) {
    const auto draw = static_cast<Index>(random() % 100);
    const Index first = draw < 50 ? draw % 2 : static_cast<Index>(random() % static_cast<unsigned>(of.experts));
    for (Index k = 0; k < of.top_k; ++k)
      all.push_back(random() % 9 == 0 ? -1 : static_cast<std::int32_t>((first + k) % of.experts));
  }
  return all;
}

template <class T>
void expect_same_numbers(support::Twins& twins, const Twin& twin, const char* what) {
  std::vector<T> got(static_cast<std::size_t>(twin.tested.numel()));
  twins.tested().copy(got.data(), twin.tested.raw(), twin.tested.bytes());
  twins.tested().synchronize();
  const std::span<const T> want = twin.oracle.span<T>();
  EXPECT_EQ(got, std::vector<T>(want.begin(), want.end())) << what;
}

TEST_P(DeviceOps, RowsWithoutRoom) {
  for (const RoomSizes& of : {RoomSizes{4, 0, 2, 8, 2}, RoomSizes{2, 5, 3, 6, 3}, RoomSizes{4, 700, 2, 8, 2},
                              RoomSizes{8, 40, 1, 1024, 128}, RoomSizes{4, 2000, 8, 64, 16}}) {
    const Index pairs = of.ranks * of.rows * of.top_k;
    const std::vector<std::int32_t> choices = crowded_choices(of);
    for (const Index room : {Index{0}, pairs / 16, pairs / 4, pairs}) {
      for (const Index rank : {Index{-1}, Index{0}, of.ranks - 1}) {
        SCOPED_TRACE(::testing::Message()
                     << of.ranks << " ranks, " << of.rows << " rows, room " << room << ", rank " << rank);
        const std::vector<std::int64_t> totals = {10, 3}, drops = {20};
        const Twin experts = t().bytes_of(choices.data(), {of.ranks, of.rows, of.top_k}, DType::i32),
                   overflow = t().bytes_of(totals.data(), {2}, DType::i64),
                   dropped = t().bytes_of(drops.data(), {1}, DType::i64);
        t().run([&](Exec& ex) {
          limit_rows(ex, {.experts = experts.on(ex),
                          .overflow = overflow.on(ex),
                          .dropped = rank == 0 ? Tensor() : dropped.on(ex),
                          .num_experts = of.experts,
                          .local_experts = of.local,
                          .room = room,
                          .rank = rank});
        });
        expect_same_numbers<std::int32_t>(t(), experts, "experts");
        expect_same_numbers<std::int64_t>(t(), overflow, "overflow");
        expect_same_numbers<std::int64_t>(t(), dropped, "dropped");
        t().release();
      }
    }
  }
}

TEST_P(DeviceOps, ListsOfRounds) {
  for (const RoomSizes& of : {RoomSizes{2, 5, 3, 6, 3}, RoomSizes{4, 700, 2, 8, 2}, RoomSizes{4, 900, 2, 1024, 256}}) {
    const std::vector<std::int32_t> choices = crowded_choices(of);
    std::vector<std::int32_t> round_of, places;
    for (Index expert = 0; expert < of.experts; ++expert)
      round_of.push_back(static_cast<std::int32_t>(expert % of.local * 3 / of.local));
    for (Index i = 0; i < 2 * of.rows * of.top_k; ++i) {
      places.push_back(i % 5 == 0 ? -1 : static_cast<std::int32_t>(i % of.ranks));
      places.push_back(static_cast<std::int32_t>(i));
    }
    const Index count = std::ssize(places) / 2;
    const std::vector<std::int32_t> nothing(static_cast<std::size_t>(2 * count + 2), -7);
    const Twin experts = t().bytes_of(choices.data(), {of.ranks, of.rows, of.top_k}, DType::i32),
               of_round = t().bytes_of(choices.data(), {of.ranks, of.rows, of.top_k}, DType::i32),
               row_of = t().bytes_of(nothing.data(), {of.rows, 2 * of.top_k}, DType::i32),
               placed = t().bytes_of(places.data(), {count, 2}, DType::i32),
               counts = t().bytes_of(nothing.data(), {2}, DType::i32),
               sources = t().bytes_of(nothing.data(), {count, 2}, DType::i32),
               begin = t().bytes_of(nothing.data(), {count + 1}, DType::i32),
               wants = t().bytes_of(nothing.data(), {count}, DType::i32);
    t().run([&](Exec& ex) {
      choices_of_round(ex, {.experts = experts.on(ex), .of_round = of_round.on(ex), .round_of = round_of, .round = 1});
      number_pairs(ex, experts.on(ex).rows(0, 1).reshaped({of.rows, of.top_k}), row_of.on(ex));
      pull_places(ex, placed.on(ex),
                  {.counts = counts.on(ex), .sources = sources.on(ex), .begin = begin.on(ex), .wants = wants.on(ex)});
    });
    for (const auto& [list, name] : {std::pair{&of_round, "of_round"},
                                     {&row_of, "row_of"},
                                     {&counts, "counts"},
                                     {&sources, "sources"},
                                     {&begin, "begin"},
                                     {&wants, "wants"}})
      expect_same_numbers<std::int32_t>(t(), *list, name);
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
