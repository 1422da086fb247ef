#include "megalith/ops/quantise_activation.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

TEST(QuantiseActivation, RefusesWrongTensors) {
  Exec ex;
  const Tensor z = ex.tensor({4, 6}, DType::f32), wide = ex.tensor({4, 6}, DType::f64),
               dy = ex.tensor({4, 3}, DType::f32);
  const Operand of_y = make_operand(ex, 4, 3, ScaleBlocks::vectors),
                of_z = make_operand(ex, 4, 6, ScaleBlocks::vectors);
  EXPECT_NO_THROW(quantise_activation(ex, {.z = z, .straight = of_y}));
  EXPECT_THROW(quantise_activation(ex, {.z = z, .straight = of_z}), ShapeError);
  EXPECT_THROW(quantise_activation(ex, {.z = z}), ShapeError);
  EXPECT_THROW(quantise_activation(ex, {.z = wide, .straight = of_y}), ShapeError);
  EXPECT_THROW(quantise_activation(ex, {.z = z, .y = z, .straight = of_y}), ShapeError);
  EXPECT_THROW(quantise_activation(ex, {.z = z, .straight = of_y, .activation = Activation::gelu}), ShapeError);
  EXPECT_THROW(quantise_activation(ex, {.z = ex.tensor({4, 5}, DType::f32), .turned = of_y}), ShapeError);
  EXPECT_NO_THROW(quantise_activation_backward(ex, {.z = z, .dy = dy, .straight = of_z}));
  EXPECT_THROW(quantise_activation_backward(ex, {.z = z, .dy = dy, .straight = of_y}), ShapeError);
  EXPECT_THROW(quantise_activation_backward(ex, {.z = z, .dy = z, .straight = of_z}), ShapeError);
  EXPECT_THROW(quantise_activation_backward(ex, {.z = z, .dy = dy, .dz = dy, .straight = of_z}), ShapeError);
}

}  // namespace
}  // namespace megalith::ops
