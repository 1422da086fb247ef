#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "megalith/ops/row_exchange.h"

#include "tests/ops/device_cases.h"

// The lists by which ranks read each other's rows: all numbers as the CPU's, and none written beyond them.
namespace megalith::ops {
namespace {

using support::Twin;
using support::Twins;

enum class Choosing : std::uint8_t { any, some, hot, none };

/// An exchange of R ranks with n rows of K choices.
struct ExchangeSizes {
  Index ranks, rows, top_k, num_experts;
  ExpertRanks at;
};

std::vector<std::int32_t> choices_of(const ExchangeSizes& x, Choosing choosing) {
  std::mt19937 random(static_cast<unsigned>(x.rows + 7 * static_cast<Index>(choosing)));
  std::vector<std::int32_t> experts(static_cast<std::size_t>(x.num_experts)), all;
  std::iota(experts.begin(), experts.end(), 0);
  for (Index row = 0; row < x.ranks * x.rows; ++row) {
    if (choosing != Choosing::hot) std::ranges::shuffle(experts, random);
    const unsigned drops = choosing == Choosing::any ? 6 : choosing == Choosing::some ? 2 : 0;
    for (Index k = 0; k < x.top_k; ++k) {
      const bool dropped = choosing == Choosing::none || (drops > 0 && random() % drops == 0);
      all.push_back(dropped ? -1 : experts[static_cast<std::size_t>(k)]);
    }
  }
  return all;
}

/// A plan's lists on both sides, all numbers 77.
class PlanTwins {
 public:
  PlanTwins(Twins& twins, const ExchangeSizes& x, const std::vector<std::int32_t>& chosen, Index alignment, Index each,
            Index first_groups)
      : twins_(twins) {
    const Index local = x.at.local_experts, own = x.rows * x.top_k;
    plan_.experts = Tensor(nullptr, {x.ranks, x.rows, x.top_k}, DType::i32);
    plan_.ranks = x.at;
    plan_.num_experts = x.num_experts;
    plan_.rows_of_each = each;
    plan_.first_groups = first_groups;
    const Index pairs = pairs_to_receive(plan_), results = capacity_of_groups(pairs, local, alignment);
    experts_ = twins.bytes_of(chosen.data(), plan_.experts.shape(), DType::i32);
    plan_.groups.alignment = alignment;
    for (const Shape& shape :
         {Shape{local}, Shape{local}, Shape{2}, Shape{x.ranks * x.rows, 2}, Shape{x.ranks * x.rows + 1}, Shape{results},
          Shape{2}, Shape{x.ranks * x.rows, 2}, Shape{x.ranks * x.rows + 1}, Shape{results}, Shape{2}, Shape{pairs, 2},
          Shape{pairs + 1}, Shape{results}, Shape{own * x.at.slices, 2}, Shape{x.rows + 1}, Shape{own + 1}}) {
      const std::vector<std::int32_t> nothing(static_cast<std::size_t>(shape.numel()), 77);
      lists_.push_back(twins.bytes_of(nothing.data(), shape, DType::i32));
    }
  }
  PlanExchange on(const Exec& ex, Index rank) const {
    PlanExchange plan = plan_;
    auto list = lists_.begin();
    plan.experts = experts_.on(ex);
    plan.rank = rank;
    for (Tensor* to : {&plan.groups.begin, &plan.groups.rows, &plan.rows.counts, &plan.rows.sources, &plan.rows.begin,
                       &plan.rows.wants, &plan.rest.counts, &plan.rest.sources, &plan.rest.begin, &plan.rest.wants,
                       &plan.pairs.counts, &plan.pairs.sources, &plan.pairs.begin, &plan.pairs.wants, &plan.places,
                       &plan.row_begin, &plan.pair_begin})
      *to = (list++)->on(ex);
    return plan;
  }
  void expect_equal() const {
    constexpr const char* kNames[] = {"groups.begin", "groups.rows",   "rows.counts",  "rows.sources", "rows.begin",
                                      "rows.wants",   "rest.counts",   "rest.sources", "rest.begin",   "rest.wants",
                                      "pairs.counts", "pairs.sources", "pairs.begin",  "pairs.wants",  "places",
                                      "row_begin",    "pair_begin"};
    for (std::size_t i = 0; i < lists_.size(); ++i) {
      const std::span<const std::int32_t> want = lists_[i].oracle.span<std::int32_t>();
      std::vector<std::int32_t> got(want.size());
      twins_.tested().copy(got.data(), lists_[i].tested.raw(), lists_[i].tested.bytes());
      twins_.tested().synchronize();
      const auto differs = std::ranges::mismatch(got, want).in1 - got.begin();
      EXPECT_EQ(differs, std::ssize(got))
          << kNames[i] << "[" << differs << "] = " << got[static_cast<std::size_t>(differs)] << ", not "
          << want[static_cast<std::size_t>(differs)];
    }
  }

 private:
  Twins& twins_;
  PlanExchange plan_;
  Twin experts_;
  std::vector<Twin> lists_;
};

TEST_P(DeviceOps, RowExchanges) {
  // Slices of experts, an expert a rank, no rows, parts of many warps, ranges of more numbers than a block has threads.
  for (const ExchangeSizes& x :
       {ExchangeSizes{2, 9, 2, 8, {.local_experts = 4}}, ExchangeSizes{4, 5, 3, 4, {.local_experts = 1}},
        ExchangeSizes{8, 1, 1, 16, {.local_experts = 2}}, ExchangeSizes{2, 0, 2, 4, {.local_experts = 2}},
        ExchangeSizes{4, 60, 2, 6, {.local_experts = 3, .slices = 2, .expert_stride = 2}},
        ExchangeSizes{4, 60, 2, 6, {.local_experts = 3, .slices = 2, .slice_stride = 2}},
        ExchangeSizes{4, 60, 2, 6, {.local_experts = 6, .slices = 4, .expert_stride = 4}},
        ExchangeSizes{4, 4096, 8, 64, {.local_experts = 16}}, ExchangeSizes{3, 700, 1, 3, {.local_experts = 1}},
        ExchangeSizes{2, 3000, 5, 1024, {.local_experts = 512}}}) {
    for (const Choosing choosing : {Choosing::any, Choosing::some, Choosing::hot, Choosing::none}) {
      const std::vector<std::int32_t> chosen = choices_of(x, choosing);
      for (const auto& [alignment, each] : {std::pair<Index, Index>{1, 0}, {128, 0}, {1, 3}, {128, 3}, {1, 400}}) {
        const Index first_groups = x.at.local_experts / 2;  // also 0
        const PlanTwins plan(t(), x, chosen, alignment, each, each == 3 ? 0 : first_groups);
        for (const Index rank : {Index{0}, x.ranks - 1}) {
          SCOPED_TRACE(::testing::Message()
                       << "rank " << rank << " of " << x.ranks << ", " << x.rows << " rows, " << x.num_experts
                       << " experts, " << x.at.slices << " slices, alignment " << alignment << ", each " << each
                       << ", choices " << static_cast<int>(choosing));
          t().run([&](Exec& ex) { plan_exchange(ex, plan.on(ex, rank)); });
          plan.expect_equal();
        }
        t().release();
      }
    }
  }
}

}  // namespace
}  // namespace megalith::ops
