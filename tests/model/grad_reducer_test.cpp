#include "megalith/optim/grad_reducer.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/silent_channel.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/model/stage.h"
#include "megalith/ops/elementwise.h"

namespace megalith::model {
namespace {

constexpr Index kLayers = 8;

ModelConfig eight_layers() {
  return {.num_layers = kLayers,
          .hidden_size = 32,
          .num_heads = 4,
          .ffn_hidden_size = 128,
          .seq_len = 8,
          .vocab_size = 50,
          .padded_vocab_size = 128};
}

/// f32 elements of a layer's four matrices.
constexpr Index kMatrixElements = 12 * 32 * 32;

void wait_for_all(optim::GradReducer& reducer, Exec& ex, const ParamBuffer& params) {
  for (std::size_t bucket = 0; bucket < params.buckets().size(); ++bucket) reducer.wait(ex, bucket);
}

struct Cut {
  int tp = 1, pp = 1, chunks = 1;
  Index bucket_layers = 1;  ///< that fill a bucket
  nn::SequenceParallel sequence_parallel = nn::SequenceParallel::off;
};

class Buckets : public testing::TestWithParam<Cut> {};

TEST_P(Buckets, CoverTheGradientsOnceAndHoldNoMoreLayersThanTheyNeed) {
  const auto [tp, pp, chunks, bucket_layers, sequence_parallel] = GetParam();
  for (int rank = 0; rank < tp * pp; ++rank) {
    const std::unique_ptr<comm::World> world = comm::dry_world(rank, tp * pp);
    const comm::Mesh mesh = comm::make_mesh(*world, grid::resolve({.world_size = tp * pp, .tp = tp, .pp = pp}));
    const Index elements = bucket_layers * kMatrixElements / tp;
    const Stage stage({.model = eight_layers(),
                       .chunks = chunks,
                       .sequence_parallel = sequence_parallel,
                       .global_batch = pp,
                       .grad_bucket_bytes = elements * size_of(DType::f32)},
                      mesh);

    std::vector<Bucket> buckets = stage.params().dense().buckets();
    std::ranges::sort(buckets, {}, &Bucket::begin);
    Index covered = 0;
    for (const Bucket& bucket : buckets) {
      EXPECT_EQ(bucket.begin, covered);
      covered = bucket.end;
    }
    EXPECT_EQ(covered, stage.params().dense().numel());

    for (const Param& param : stage.params().dense().params()) {
      const auto holder =
          std::ranges::find_if(buckets, [&](const auto& b) { return b.begin <= param.offset && param.offset < b.end; });
      ASSERT_NE(holder, buckets.end());
      EXPECT_LE(param.offset + param.spec.held.numel(), holder->end);
      EXPECT_EQ(param.spec.placement, holder->placement) << param.name();
      EXPECT_EQ(grid::owns_in_copy(param.spec.placement, mesh.coordinates(grid::GridKind::dense)),
                holder->ownership == Ownership::owner)
          << param.name();
      const bool listed = std::ranges::find(holder->layers, param.spec.layer) != holder->layers.end();
      EXPECT_EQ(listed, param.spec.layer >= 0) << param.name();
      if (param.spec.first_grad != FirstGrad::overwritten) continue;  // the vectors of many layers share a bucket
      EXPECT_LE(static_cast<Index>(holder->layers.size()), bucket_layers) << param.name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Grids, Buckets,
    testing::Values(Cut{}, Cut{.bucket_layers = 3}, Cut{.tp = 2, .bucket_layers = 2}, Cut{.pp = 2, .chunks = 2},
                    Cut{.tp = 2, .pp = 4, .chunks = 2}, Cut{.pp = 2, .chunks = 4, .bucket_layers = 8},
                    Cut{.tp = 2, .bucket_layers = 2, .sequence_parallel = nn::SequenceParallel::on},
                    Cut{.tp = 2, .pp = 4, .chunks = 2, .sequence_parallel = nn::SequenceParallel::on}));

class GradSums : public testing::TestWithParam<Sharding> {};

TEST_P(GradSums, ABucketIsSentWithItsLastLayerAndEverythingIsSummedOnce) {
  constexpr int kRanks = 2;
  comm::run_ranks(kRanks, [](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({.world_size = kRanks}));
    Stage stage({.model = eight_layers(),
                 .global_batch = kRanks,
                 .sharding = GetParam(),
                 .grad_bucket_bytes = 2 * kMatrixElements * size_of(DType::f32)},
                mesh);
    MemoryLedger ledger(Device::cpu);
    stage.allocate(ledger);
    ParamBuffer& params = stage.params().dense();
    optim::GradReducer reducer(params, mesh);
    const std::span<float> grads = params.grads().span<float>();
    Exec ex;

    for (int step = 0; step < 2; ++step) {
      for (std::size_t i = 0; i < grads.size(); ++i)
        grads[i] = static_cast<float>(i % 1000) + static_cast<float>(1000 * (world.rank() + step));
      const comm::Counters before = mesh.dp.counters();
      const auto calls = [&](comm::Op op) { return mesh.dp.counters()[op].calls - before[op].calls; };
      reducer.begin();
      for (Index layer = kLayers; layer-- > 0;) {
        reducer.layer_done(ex, layer);
        // A bucket has the matrices of two layers; the vectors of all layers are one more.
        const Index pairs = (kLayers - layer) / 2;
        EXPECT_EQ(calls(comm::Op::reduce_scatter), layer == 0 ? pairs + 1 : pairs) << layer;
      }
      reducer.send_rest(ex);
      const auto buckets = static_cast<Index>(params.buckets().size());
      EXPECT_EQ(calls(comm::Op::reduce_scatter), buckets);
      EXPECT_EQ(calls(comm::Op::all_gather), params.is_sharded() ? 0 : buckets);
      wait_for_all(reducer, ex, params);
      for (const OwnRange& range : params.own_ranges()) {
        for (Index i = range.in_whole; i < range.in_whole + range.count; ++i)
          ASSERT_EQ(grads[static_cast<std::size_t>(i)], static_cast<float>(2 * (i % 1000) + 1000 * (2 * step + 1)))
              << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, GradSums, testing::Values(Sharding::none, Sharding::optimizer),
                         [](const auto& test) { return test.param == Sharding::none ? "whole" : "shards"; });

/// Numbers whose f32 sum depends on its order.
float addend(int rank, Index microbatch, Index element) {
  constexpr float kOf[] = {16777216.0f, 1.0f, -16777216.0f, 3.0f, 0.5f};
  return kOf[static_cast<std::size_t>((rank * 3 + microbatch * 2 + element) % 5)];
}

// A window's gradients leave in every microbatch. They are summed over the ranks, then over the microbatches. NaN where
// a bucket before has left numbers in the gaps, or where a window is written too early, would be seen.
TEST(GradReducer, ShardsAddUpSumsOverRanksInTheOrderOfMicrobatches) {
  constexpr int kRanks = 3;
  constexpr Index kMicrobatches = 3;
  comm::run_ranks(kRanks, [](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({.world_size = kRanks}));
    ModelConfig model = eight_layers();
    model.ffn_hidden_size = 100;  // leaves gaps
    Stage stage({.model = model,
                 .global_batch = kRanks * kMicrobatches,
                 .sharding = Sharding::optimizer,
                 .shard = ShardedState::gradients},
                mesh);
    MemoryLedger ledger(Device::cpu);
    stage.allocate(ledger);
    const ParamBuffer& params = stage.params().dense();
    ASSERT_TRUE(params.shards_gradients());
    optim::GradReducer reducer(params, mesh);
    Exec ex;
    for (const Tensor& window : params.grad_windows()) ops::fill(ex, window, std::nan(""));
    for (int step = 0; step < 2; ++step) {
      const Index before = mesh.dp.counters()[comm::Op::reduce_scatter].bytes;
      ops::fill(ex, params.grads(), 1);
      reducer.begin();
      for (Index microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
        using Pass = optim::GradReducer::Pass;
        reducer.begin_pass(microbatch + 1 == kMicrobatches ? Pass::last : Pass::earlier);
        for (Index layer = kLayers; layer-- > 0;) {
          for (int again = 0; again < 2; ++again) reducer.layer_begins(ex, layer);
          for (const Param& param : params.params()) {
            if (!param.grad_in_window || param.spec.layer != layer) continue;
            const std::span<float> grad = param.grad.span<float>();
            for (std::size_t i = 0; i < grad.size(); ++i)
              grad[i] = addend(world.rank(), microbatch, static_cast<Index>(i) + layer);
          }
          reducer.layer_done(ex, layer);
        }
      }
      reducer.send_rest(ex);
      wait_for_all(reducer, ex, params);
      EXPECT_EQ((mesh.dp.counters()[comm::Op::reduce_scatter].bytes - before) / kRanks * (kRanks - 1),
                params.sum_bytes(kMicrobatches));
      for (const OwnRange& range : params.own_ranges()) {
        const float* const sums = params.own_grads(range).data<float>();
        for (Index i = 0; i < range.count; ++i) {
          const Index element = range.in_whole + i;
          const auto holder = std::ranges::find_if(params.params(), [&](const Param& param) {
            return param.offset <= element && element < param.offset + param.spec.held.numel();
          });
          float want = 0;
          if (holder == params.params().end() ? element < params.grads().numel() : !holder->grad_in_window) {
            want = kRanks;  // whole ones, with their gaps
          } else if (holder != params.params().end()) {
            for (Index microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
              float of_ranks = 0;
              for (int rank = 0; rank < kRanks; ++rank)
                of_ranks += addend(rank, microbatch, element - holder->offset + holder->spec.layer);
              want = microbatch == 0 ? of_ranks : want + of_ranks;
            }
          }
          ASSERT_EQ(sums[i], want) << element;
        }
      }
    }
  });
}

TEST(GradReducer, RefusesAWindowThatAnUnfinishedLayerHas) {
  comm::run_ranks(2, [](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({.world_size = 2}));
    Stage stage(
        {.model = eight_layers(), .global_batch = 2, .sharding = Sharding::optimizer, .shard = ShardedState::gradients},
        mesh);
    MemoryLedger ledger(Device::cpu);
    stage.allocate(ledger);
    optim::GradReducer reducer(stage.params().dense(), mesh);
    Exec ex;
    reducer.begin();
    for (const Index layer : {7, 6}) reducer.layer_begins(ex, layer);
    EXPECT_THROW(reducer.layer_begins(ex, 5), InternalError);
    EXPECT_THROW(reducer.layer_done(ex, 4), InternalError);
  });
}

TEST(GradReducer, SumsPartialGradientsOverTpInOneCall) {
  constexpr int kRanks = 4;
  comm::run_ranks(kRanks, [](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({.world_size = kRanks, .tp = 2}));
    Stage stage({.model = eight_layers(),
                 .sequence_parallel = nn::SequenceParallel::on,
                 .global_batch = 2,
                 .grad_bucket_bytes = 1},
                mesh);
    MemoryLedger ledger(Device::cpu);
    stage.allocate(ledger);
    Exec ex;
    ops::fill(ex, stage.params().dense().grads(), 1);
    optim::GradReducer reducer(stage.params().dense(), mesh);
    reducer.begin();
    for (Index layer = kLayers; layer-- > 0;) reducer.layer_done(ex, layer);
    EXPECT_EQ(mesh.tp.counters()[comm::Op::all_reduce].calls, 0);
    reducer.send_rest(ex);
    wait_for_all(reducer, ex, stage.params().dense());
    EXPECT_EQ(mesh.tp.counters()[comm::Op::all_reduce].calls, 1);
    for (const Param& param : stage.params().dense().params()) {
      const bool of_norm = param.name().find("norm") != std::string::npos;
      for (const float sum : param.grad.span<float>()) ASSERT_EQ(sum, of_norm ? 4 : 2) << param.name();
    }
  });
}

/// A channel of two ranks, of which the other is not there. Notes which sums are requested.
class Noted final : public comm::SilentChannel {
 public:
  explicit Noted(std::vector<comm::Priority>& priorities) : SilentChannel("dp", {0, 1}, 0), priorities_(priorities) {}
  comm::Ticket reduce_scatter(const comm::Call& call, const void*, void*, Stream) override {
    priorities_.push_back(call.priority);
    return {};
  }
  comm::Ticket all_gather(const comm::Call& call, const void*, void*, Stream) override {
    EXPECT_EQ(call.priority, priorities_.back());
    return {};
  }
  void wait(comm::Ticket, Stream) override {}

 private:
  std::vector<comm::Priority>& priorities_;
};

TEST(GradReducer, SumsHaveWorkBesideThemUntilTheLastLayer) {
  for (const int tp : {1, 2}) {
    SCOPED_TRACE(tp);
    const std::unique_ptr<comm::World> world = comm::dry_world(0, 2 * tp);
    comm::Mesh mesh = comm::make_mesh(*world, grid::resolve({.world_size = 2 * tp, .tp = tp}));
    Stage stage({.model = eight_layers(),
                 .global_batch = 2,
                 .grad_bucket_bytes = 2 * kMatrixElements / tp * size_of(DType::f32)},
                mesh);
    MemoryLedger ledger(Device::cpu);
    stage.allocate(ledger);
    std::vector<comm::Priority> priorities;
    mesh.dp_cp = comm::Group(std::make_shared<Noted>(priorities));
    optim::GradReducer reducer(stage.params().dense(), mesh);
    Exec ex;
    reducer.begin();
    for (Index layer = kLayers; layer-- > 0;) reducer.layer_done(ex, layer);
    // The matrices of two layers each; with the last layer before its matrices the vectors of all, and after them
    // those that tp holds.
    using enum comm::Priority;
    std::vector<comm::Priority> want = {beside_work, beside_work, beside_work, beside_work, alone};
    if (tp > 1) want.push_back(alone);
    EXPECT_EQ(priorities, want);
    reducer.send_rest(ex);
    want.resize(stage.params().dense().buckets().size(), alone);
    EXPECT_EQ(priorities, want);
    wait_for_all(reducer, ex, stage.params().dense());
  }
}

TEST(GradReducer, RefusesToWaitForWhatHasNotBeenSent) {
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 1);
  const comm::Mesh mesh = comm::make_mesh(*world, grid::resolve({.world_size = 1}));
  Stage stage({.model = eight_layers(), .global_batch = 1}, mesh);
  Exec ex;
  optim::GradReducer reducer(stage.params().dense(), mesh);
  reducer.begin();
  EXPECT_THROW(reducer.wait(ex, 0), InternalError);
}

TEST(GradReducer, RefusesALayerThatIsDoneTwice) {
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 1);
  const comm::Mesh mesh = comm::make_mesh(*world, grid::resolve({.world_size = 1}));
  const Stage stage({.model = eight_layers(), .grad_bucket_bytes = 1}, mesh);
  optim::GradReducer reducer(stage.params().dense(), mesh);
  Exec ex;
  reducer.begin();
  reducer.layer_done(ex, 3);
  EXPECT_NO_THROW(reducer.layer_done(ex, 2));
  EXPECT_ANY_THROW(reducer.layer_done(ex, 3));
}

}  // namespace
}  // namespace megalith::model
