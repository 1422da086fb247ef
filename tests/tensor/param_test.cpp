#include "megalith/tensor/param.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

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
  EXPECT_EQ(params.owned_numel(), 128);  // aligned
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

}  // namespace
}  // namespace megalith
