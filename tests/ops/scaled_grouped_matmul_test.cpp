#include "megalith/ops/scaled_grouped_matmul.h"

#include "tests/ops/op_test.h"
#include "tests/ops/scaled_grouped_cases.h"

namespace megalith::ops {
namespace {

TEST(ScaledGrouped, RowsOfGroupsAreRoundedAsThoseOfAWholeMatrix) {
  Exec ex;
  ex.poison_new_tensors();
  for (const std::vector<Index>& sizes : scaled_group_sizes()) {
    for (const Index columns : {128, 200}) {
      check_quantised_groups(ex, sizes, columns);
      ex.release();
    }
  }
}

TEST(ScaledGrouped, EqualsThreeLoops) {
  Exec ex;
  ex.poison_new_tensors();
  for (const std::vector<Index>& sizes : scaled_group_sizes()) {
    SCOPED_TRACE(testing::PrintToString(sizes));
    for (const auto& [n, k] : {std::pair<Index, Index>{128, 128}, {256, 384}}) {
      if (sizes.size() > 8 && k > 128) continue;
      check_scaled_grouped_rows(ex, sizes, n, k, 1e-6);
      ex.release();
      check_scaled_grouped_weight_grad(ex, sizes, n, k, 1e-6);
      ex.release();
    }
  }
}

TEST(ScaledGrouped, AnyNumberOfThreads) {
  expect_same_bits_for_any_team([] {
    Exec ex;
    const GroupedRows x(ex, {100, 0, 200}, 128, 3);
    const GroupedWeights w(ex, 3, 256, 128, false);
    const Tensor c = ex.tensor({x.rows(), 256}, DType::f32);
    ex.copy(c.raw(), std::vector<float>(static_cast<std::size_t>(c.numel())).data(), c.bytes());
    scaled_grouped_matmul(ex, {.a = x.straight(), .b = w.operand, .c = c, .groups = x.groups()});
    return values_of(c);
  });
}

TEST(ScaledGrouped, RefusesWrongTensors) {
  Exec ex;
  const GroupedRows x(ex, {100, 28}, 128, 3);
  const GroupedWeights w(ex, 2, 128, 128, false);
  const Operand a = x.straight();
  const auto error = [&](const auto& change) {
    ScaledGroupedMatmul args{.a = a, .b = w.operand, .c = ex.tensor({x.rows(), 128}, DType::f32), .groups = x.groups()};
    change(args);
    return error_text([&] { scaled_grouped_matmul(ex, args); });
  };
  EXPECT_EQ(error([](ScaledGroupedMatmul&) {}), "");
  EXPECT_EQ(error([](ScaledGroupedMatmul& args) { args.groups.alignment = 64; }),
            "[scaled_grouped_matmul.groups] alignment = 64: must be a multiple of 128");
  EXPECT_EQ(error([&](ScaledGroupedMatmul& args) {
              args.c = ex.tensor({x.rows(), 64}, DType::f32);
            }),
            "[scaled_grouped_matmul] N = 64: must be a multiple of 128");
  EXPECT_EQ(error([](ScaledGroupedMatmul& args) { args.groups = args.groups.part(0, 1); }),
            "[scaled_grouped_matmul.b.values] shape = [256, 128]: must be [128, 128]");
  EXPECT_EQ(error([&](ScaledGroupedMatmul& args) { args.b = make_operand(ex, 256, 128, ScaleBlocks::vectors); }),
            "[scaled_grouped_matmul] b.blocks = vectors: must be squares");
  const Tensor half = ex.tensor({2, 128, 128}, DType::bf16);
  EXPECT_EQ(error_text([&] {
              scaled_grouped_weight_grad(ex, {.dy = x.turned(), .x = x.turned(), .dw = half, .groups = x.groups()});
            }),
            "[scaled_grouped_weight_grad] dw: must be f32 where it is added to");
  std::int32_t table[] = {0, 64, 64, 64};
  const GroupRows crossing = {
      .begin = Tensor(table, {2}, DType::i32), .rows = Tensor(table + 2, {2}, DType::i32), .alignment = 128};
  EXPECT_EQ(error([&](ScaledGroupedMatmul& args) { args.groups = crossing; }),
            "[scaled_grouped_matmul.groups] group 1 has 64 rows from row 64 on: must lie in the 512 rows, behind the "
            "group before, and begin at a multiple of 128");
}

}  // namespace
}  // namespace megalith::ops
