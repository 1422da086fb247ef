#include <limits>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/params/param_set.h"

namespace megalith {
namespace {

ParamSpec piece(const std::string& name, Shape global, std::array<Index, 4> offset, Shape local) {
  return {{name, global, offset, local}, local, Init::normal, 0.02};
}

TEST(ParamBuffer, WhatOtherRanksHoldTooComesFirstAndPartsAreViews) {
  ParamSpec replica = piece("b", {3}, {}, {3});
  replica.placement = grid::kReplicated;
  ParamBuffer params({piece("a", {2, 5}, {}, {2, 5}), replica}, {DType::f64, DType::f64},
                     {.bucket_elements = 1, .place = {.tp = 1}});
  EXPECT_EQ(params.params()[0].name(), "b");
  EXPECT_EQ(params.buckets().back().end, 128);  // aligned
  EXPECT_EQ(params.buckets().back().ownership, Ownership::replica);
  EXPECT_EQ(params.buckets().back().placement, grid::kReplicated);
  EXPECT_EQ(params.numel(), 256);
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  EXPECT_EQ(ledger.by_owner().at("parameters"), 256 * 8);
  EXPECT_EQ(ledger.by_owner().at("gradients"), 256 * 8);
  params.at("a").value.data<double>()[1] = 7;
  EXPECT_EQ(params.values().data<double>()[129], 7);
  EXPECT_THROW(params.at("c"), InternalError);
}

TEST(ParamBuffer, GradientsToClearAreFewRangesWithoutOverwrittenOnes) {
  std::vector<ParamSpec> specs = {piece("bias", {3}, {}, {3}), piece("weight", {2, 5}, {}, {2, 5}),
                                  piece("norm", {3}, {}, {3}), piece("tied", {2, 5}, {}, {2, 5})};
  specs[1].first_grad = specs[3].first_grad = FirstGrad::overwritten;
  specs[2].placement = grid::kReplicated;
  specs[3].placement = grid::kTiedEnds;
  const auto ranges = [&](const std::vector<ParamSpec>& declared) {
    // Shards leave gaps between buckets, which no range may have of its own.
    ParamBuffer params(declared, {DType::f64, DType::f64}, {.bucket_elements = 1, .shards = 3});
    MemoryLedger ledger(Device::cpu);
    params.allocate(ledger);
    std::vector<std::string> found;
    for (const Tensor& range : params.added_grads()) {
      found.emplace_back();
      for (const Param& param : params.params()) {
        const auto* const grad = param.grad.data<double>();
        if (grad < range.data<double>() || grad >= range.data<double>() + range.numel()) continue;
        found.back() += str(found.back().empty() ? "" : " ", param.name());
      }
    }
    return found;
  };
  EXPECT_EQ(ranges(specs), (std::vector<std::string>{"norm", "bias"}));
  EXPECT_EQ(ranges({specs[0], specs[2]}), (std::vector<std::string>{"norm bias"}));
  EXPECT_EQ(ranges({specs[1], specs[3]}), std::vector<std::string>{});
}

TEST(ParamBuffer, BucketsOfWhatTpHoldsLookTheSameToOwnersAndReplicas) {
  const auto declared = [] {
    std::vector<ParamSpec> specs = {piece("norm1", {3}, {}, {3}),        piece("bias", {7}, {}, {7}),
                                    piece("norm2", {200}, {}, {200}),    piece("weight", {2, 5}, {}, {2, 5}),
                                    piece("row_bias", {300}, {}, {300}), piece("tied", {2, 5}, {}, {2, 5})};
    specs[3].first_grad = FirstGrad::overwritten;
    specs[5].placement = grid::kTiedEnds;
    specs[4].placement = grid::kReplicated;
    specs[0].placement = specs[2].placement = grid::kReplicatedPartial;
    return specs;
  };
  constexpr Index kAll = std::numeric_limits<Index>::max();
  for (const int tp_rank : {0, 1}) {
    const Ownership of_norms = tp_rank == 0 ? Ownership::owner : Ownership::replica;
    ParamBuffer params(declared(), {DType::f64, DType::f64}, {.bucket_elements = kAll, .place = {.tp = tp_rank}});
    MemoryLedger ledger(Device::cpu);
    params.allocate(ledger);
    const Tensor partial = params.partial_grads();
    EXPECT_EQ(partial.numel(), 128 + 256);
    EXPECT_EQ(partial.raw(), params.at("norm1").grad.raw());
    EXPECT_EQ(partial.rows(128, 1).raw(), params.at("norm2").grad.raw());
    std::vector<std::pair<Index, Ownership>> held_by_tp;
    for (const Bucket& bucket : params.buckets()) {
      if (grid::replica_group(bucket.placement) == grid::GroupKind::tp)
        held_by_tp.emplace_back(bucket.numel(), bucket.ownership);
    }
    EXPECT_EQ(held_by_tp, (std::vector<std::pair<Index, Ownership>>{{384, of_norms}, {384, of_norms}}));
  }
  std::vector<ParamSpec> wrong = declared();
  wrong[2].placement = {.replicated = grid::kDataAxes, .partial = grid::kReplicatedPartial.partial};
  EXPECT_THROW(ParamBuffer(wrong, {DType::f64, DType::f64}, {}), InternalError);
  wrong[2].placement = {.grid = grid::GridKind::expert};
  EXPECT_THROW(ParamBuffer(wrong, {DType::f64, DType::f64}, {}), InternalError) << "one grid a buffer";
  ParamBuffer none({piece("bias", {3}, {}, {3})}, {DType::f64, DType::f64});
  EXPECT_EQ(none.partial_grads().numel(), 0);
}

/// A model of two layers with vectors, something outside the layers and a replica, of sizes that nothing divides.
std::vector<ParamSpec> odd_specs() {
  std::vector<ParamSpec> specs = {piece("table", {37, 11}, {}, {37, 11})};
  for (Index layer = 0; layer < 2; ++layer) {
    for (const auto& [name, shape] : {std::pair{"weight", Shape{13, 11}}, {"bias", Shape{13}}}) {
      specs.push_back(piece(str("layers.", layer, ".", name), shape, {}, shape));
      specs.back().layer = layer;
      if (shape.rank() == 2) specs.back().first_grad = FirstGrad::overwritten;
    }
  }
  specs.push_back(piece("norm", {13}, {}, {13}));
  specs.back().placement = grid::kReplicated;
  return specs;
}

TEST(ParamBuffer, BucketsDivideIntoEqualShardsThatCoverEachElementOnce) {
  constexpr Index kAligned = 128;
  for (const int shards : {1, 2, 3, 8}) {
    SCOPED_TRACE(shards);
    std::vector<int> updated;
    for (int own = 0; own < shards; ++own) {
      const ParamBuffer params(odd_specs(), {DType::f32, DType::bf16},
                               {.bucket_elements = 1, .shards = shards, .own = own, .sharding = Sharding::optimizer});
      updated.resize(static_cast<std::size_t>(params.numel()));
      Index begin = params.numel();
      for (const Bucket& bucket : params.buckets()) {  // from the end
        EXPECT_EQ(bucket.end, begin);
        begin = bucket.begin;
        EXPECT_EQ(bucket.begin % (kAligned * shards), 0);
        EXPECT_EQ(bucket.numel() % (kAligned * shards), 0);
        EXPECT_EQ(params.own_shard(params.values(), bucket).numel(), bucket.numel() / shards);
      }
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(params.own_numel(), params.numel() / shards);
      Index in_own = params.own_numel();
      for (const OwnRange& range : params.own_ranges()) {
        EXPECT_EQ(range.in_own + range.count, in_own);
        in_own = range.in_own;
        for (Index i = range.in_whole; i < range.in_whole + range.count; ++i) ++updated[static_cast<std::size_t>(i)];
      }
      EXPECT_EQ(in_own, 0);
      EXPECT_EQ(params.is_sharded(), shards > 1);
    }
    EXPECT_EQ(updated, std::vector<int>(updated.size(), 1));
  }
}

TEST(ParamBuffer, BucketsHoldLayersOfTheSameHoldersOrWhatLiesOutside) {
  const ParamBuffer params(odd_specs(), {DType::f64, DType::f64},
                           {.bucket_elements = 1, .shards = 2, .place = {.tp = 1}});
  std::vector<std::vector<Index>> layers;
  for (const Bucket& bucket : params.buckets()) layers.push_back(bucket.layers);
  // The biases and weights of layer 1 and layer 0; the table before the biases, as it is cleared; the replica.
  EXPECT_EQ(layers, (std::vector<std::vector<Index>>{{1}, {0}, {}, {1}, {0}, {}}));
  EXPECT_EQ(params.buckets()[4].ownership, Ownership::owner);
  EXPECT_EQ(params.buckets()[5].ownership, Ownership::replica);
}

TEST(ParamBuffer, AShardedOptimizerHoldsItsOwnMasters) {
  const auto bytes = [](const Policy& policy, Sharding sharding) {
    ParamBuffer params(odd_specs(), policy, {.bucket_elements = 1, .shards = 4, .own = 3, .sharding = sharding});
    MemoryLedger ledger(Device::cpu);
    params.allocate(ledger);
    EXPECT_EQ(ledger.by_owner(), params.bytes());
    EXPECT_EQ(static_cast<bool>(params.at("table").masters), !params.has_copy() || sharding == Sharding::none);
    const std::uint64_t* carries = nullptr;  // of the first of own_numel() elements
    for (const OwnRange& range : params.own_ranges()) {
      const MasterValues own = params.own_masters(range);
      EXPECT_EQ(own.numel(), range.count);
      EXPECT_EQ(own.is_split(), policy.splits_masters());
      if (!own.is_split()) continue;
      const std::uint64_t* const first = own.carries.data<std::uint64_t>() - range.in_own / MasterValues::kCarries;
      if (carries == nullptr) carries = first;
      EXPECT_EQ(first, carries) << "no two elements share a carry";
      EXPECT_EQ(own.first_carry, 0);
      EXPECT_EQ(own.copy.raw(), range.of_whole(params.values()).raw());
    }
    return params.bytes();
  };
  const Policy mixed{DType::f32, DType::bf16}, half{DType::f32, DType::f16}, plain{DType::f32, DType::f32};
  const BytesByOwner whole = bytes(mixed, Sharding::none), sharded = bytes(mixed, Sharding::optimizer);
  EXPECT_EQ(4 * sharded.at("parameters"), whole.at("parameters"));
  EXPECT_EQ(sharded.at("parameter copies"), whole.at("parameter copies"));
  EXPECT_EQ(sharded.at("gradients"), whole.at("gradients"));
  // Two bytes and a bit that copies in bf16 lack; masters in f32 beside copies in f16.
  EXPECT_EQ(16 * whole.at("parameters"), 17 * whole.at("parameter copies"));
  EXPECT_EQ(bytes(half, Sharding::none).at("parameters"), 2 * whole.at("parameter copies"));
  EXPECT_EQ(4 * bytes(half, Sharding::optimizer).at("parameters"), 2 * whole.at("parameter copies"));
  EXPECT_EQ(bytes(plain, Sharding::optimizer), bytes(plain, Sharding::none));  // layers read the masters
}

/// The weights of four layers, of which the second is larger.
TEST(ParamBuffer, WeightsOfLayersHaveTwoWindowsInTurnAndKeepShards) {
  std::vector<ParamSpec> specs = odd_specs();
  for (Index layer = 2; layer < 4; ++layer) {
    specs.push_back(piece(str("layers.", layer, ".weight"), {30, 11}, {}, {30, 11}));
    specs.back().layer = layer;
    specs.back().first_grad = FirstGrad::overwritten;
  }
  specs.push_back(piece("layers.3.router", {4, 11}, {}, {4, 11}));  // the same on all ranks of tp: without a window
  specs.back().layer = 3;
  specs.back().first_grad = FirstGrad::overwritten;
  specs.back().placement = grid::kReplicated;
  for (const int own : {0, 1}) {
    const Partition whole{.bucket_elements = 1 << 20, .shards = 2, .own = own, .sharding = Sharding::optimizer};
    Partition sharded = whole;
    sharded.shard = ShardedState::gradients;
    ParamBuffer params(specs, {DType::f64, DType::f64}, sharded);
    MemoryLedger ledger(Device::cpu);
    params.allocate(ledger);
    EXPECT_EQ(ledger.by_owner(), params.bytes());
    // Layers 3, 2, 1, 0: 512 elements of the first two, 256 of the others, in windows 0, 1, 0, 1.
    EXPECT_EQ(params.grad_shards().numel(), (512 + 512 + 256 + 256) / 2);
    ASSERT_EQ(params.grad_windows().size(), 2u);
    for (const Tensor& window : params.grad_windows()) EXPECT_EQ(window.numel(), 512);
    EXPECT_EQ(params.bytes().at("gradient windows"), 2 * 512 * 8);
    EXPECT_EQ(params.grads().numel() + 2 * params.grad_shards().numel(), params.numel());
    EXPECT_EQ(params.bytes().at("gradients"), (params.grads().numel() + params.grad_shards().numel()) * 8);
    for (const Index layer : {0, 1, 2, 3}) {
      const Tensor& grad = params.at(str("layers.", layer, ".weight")).grad;
      const Tensor& window = params.grad_windows()[layer % 2 == 1 ? 0 : 1];
      const std::span memory(static_cast<const std::byte*>(window.raw()), static_cast<std::size_t>(window.bytes()));
      EXPECT_TRUE(lies_in(memory, grad.raw(), grad.bytes())) << layer;
    }
    for (const char* none : {"table", "norm", "layers.0.bias", "layers.3.router"})
      EXPECT_FALSE(params.at(none).grad_in_window) << none;
    Index kept = 0;
    for (std::size_t b = 0; b < params.buckets().size(); ++b) {
      const Bucket& bucket = params.buckets()[b];
      EXPECT_EQ(params.own_grads(bucket).numel(), bucket.numel() / 2);
      EXPECT_EQ(params.own_shard_of_grads(bucket).raw() == params.own_grads(bucket).raw(), !bucket.has_window());
      if (!bucket.has_window()) continue;
      EXPECT_EQ(bucket.layers.size(), 1u);
      Index gaps = 0;
      for (const Tensor& gap : params.window_gaps(b)) gaps += gap.numel();
      EXPECT_EQ(gaps, bucket.numel() - (bucket.layers[0] < 2 ? 13 : 30) * 11);
      kept += params.own_grads(bucket).numel();
    }
    EXPECT_EQ(kept, params.grad_shards().numel());
    for (const OwnRange& range : params.own_ranges()) EXPECT_EQ(params.own_grads(range).numel(), range.count);
    // A microbatch more is a reduce-scatter more of what has windows.
    EXPECT_EQ(params.sum_bytes(1), params.numel() / 2 * 8);
    const ParamBuffer plain(specs, {DType::f64, DType::f64}, whole);
    EXPECT_EQ(plain.sum_bytes(7), plain.numel() / 2 * 8);
    EXPECT_EQ(params.sum_bytes(3) - params.sum_bytes(1), 2 * params.grad_shards().numel() * 8);
  }
}

TEST(ParamBuffer, OfValuesOnlyHasNoGradients) {
  ParamBuffer params(odd_specs(), {DType::f32, DType::f32}, {}, ParamContents::values);
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  EXPECT_EQ(ledger.by_owner(), (BytesByOwner{{"parameters", params.numel() * 4}}));
  EXPECT_FALSE(params.grads());
  EXPECT_FALSE(params.at("table").grad);
  EXPECT_TRUE(params.at("table").value);
}

TEST(ParamSet, HasABufferForEachGroupThatSumsGradientsAndOneForRules) {
  std::vector<ParamSpec> specs = odd_specs();
  specs.push_back(piece("layers.0.experts.up", {4, 6}, {}, {2, 6}));
  specs.back().placement.grid = grid::GridKind::expert;
  specs.push_back(piece("layers.0.router.bias", {4}, {}, {4}));
  specs.back().update = Update::by_rule;
  std::vector<grid::GridKind> asked;
  ParamSet params(specs, {DType::f32, DType::bf16}, [&](const grid::Placement& placement) {
    asked.push_back(placement.grid);
    return Partition{.bucket_elements = 1,
                     .shards = placement.grid == grid::GridKind::dense ? 4 : 2,
                     .sharding = Sharding::optimizer};
  });
  ASSERT_EQ(params.buffers().size(), 3u);
  EXPECT_EQ(asked, (std::vector{grid::GridKind::dense, grid::GridKind::expert, grid::GridKind::dense}));
  EXPECT_EQ(params.dense().shards(), 4);
  EXPECT_EQ(params.buffers()[1].shards(), 2);
  EXPECT_EQ(params.buffers()[1].params().size(), 1u);
  EXPECT_FALSE(params.buffers()[2].has_gradients());
  EXPECT_FALSE(params.buffers()[2].is_sharded());
  EXPECT_EQ(std::ranges::distance(params.trained()), 2);
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  EXPECT_EQ(ledger.by_owner(), params.bytes());
  EXPECT_EQ(params.at("layers.0.router.bias").value.dtype(), DType::f32) << "a rule writes masters";
  EXPECT_EQ(params.at("layers.0.experts.up").value.dtype(), DType::bf16);
  EXPECT_THROW(params.at("nobody"), InternalError);
}

}  // namespace
}  // namespace megalith
