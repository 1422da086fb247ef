#include "megalith/ops/cpu/matmul.h"

#include "megalith/ops/cpu/parallel.h"

namespace megalith::ops::cpu {
namespace {

constexpr Index kMostRows = 256, kMostColumns = 384;     // of a block of c
constexpr Index kRowMultiple = 8, kColumnMultiple = 48;  // whole tiles of oneDNN's inner kernels
constexpr Index kEnoughBlocks = 8;
constexpr Index kSmallBlock = Index{1} << 19;  // multiply-adds: about 10 us, worth a thread

/// The size of each of the fewest equal parts of at most `most`.
Index equal_part(Index size, Index most, Index multiple) {
  return round_up(ceil_div(size, ceil_div(size, most)), multiple);
}

/// What an output is the dot product with.
enum class Lines : std::uint8_t { rows, columns };

/// c (+)= matrix x, or matrix^T x, where c and x are vectors: with one row or column oneDNN's bits depend on threads,
/// and its speed is no better.
template <class T>
void matrix_vector(const Matmul& args, const Tensor& matrix, const Tensor& vector, Lines lines) {
  constexpr Index kOutputs = 256;
  const GemmKernels<T>& gemm = kernels<T>().gemm;
  const Index outputs = args.c.numel(), k = vector.numel();
  const T *m = matrix.data<T>(), *x = vector.data<T>();
  T* y = args.c.data<T>();
  const T beta = args.write == Write::accumulate ? T{1} : T{0};
  parallel_pieces(outputs, kOutputs, outputs * k, [&](Index begin, Index count) {
    if (lines == Lines::columns) return gemm.weighted_row_sum(x, m + begin, outputs, k, count, y + begin, beta);
    for (Index i = begin; i < begin + count; ++i) {
      const T sum = gemm.dot(m + i * k, x, k);
      y[i] = beta == T{0} ? sum : y[i] + sum;
    }
  });
}

}  // namespace

void run_product(const Product<double>& product) { kernels<double>().gemm.product(product); }

BlockShape block_shape(Index m, Index n, Index k) {
  BlockShape block{equal_part(m, kMostRows, kRowMultiple), equal_part(n, kMostColumns, kColumnMultiple)};
  while (ceil_div(m, block.rows) * ceil_div(n, block.columns) < kEnoughBlocks &&
         block.rows * block.columns * k > kSmallBlock) {
    if (block.columns > block.rows && block.columns > kColumnMultiple) {
      block.columns = equal_part(n, block.columns / 2, kColumnMultiple);
    } else if (block.rows > kRowMultiple) {
      block.rows = equal_part(m, block.rows / 2, kRowMultiple);
    } else {
      break;
    }
  }
  return block;
}

template <class T>
void matmul(const Matmul& args) {
  const bool a_transposed = args.transpose_a == Transpose::yes, b_transposed = args.transpose_b == Transpose::yes;
  const Index m = args.c.dim(0), n = args.c.dim(1), k = args.a.dim(a_transposed ? 0 : 1);
  if (m == 1) return matrix_vector<T>(args, args.b, args.a, b_transposed ? Lines::rows : Lines::columns);
  if (n == 1) return matrix_vector<T>(args, args.a, args.b, a_transposed ? Lines::columns : Lines::rows);
  const Product<T> whole{.m = m,
                         .n = n,
                         .k = k,
                         .a = args.a.data<T>(),
                         .a_row = a_transposed ? 1 : k,
                         .a_column = a_transposed ? m : 1,
                         .b = args.b.data<T>(),
                         .b_row = b_transposed ? 1 : n,
                         .b_column = b_transposed ? k : 1,
                         .c = args.c.data<T>(),
                         .c_row = n,
                         .beta = args.write == Write::accumulate ? T{1} : T{0}};
  const BlockShape block = block_shape(m, n, k);
  const Index down = ceil_div(m, block.rows), across = ceil_div(n, block.columns);
  parallel_for(down * across, m * n * k / 16, [&](Index i) {
    const Index row = i % down * block.rows, column = i / down * block.columns;
    Product<T> part = whole;
    part.m = m - row < block.rows ? m - row : block.rows;
    part.n = n - column < block.columns ? n - column : block.columns;
    part.a += row * whole.a_row;
    part.b += column * whole.b_column;
    part.c += row * n + column;
    run_product(part);
  });
}
template void matmul<float>(const Matmul& args);
template void matmul<double>(const Matmul& args);

}  // namespace megalith::ops::cpu
