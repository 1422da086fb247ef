#include <algorithm>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/cpu/product.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/scaled_matmul_kernels.h"

// A task computes one block of c, 128 x 128. For each block of K it widens the codes, multiplies them by the f32 GEMM,
// and adds the products times their scales.

namespace megalith::ops::cpu {
namespace {

constexpr Index kEdge = kScaleBlock;

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

/// sums [rows, columns] += the product, row stride kEdge.
void add_product(const Operand& a, const Operand& b, Index row, Index rows, Index column, Index columns, float* sums) {
  WidePiece left, right;
  alignas(64) float products[kEdge * kEdge];
  const Index k = a.values.dim(1);
  for (Index block = 0; block < ceil_div(k, kEdge); ++block) {
    left.load(a, row, rows, block);
    right.load(b, column, columns, block);
    run_product(Product<float>{.m = rows,
                               .n = columns,
                               .k = std::min(kEdge, k - block * kEdge),
                               .a = left.codes,
                               .a_row = kEdge,
                               .a_column = 1,
                               .b = right.codes,
                               .b_row = 1,
                               .b_column = kEdge,
                               .c = products,
                               .c_row = kEdge,
                               .beta = 0});
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; ++c)
        sums[r * kEdge + c] += left.scales[r] * right.scales[c] * products[r * kEdge + c];
    }
  }
}

}  // namespace

void scaled_matmul(const ScaledMatmul& args) {
  const Index m = args.c.dim(0), n = args.c.dim(1), k = args.a.values.dim(1);
  const Index down = ceil_div(m, kEdge), across = ceil_div(n, kEdge);
  dispatch_float(args.c.dtype(), "scaled_matmul", [&]<class T>() {
    T* const c = args.c.data<T>();
    parallel_for(down * across, m * n * std::max<Index>(k, 1), [&](Index i) {
      const Index row = i % down * kEdge, column = i / down * kEdge;
      const Index rows = std::min(kEdge, m - row), columns = std::min(kEdge, n - column);
      alignas(64) float sums[kEdge * kEdge] = {};
      add_product(args.a, args.b, row, rows, column, columns, sums);
      for (Index r = 0; r < rows; ++r) {
        T* const to = c + (row + r) * n + column;
        for (Index j = 0; j < columns; ++j) {
          const float before = args.write == Write::accumulate ? static_cast<float>(to[j]) : 0.0f;
          to[j] = static_cast<T>(before + sums[r * kEdge + j]);
        }
      }
    });
  });
}

}  // namespace megalith::ops::cpu
