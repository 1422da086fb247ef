#include "megalith/tensor/param.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/support/gathered.h"

namespace megalith {
namespace {

ParamSpec piece(const std::string& name, Shape global, std::array<Index, 4> offset, Shape local) {
  return {{name, global, offset, local}, local, Init::normal, 0.02, Decay::yes, Ownership::owner};
}

TEST(ParamBuffer, OwnedParametersComeFirstAndPartsAreViews) {
  ParamSpec replica = piece("b", {3}, {}, {3});
  replica.ownership = Ownership::replica;
  ParamBuffer params({replica, piece("a", {2, 5}, {}, {2, 5})}, DType::f64);
  EXPECT_EQ(params.params()[0].name(), "a");
  EXPECT_EQ(params.owned_numel(), 64);  // aligned
  EXPECT_EQ(params.numel(), 128);
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  EXPECT_EQ(ledger.by_owner().at("parameters"), 128 * 8);
  EXPECT_EQ(ledger.by_owner().at("gradients"), 128 * 8);
  params.at("b").value.data<double>()[1] = 7;
  EXPECT_EQ(params.values().data<double>()[65], 7);
  EXPECT_THROW(params.at("c"), InternalError);
}

TEST(Initialise, SlicesOfAnyGridAreTheSameTensor) {
  const auto gather = [](std::vector<ParamSpec> specs) {
    testing::Gathered all;
    for (ParamSpec& spec : specs) {
      ParamBuffer params({spec}, DType::f64);
      MemoryLedger ledger(Device::cpu);
      params.allocate(ledger);
      initialise(params.params()[0], 3);
      all.put(spec.slice, params.params()[0].value);
    }
    return all.at("w");
  };
  const std::vector<double> whole = gather({piece("w", {6, 4}, {}, {6, 4})});
  EXPECT_EQ(gather({piece("w", {6, 4}, {0, 0}, {3, 4}), piece("w", {6, 4}, {3, 0}, {3, 4})}), whole);
  EXPECT_EQ(gather({piece("w", {6, 4}, {0, 0}, {6, 1}), piece("w", {6, 4}, {0, 1}, {6, 3})}), whole);
}

TEST(Initialise, PaddingRowsStayZero) {
  ParamSpec spec = piece("w", {5, 2}, {4, 0}, {1, 2});
  spec.held = {3, 2};
  ParamBuffer params({spec}, DType::f32);
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  initialise(params.params()[0], 3);
  const float* w = params.params()[0].value.data<float>();
  EXPECT_NE(w[0], 0);
  EXPECT_NE(w[1], 0);
  for (int i = 2; i < 6; ++i) EXPECT_EQ(w[i], 0) << i;
  EXPECT_EQ(params.params()[0].without_padding(params.params()[0].grad).dim(0), 1);
}

}  // namespace
}  // namespace megalith
