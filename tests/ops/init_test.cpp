#include "megalith/ops/init.h"

#include <gtest/gtest.h>

#include "tests/support/gathered.h"

namespace megalith {
namespace {

TEST(Initialise, SlicesOfAnyGridAreTheSameTensor) {
  const auto gather = [](const std::vector<TensorSlice>& slices) {
    support::Gathered all;
    Exec ex;
    for (const TensorSlice& slice : slices) {
      const Tensor w = ex.tensor(slice.local, DType::f64);
      ops::initialise(ex, {slice, Init::normal, 0.02}, w, 3);
      all.put(slice, w);
    }
    return all.at("w");
  };
  const std::vector<double> whole = gather({TensorSlice::whole("w", {6, 4})});
  EXPECT_EQ(gather({TensorSlice{"w", {6, 4}, {0, 0}, {3, 4}}, TensorSlice{"w", {6, 4}, {3, 0}, {3, 4}}}), whole);
  EXPECT_EQ(gather({TensorSlice{"w", {6, 4}, {0, 0}, {6, 1}}, TensorSlice{"w", {6, 4}, {0, 1}, {6, 3}}}), whole);
  // The same elements in the same order, whatever their shape.
  EXPECT_EQ(
      gather({TensorSlice{"w", {3, 2, 4}, {0, 0, 0}, {1, 2, 4}}, TensorSlice{"w", {3, 2, 4}, {1, 0, 0}, {2, 2, 4}}}),
      whole);
  EXPECT_EQ(gather({TensorSlice{"w", {2, 3, 2, 2}, {0, 0, 0, 0}, {2, 1, 2, 2}},
                    TensorSlice{"w", {2, 3, 2, 2}, {0, 1, 0, 0}, {1, 2, 2, 2}},
                    TensorSlice{"w", {2, 3, 2, 2}, {1, 1, 0, 0}, {1, 2, 2, 2}}}),
            whole);
}

TEST(Initialise, PaddingRowsStayZero) {
  const TensorSlice slice{"w", {5, 2}, {4, 0}, {1, 2}};
  Exec ex;
  const Tensor values = ex.tensor({3, 2}, DType::f32);
  ops::initialise(ex, {slice, Init::normal, 0.02}, values, 3);
  const float* w = values.data<float>();
  EXPECT_NE(w[0], 0);
  EXPECT_NE(w[1], 0);
  for (int i = 2; i < 6; ++i) EXPECT_EQ(w[i], 0) << i;
}

}  // namespace
}  // namespace megalith
