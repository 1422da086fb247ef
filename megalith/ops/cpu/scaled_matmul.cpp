#include <algorithm>

#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/cpu/product.h"
#include "megalith/ops/cpu/scaled_blocks.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/scaled_matmul_kernels.h"

// A task computes one block of the result, 128 x 128.

namespace megalith::ops::cpu {
namespace {

constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = e4m3_value(static_cast<std::uint8_t>(code));
  return values;
}();

/// A block of an operand in f32: rows [first, first + rows), `depth` codes of block `block` of K, and their scales.
struct WidePiece {
  alignas(64) float codes[kEdge * kEdge];
  float scales[kEdge];

  void load(const Operand& operand, Index first, Index rows, Index block) {
    const Index k = operand.values.dim(1), depth = std::min(kEdge, k - block * kEdge), stride = operand.scales.dim(1);
    const std::uint8_t* from = operand.values.data<std::uint8_t>() + first * k + block * kEdge;
    const float* const all = operand.scales.data<float>();
    for (Index r = 0; r < rows; ++r) {
      for (Index l = 0; l < depth; ++l) codes[r * kEdge + l] = kE4m3Values[from[r * k + l]];
      scales[r] = operand.blocks == ScaleBlocks::vectors ? all[block * stride + first + r]
                                                         : all[(first + r) / kEdge * stride + block];
    }
  }
};

}  // namespace

void add_scaled_product(const OperandPart& a, Index rows, const OperandPart& b, Index columns, Index blocks,
                        BlockSums& sums) {
  WidePiece left, right;
  alignas(64) float products[kEdge * kEdge];
  const Index k = a.operand.values.dim(1);
  for (Index i = 0; i < blocks; ++i) {
    left.load(a.operand, a.row, rows, a.block + i);
    right.load(b.operand, b.row, columns, b.block + i);
    multiply<float>({rows, columns, std::min(kEdge, k - (a.block + i) * kEdge)}, {left.codes, kEdge, 1},
                    {right.codes, 1, kEdge}, {products, kEdge, 0});
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; ++c)
        sums.at[r * kEdge + c] += left.scales[r] * right.scales[c] * products[r * kEdge + c];
    }
  }
}

void scaled_matmul(const ScaledMatmul& args) {
  const Index m = args.c.dim(0), n = args.c.dim(1), k = args.a.values.dim(1);
  const Index down = ceil_div(m, kEdge), across = ceil_div(n, kEdge);
  dispatch_float(args.c.dtype(), "scaled_matmul", [&]<class T>() {
    T* const c = args.c.data<T>();
    const T* const bias = args.bias ? args.bias.data<T>() : nullptr;
    parallel_for(down * across, m * n * std::max<Index>(k, 1), [&](Index i) {
      const Index row = i % down * kEdge, column = i / down * kEdge;
      const Index rows = std::min(kEdge, m - row), columns = std::min(kEdge, n - column);
      BlockSums sums;
      add_scaled_product({args.a, row}, rows, {args.b, column}, columns, ceil_div(k, kEdge), sums);
      for (Index r = 0; bias != nullptr && r < rows; ++r) {
        for (Index x = 0; x < columns; ++x) sums.at[r * kEdge + x] += static_cast<float>(bias[column + x]);
      }
      store_sums(sums, rows, columns, args.write == Write::accumulate, c + row * n + column, n);
    });
  });
}

}  // namespace megalith::ops::cpu
