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

}  // namespace
}  // namespace megalith
