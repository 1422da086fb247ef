#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/wrapped_world.h"
#include "tests/train/graph_ways.h"

// What several ranks of a model copy hold (norms over tp, the tied table on two stages) stays the same bit for bit
// where sums over dp depend on the place of a number, as NCCL's do.
namespace megalith {
namespace {

using support::Grid;

/// Sums f32 in an order that depends on where in the tensor a number lies and on the ranks of the group.
class OrderlessChannel final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;

  bool sums_in_rank_order() const override { return false; }
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream stream) override {
    if (call.dtype != DType::f32) return ForwardingChannel::reduce_scatter(call, in, out, stream);
    const auto count = static_cast<std::size_t>(call.count), ranks = static_cast<std::size_t>(size());
    std::vector<float> all(count * ranks);
    comm::Call gather = call;
    gather.op = comm::Op::all_gather;
    const comm::Ticket gathered = inner().all_gather(gather, in, all.data(), stream);  // complete
    const std::size_t shard = count / ranks, begin = static_cast<std::size_t>(rank()) * shard;
    const auto lowest = static_cast<std::size_t>(world_ranks()[0]);
    for (std::size_t i = 0; i < shard; ++i) {
      const std::size_t place = begin + i, first = place + lowest + lowest / ranks;
      float sum = 0;
      for (std::size_t r = 0; r < ranks; ++r) sum += all[(first + r) % ranks * count + place];
      static_cast<float*>(out)[i] = sum;
    }
    return gathered;
  }
};

class HeldAlike : public ::testing::TestWithParam<Grid> {};

TEST_P(HeldAlike, StaysAlikeWhateverTheOrderOfSums) {
  const Grid grid = GetParam();
  config::RunConfig config = support::small_config(grid, "fp32", 5);
  config.train.global_batch = 12;
  const config::RunPlan eager = config::resolve(config);
  for (const config::RunPlan& plan : {eager, support::with_graphs(eager, support::kWholeSteps, 2)}) {
    support::RunRecord record;
    comm::run_ranks(grid.ranks(), [&](comm::World& world) {
      comm::WrappedWorld<OrderlessChannel> orderless(world);
      support::train_rank(orderless, plan, record);
    });
    EXPECT_THAT(record.parameters.disagreeing(), ::testing::IsEmpty()) << capture::name(plan.graphs.mode);
  }
}

std::vector<Grid> grids_of_three_copies() {
  std::vector<Grid> grids = {{.tp = 2, .dp = 3},
                             {.tp = 2, .dp = 3, .sequence_parallel = nn::SequenceParallel::on},
                             {.pp = 2, .dp = 3},
                             {.tp = 2, .pp = 2, .dp = 3},
                             {.tp = 2, .pp = 2, .dp = 3, .chunks = 2, .sequence_parallel = nn::SequenceParallel::on}};
  for (std::size_t i = 0, count = grids.size(); i < count; ++i) {
    grids.push_back(grids[i]);
    grids.back().sharding = Sharding::optimizer;
  }
  return grids;
}

INSTANTIATE_TEST_SUITE_P(Grids, HeldAlike, ::testing::ValuesIn(grids_of_three_copies()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
