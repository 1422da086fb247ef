#include "megalith/tensor/param.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {
namespace {

ParamSpec piece(const std::string& name, Shape global, std::array<Index, 4> offset, Shape local) {
  return {{name, global, offset, local}, local, Init::normal, 0.02, Decay::yes, Ownership::owner};
}

TEST(ParamBuffer, OwnedParametersComeFirstAndPartsAreViews) {
  ParamSpec replica = piece("b", {3}, {}, {3});
  replica.ownership = Ownership::replica;
  ParamBuffer params({replica, piece("a", {2, 5}, {}, {2, 5})}, {DType::f64, DType::f64});
  EXPECT_EQ(params.params()[0].name(), "a");
  EXPECT_EQ(params.buckets().back().end, 128);  // aligned
  EXPECT_EQ(params.buckets().back().ownership, Ownership::owner);
  EXPECT_EQ(params.numel(), 256);
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  EXPECT_EQ(ledger.by_owner().at("parameters"), 256 * 8);
  EXPECT_EQ(ledger.by_owner().at("gradients"), 256 * 8);
  params.at("b").value.data<double>()[1] = 7;
  EXPECT_EQ(params.values().data<double>()[129], 7);
  EXPECT_THROW(params.at("c"), InternalError);
}

TEST(ParamBuffer, SummedGradientsAreOneRangeForEachOwnership) {
  std::vector<ParamSpec> specs = {piece("bias", {3}, {}, {3}), piece("weight", {2, 5}, {}, {2, 5}),
                                  piece("norm", {3}, {}, {3}), piece("tied", {2, 5}, {}, {2, 5})};
  specs[1].first_grad = specs[3].first_grad = FirstGrad::replaced;
  specs[2].ownership = specs[3].ownership = Ownership::replica;
  ParamBuffer params(specs, {DType::f64, DType::f64});
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  const auto& [owned, replicas] = params.summed_grads();
  EXPECT_EQ(owned.raw(), params.at("bias").grad.raw());
  EXPECT_EQ(owned.numel(), 128);
  EXPECT_EQ(replicas.raw(), params.at("norm").grad.raw());
  EXPECT_EQ(replicas.numel(), 128);
  ParamBuffer none({specs[1]}, {DType::f64, DType::f64});
  none.allocate(ledger);
  EXPECT_EQ(none.summed_grads()[0].numel() + none.summed_grads()[1].numel(), 0);
}

TEST(ParamBuffer, PartialGradientsAreOneRangeThatLooksTheSameToOwnersAndReplicas) {
  const auto declared = [](Ownership of_norms) {
    std::vector<ParamSpec> specs = {piece("norm1", {3}, {}, {3}), piece("bias", {7}, {}, {7}),
                                    piece("norm2", {200}, {}, {200}), piece("weight", {2, 5}, {}, {2, 5}),
                                    piece("tied", {2, 5}, {}, {2, 5})};
    specs[3].first_grad = FirstGrad::replaced;
    specs[4].ownership = Ownership::replica;
    for (ParamSpec* norm : {&specs[0], &specs[2]}) {
      norm->ownership = of_norms;
      norm->grad_rows = GradRows::some;
    }
    return specs;
  };
  for (const Ownership of_norms : {Ownership::owner, Ownership::replica}) {
    ParamBuffer params(declared(of_norms), {DType::f64, DType::f64});
    MemoryLedger ledger(Device::cpu);
    params.allocate(ledger);
    const Tensor partial = params.partial_grads();
    EXPECT_EQ(partial.numel(), 128 + 256);
    EXPECT_EQ(partial.raw(), params.at("norm1").grad.raw());
    EXPECT_EQ(partial.rows(128, 1).raw(), params.at("norm2").grad.raw());
  }
  std::vector<ParamSpec> mixed = declared(Ownership::owner);
  mixed[2].ownership = Ownership::replica;
  EXPECT_THROW(ParamBuffer(mixed, {DType::f64, DType::f64}), InternalError);
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
      if (shape.rank() == 2) specs.back().first_grad = FirstGrad::replaced;
    }
  }
  specs.push_back(piece("norm", {13}, {}, {13}));
  specs.back().ownership = Ownership::replica;
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

TEST(ParamBuffer, BucketsHoldLayersOfOneOwnershipOrWhatLiesOutside) {
  const ParamBuffer params(odd_specs(), {DType::f64, DType::f64}, {.bucket_elements = 1, .shards = 2});
  std::vector<std::vector<Index>> layers;
  for (const Bucket& bucket : params.buckets()) layers.push_back(bucket.layers);
  // The replica; the biases and weights of layer 1 and layer 0; the table before the biases, as it is cleared.
  EXPECT_EQ(layers, (std::vector<std::vector<Index>>{{}, {1}, {0}, {}, {1}, {0}}));
  EXPECT_EQ(params.buckets()[0].ownership, Ownership::replica);
  EXPECT_EQ(params.buckets()[1].ownership, Ownership::owner);
}

TEST(ParamBuffer, AShardedOptimizerHoldsItsOwnMasters) {
  const auto bytes = [](const Policy& policy, Sharding sharding) {
    ParamBuffer params(odd_specs(), policy, {.bucket_elements = 1, .shards = 4, .own = 3, .sharding = sharding});
    MemoryLedger ledger(Device::cpu);
    params.allocate(ledger);
    EXPECT_EQ(ledger.by_owner(), params.bytes());
    EXPECT_EQ(static_cast<bool>(params.at("table").master), !params.has_copy() || sharding == Sharding::none);
    return params.bytes();
  };
  const Policy mixed{DType::f32, DType::bf16}, plain{DType::f32, DType::f32};
  const BytesByOwner whole = bytes(mixed, Sharding::none), sharded = bytes(mixed, Sharding::optimizer);
  EXPECT_EQ(4 * sharded.at("parameters"), whole.at("parameters"));
  EXPECT_EQ(sharded.at("parameter copies"), whole.at("parameter copies"));
  EXPECT_EQ(sharded.at("gradients"), whole.at("gradients"));
  EXPECT_EQ(bytes(plain, Sharding::optimizer), bytes(plain, Sharding::none));  // layers read the masters
}

}  // namespace
}  // namespace megalith
