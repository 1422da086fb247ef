// Experts' rows that have over 2^31 elements.
#include <array>

#include "megalith/ops/cuda/grouped_product.h"

#include "tests/gpu/large_tensors.h"

namespace megalith::ops {
namespace {

/// The last of two groups begins beyond 2^31 elements of x and dx: its results are those of that group alone.
TEST_F(GpuLarge, GroupedProducts) {
  const Index hidden = 1536, width = 64, last = 384, rows = rows_of(hidden) / last * last + last;
  if (!cuda::can_run_grouped_product(ex(), DType::bf16, width, hidden)) GTEST_SKIP() << "needs a Hopper GPU";
  const Tensor x = random({rows, hidden}), w = random({2, width, hidden});
  const auto ids = [&](std::array<std::int32_t, 2> values) {
    const Tensor of_groups = empty({2}, DType::i32);
    ex().copy(of_groups.raw(), values.data(), of_groups.bytes());
    ex().synchronize();
    return of_groups;
  };
  // The last group has 300 rows; those up to the next tile are zeros.
  constexpr std::int32_t kRows = 300;
  const auto before = static_cast<std::int32_t>(rows - last);
  fill(ex(), tail(x, last - kRows), 0);
  const Tensor x_last = copied(tail(x, last));
  const cuda::TileGroups both{.begin = ids({0, before}), .rows = ids({before, kRows})},
      alone{.begin = ids({0, 0}), .rows = ids({0, kRows})};
  const auto run = [&](const auto& args, const cuda::TileGroups& groups) {
    ASSERT_TRUE(cuda::grouped_product(ex(), ex().stream(), args, groups, 0));
  };

  const Tensor y = empty({rows, width}), y_last = empty({last, width});
  run(cuda::TiledForward{.x = x, .w = w, .y = y}, both);
  run(cuda::TiledForward{.x = x_last, .w = w, .y = y_last}, alone);
  expect_same_bytes(tail(y, last), y_last, "y of the last group");

  const Tensor dx = empty({rows, hidden}), dx_last = empty({last, hidden});
  run(cuda::TiledInputGrad{.dy = y, .w = w, .dx = dx}, both);
  run(cuda::TiledInputGrad{.dy = y_last, .w = w, .dx = dx_last}, alone);
  expect_same_bytes(tail(dx, last), dx_last, "dx of the last group");

  const Tensor dw = empty({2, width, hidden}, DType::f32), dw_last = empty({2, width, hidden}, DType::f32);
  run(cuda::TiledWeightGrad{.dy = y, .x = x, .dw = dw, .write = Write::overwrite}, both);
  run(cuda::TiledWeightGrad{.dy = y_last, .x = x_last, .dw = dw_last, .write = Write::overwrite}, alone);
  expect_same_bytes(dw.rows(1, 1), dw_last.rows(1, 1), "dw of the last group");
  expect_all(dw_last.rows(0, 1), 0, "dw of an empty group");

  const Tensor up = random({2, hidden, width}), z = empty({rows, hidden}), h = empty({rows, hidden}),
               z_last = empty({last, hidden}), h_last = empty({last, hidden});
  constexpr auto kGelu = cuda::TiledActivation::gelu;
  run(cuda::TiledUp{.x = y, .w = up, .z = z, .h = h, .activation = kGelu}, both);
  run(cuda::TiledUp{.x = y_last, .w = up, .z = z_last, .h = h_last, .activation = kGelu}, alone);
  expect_same_bytes(tail(z, last), z_last, "z of the last group");
  expect_same_bytes(tail(h, last), h_last, "h of the last group");
}

}  // namespace
}  // namespace megalith::ops
