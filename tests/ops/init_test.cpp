#include "megalith/ops/init.h"

#include <gtest/gtest.h>

#include "megalith/tensor/param.h"

#include "tests/support/gathered.h"

namespace megalith {
namespace {

ParamSpec piece(const std::string& name, Shape global, std::array<Index, 4> offset, Shape local) {
  return {{name, global, offset, local}, local, Init::normal, 0.02};
}

TEST(Initialise, SlicesOfAnyGridAreTheSameTensor) {
  const auto gather = [](std::vector<ParamSpec> specs) {
    testing::Gathered all;
    Exec ex;
    for (ParamSpec& spec : specs) {
      const Tensor w = ex.tensor(spec.held, DType::f64);
      ops::initialise(ex, spec, w, 3);
      all.put(spec.slice, w);
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
  Exec ex;
  const Tensor values = ex.tensor(spec.held, DType::f32);
  ops::initialise(ex, spec, values, 3);
  const float* w = values.data<float>();
  EXPECT_NE(w[0], 0);
  EXPECT_NE(w[1], 0);
  for (int i = 2; i < 6; ++i) EXPECT_EQ(w[i], 0) << i;
}

}  // namespace
}  // namespace megalith
