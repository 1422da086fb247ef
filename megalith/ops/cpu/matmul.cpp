#include <algorithm>
#include <type_traits>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/cpu/product.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/grouped_matmul_kernels.h"
#include "megalith/ops/matmul_kernels.h"
#include "megalith/ops/swiglu_kernels.h"

namespace megalith::ops::cpu {
namespace {

constexpr Index kMaxRows = 256, kMaxColumns = 384;       // rows and columns of a block of c
constexpr Index kRowMultiple = 8, kColumnMultiple = 48;  // whole tiles of oneDNN's inner kernels
constexpr Index kEnoughBlocks = 8;
constexpr Index kSmallBlock = Index{1} << 19;  // multiply-adds: about 10 us, worth a thread

/// The part size when `size` is cut into the fewest equal parts of at most `most`.
Index equal_part(Index size, Index most, Index multiple) {
  return round_up(ceil_div(size, ceil_div(size, most)), multiple);
}

template <class T>
GemmOperand<T> operand(const Tensor& x, Transpose transpose) {
  return transpose == Transpose::yes ? GemmOperand<T>{x.data<T>(), 1, x.dim(1)}
                                     : GemmOperand<T>{x.data<T>(), x.dim(1), 1};
}

/// The factor on the previous c, where sums are made in c's own type.
template <class A>
A beta_of(const Matmul& args) {
  return args.c.dtype() == dtype_of<A> && args.write == Write::accumulate ? A{1} : A{0};
}

Index depth_of(const Matmul& args) { return args.a.dim(args.transpose_a == Transpose::yes ? 0 : 1); }

/// A block of c.
struct OutputBlock {
  Index row, rows, column, columns;
};

// A GEMM falls into pieces, each computed by one thread. A `share` decides which thread takes a piece. It is called as
// share(pieces, elements, piece). piece(i) for i in [0, pieces) is the work, and `elements` its size as for
// parallel_for().

/// The team takes the pieces of one product.
struct AmongTeam {
  template <class Piece>
  void operator()(Index pieces, Index elements, const Piece& piece) const {
    parallel_for(pieces, elements, piece);
  }
};

/// Calls body(block) for the blocks of c.
template <class Share, class Body>
void for_blocks(Index m, Index n, Index k, const Share& share, const Body& body) {
  const BlockShape shape = block_shape(m, n, k);
  const Index down = ceil_div(m, shape.rows), across = ceil_div(n, shape.columns);
  share(down * across, m * n * k / 16, [&](Index i) {
    const Index row = i % down * shape.rows, column = i / down * shape.columns;
    body(OutputBlock{row, std::min(shape.rows, m - row), column, std::min(shape.columns, n - column)});
  });
}

/// Up to this many rows, the reading of the weights bounds a GEMM.
constexpr Index kFewRows = 32;

/// Whether c is x times the rows of a matrix, as in a layer.
bool has_rows_of_weights(const Matmul& args) {
  return args.transpose_a == Transpose::no && args.transpose_b == Transpose::yes;
}

/// Whether few_rows() computes it. In f64 our own blocks give a row the same bits among any number of rows, which a
/// kernel for few rows would not.
template <class T>
bool has_few_rows(const Matmul& args) {
  return !std::is_same_v<T, double> && args.c.dim(0) <= kFewRows && has_rows_of_weights(args);
}

/// Whether matrix_vector() computes it. It gives a row other bits than blocks of rows do.
template <class T>
bool is_matrix_vector(const Matmul& args) {
  if (args.c.dim(1) == 1) return true;
  const bool is_row_of_x = args.transpose_a == Transpose::no;
  return args.c.dim(0) == 1 && !(std::is_same_v<T, double> && is_row_of_x);
}

/// c of few rows. Its sums go to `c` where it is not null, else to a buffer. Then finish(sums, row, begin, count) is
/// called for every row of every piece.
template <class T, class Share, class Finish>
void few_rows(const Matmul& args, Arithmetic<T>* c, const Share& share, const Finish& finish) {
  using A = Arithmetic<T>;
  constexpr Index kOutputs = 64;  // columns of a piece: 12 pieces of 768 columns
  const Index rows = args.c.dim(0), columns = args.c.dim(1), k = args.a.dim(1);
  const A beta = beta_of<A>(args);
  share(ceil_div(columns, kOutputs), rows * columns * k, [&](Index i) {
    const Index begin = i * kOutputs, count = std::min(kOutputs, columns - begin);
    A buffer[kFewRows * kOutputs];
    A* const sums = c == nullptr ? buffer : c + begin;
    const Index stride = c == nullptr ? kOutputs : columns;
    kernels<T>().gemm.few_rows({.rows = rows,
                                .columns = count,
                                .k = k,
                                .x = args.a.data<T>(),
                                .w = args.b.data<T>() + begin * k,
                                .c = sums,
                                .c_row = stride,
                                .beta = beta});
    for (Index r = 0; r < rows; ++r) finish(sums + r * stride, r, begin, count);
  });
}

/// c, a vector, is the matrix (or its transpose) times the other operand. With one row or column oneDNN's bits depend
/// on threads, and its speed is no better. The sums go to `c` where it is not null, else to a buffer. Then finish(sums,
/// begin, count) is called for every piece.
template <class T, class Share, class Finish>
void matrix_vector(const Matmul& args, Arithmetic<T>* c, const Share& share, const Finish& finish) {
  using A = Arithmetic<T>;
  constexpr Index kOutputs = 256;
  const GemmKernels<T>& gemm = kernels<T>().gemm;
  const bool one_row = args.c.dim(0) == 1;
  const Tensor &matrix = one_row ? args.b : args.a, &vector = one_row ? args.a : args.b;
  const Index outputs = args.c.numel(), k = vector.numel();
  const bool rows = one_row == ((one_row ? args.transpose_b : args.transpose_a) == Transpose::yes);
  const T *m = matrix.data<T>(), *x = vector.data<T>();
  const A beta = beta_of<A>(args);
  share(ceil_div(outputs, kOutputs), outputs * k, [&](Index i) {
    const Index begin = i * kOutputs, count = std::min(kOutputs, outputs - begin);
    A buffer[kOutputs];
    A* y = c == nullptr ? buffer : c + begin;
    if (rows) {  // outputs are the rows of the matrix in memory times the vector
      for (Index j = 0; j < count; ++j) {
        const A sum = gemm.dot(m + (begin + j) * k, x, k);
        y[j] = beta == A{0} ? sum : y[j] + sum;
      }
    } else {
      gemm.weighted_row_sum(x, m + begin, outputs, k, count, y, beta);
    }
    finish(y, begin, count);
  });
}

}  // namespace

void run_product(const Product<double>& product) { kernels<double>().gemm.product(product); }

BlockShape block_shape(Index m, Index n, Index k) {
  BlockShape block{equal_part(m, kMaxRows, kRowMultiple), equal_part(n, kMaxColumns, kColumnMultiple)};
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

namespace {

/// f64 and f32, all but the bias. M, N > 0.
template <class T, class Share>
void product_wide(const Matmul& args, const Share& share) {
  const Index m = args.c.dim(0), n = args.c.dim(1), k = depth_of(args);
  const T beta = beta_of<T>(args);
  if (k == 0) return beta == T{0} ? share(1, 1, [&](Index) { fill(args.c, 0); }) : void();
  T* c = args.c.data<T>();
  if (has_few_rows<T>(args)) return few_rows<T>(args, c, share, [](T*, Index, Index, Index) {});
  if (is_matrix_vector<T>(args)) return matrix_vector<T>(args, c, share, [](T*, Index, Index) {});
  const GemmOperand<T> a = operand<T>(args.a, args.transpose_a), b = operand<T>(args.b, args.transpose_b);
  for_blocks(m, n, k, share, [&](const OutputBlock& block) {
    multiply<T>({block.rows, block.columns, k}, {a.data + block.row * a.row, a.row, a.column},
                {b.data + block.column * b.column, b.row, b.column}, {c + block.row * n + block.column, n, beta});
  });
}

// GEMMs of 16-bit operands. Where the CPU multiplies bf16 the library does. Else pieces of them are widened on the
// stack, and the f32 GEMM sums them. Only whole sums are rounded, after bias and GELU.

constexpr Index kDepth = 128;  // depth of a widened piece
constexpr Index kGap = 16;     // floats between its lines, so that they start in different cache sets
constexpr Index kPieceRows = std::max(kMaxRows * (kDepth + kGap), kDepth*(kMaxRows + kGap));
constexpr Index kPieceColumns = std::max(kMaxColumns * (kDepth + kGap), kDepth*(kMaxColumns + kGap));

/// The first `rows` x `columns` elements in f32, with the lines of the memory layout.
template <class T>
GemmOperand<float> widened(const GemmOperand<T>& x, Index rows, Index columns, float* out) {
  const auto widen = kernels<T>().elementwise.widen;
  const bool by_rows = x.column == 1;
  const Index lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
  const Index stride = by_rows ? x.row : x.column, out_stride = length + kGap;
  for (Index i = 0; i < lines; ++i) widen(x.data + i * stride, out + i * out_stride, length);
  return by_rows ? GemmOperand<float>{out, out_stride, 1} : GemmOperand<float>{out, 1, out_stride};
}

/// c [block.rows, block.columns] = beta c + the block of op(a) op(b).
template <class T>
void sum_block(const OutputBlock& block, Index k, GemmOperand<T> a, GemmOperand<T> b, float* c, Index c_row,
               float beta) {
  alignas(64) float a_piece[kPieceRows];
  alignas(64) float b_piece[kPieceColumns];
  if (k == 0 && beta == 0) {
    for (Index r = 0; r < block.rows; ++r) std::fill_n(c + r * c_row, block.columns, 0.0f);
  }
  a.data += block.row * a.row;
  b.data += block.column * b.column;
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (k > 0 && has_bf16_product()) return multiply<T>({block.rows, block.columns, k}, a, b, {c, c_row, beta});
  }
  for (Index l = 0; l < k; l += kDepth) {
    const Index depth = std::min(kDepth, k - l);
    const GemmOperand<float> wide_a = widened(a, block.rows, depth, a_piece);
    const GemmOperand<float> wide_b = widened(b, depth, block.columns, b_piece);
    multiply<float>({block.rows, block.columns, depth}, wide_a, wide_b, {c, c_row, l == 0 ? beta : 1.0f});
    a.data += depth * a.column;
    b.data += depth * b.row;
  }
}

/// The sums of every block of op(a) op(b), given to finish(sums, row, column, count) as parts of rows that it may
/// change. Those of an f32 c are in c's own memory, to which Write::accumulate has added them. M, N > 0.
template <class T, class Share, class Finish>
void product_16(const Matmul& args, const Share& share, const Finish& finish) {
  const Index m = args.c.dim(0), n = args.c.dim(1), k = depth_of(args);
  float* const c = args.c.dtype() == DType::f32 ? args.c.data<float>() : nullptr;
  const float beta = beta_of<float>(args);
  if (has_few_rows<T>(args)) return few_rows<T>(args, c, share, finish);
  if (m == 1) {
    return matrix_vector<T>(args, c, share,
                            [&](float* sums, Index begin, Index count) { finish(sums, 0, begin, count); });
  }
  if (n == 1) {
    return matrix_vector<T>(args, c, share, [&](float* sums, Index begin, Index count) {
      for (Index i = 0; i < count; ++i) finish(sums + i, begin + i, 0, 1);
    });
  }
  const GemmOperand<T> a = operand<T>(args.a, args.transpose_a), b = operand<T>(args.b, args.transpose_b);
  for_blocks(m, n, k, share, [&](const OutputBlock& block) {
    alignas(64) float buffer[kMaxRows * kMaxColumns];
    float* const sums = c == nullptr ? buffer : c + block.row * n + block.column;
    const Index stride = c == nullptr ? kMaxColumns : n;
    sum_block(block, k, a, b, sums, stride, beta);
    for (Index r = 0; r < block.rows; ++r) finish(sums + r * stride, block.row + r, block.column, block.columns);
  });
}

/// x += y [count], y in 16 bits.
template <class T>
void add_widened(float* x, const T* y, Index count) {
  float wide[kMaxColumns];
  kernels<T>().elementwise.widen(y, wide, count);
  kernels<float>().elementwise.add(x, wide, x, count);
}

/// All but the bias of f64 and f32. M, N > 0.
template <class T, class Share>
void product(const Matmul& args, const Share& share) {
  if constexpr (std::is_same_v<T, Arithmetic<T>>) {
    product_wide<T>(args, share);
  } else {
    const T* bias = args.bias ? args.bias.data<T>() : nullptr;
    T* const c = args.c.dtype() == DType::f32 ? nullptr : args.c.data<T>();
    product_16<T>(args, share, [&, n = args.c.dim(1)](float* sums, Index row, Index column, Index count) {
      if (bias != nullptr) add_widened(sums, bias + column, count);
      if (c == nullptr) return;
      T* const to = c + row * n + column;
      if (args.write == Write::accumulate) add_widened(sums, to, count);
      kernels<T>().elementwise.round(sums, to, count);
    });
  }
}

}  // namespace

void matmul(const Matmul& args, const Tensor& parts) {
  dispatch_float(args.a.dtype(), "matmul", [&]<class T>() {
    if (args.c.numel() == 0) return;
    product<T>(args, AmongTeam{});
    if constexpr (std::is_same_v<T, Arithmetic<T>>) {
      if (args.bias) add_bias(args.c, args.bias);
    }
  });
  if (args.bias_grad) bias_backward(args.a, args.bias_grad, parts);
}

/// The pieces of all products are tasks of one loop. So the threads share few large groups as well as many small ones,
/// and wait once.
void grouped_matmul(const GroupedProduct& products) {
  dispatch_float(products.rows.dtype(), "grouped_matmul", [&]<class T>() {
    const Index groups = products.weights.dim(0);
    Index first_piece[kMaxGroups + 1] = {}, elements = 0;
    for (Index g = 0; g < groups; ++g) {
      first_piece[g + 1] = first_piece[g];
      const Matmul one = products.of(g);
      if (!products.has_work(g) || one.c.numel() == 0) continue;
      product<T>(one, [&](Index pieces, Index of_group, const auto&) {
        first_piece[g + 1] += pieces;
        elements += of_group;
      });
    }
    parallel_for(first_piece[groups], elements, [&](Index i) {
      const Index g = std::upper_bound(first_piece, first_piece + groups + 1, i) - first_piece - 1;
      product<T>(products.of(g), [&](Index, Index, const auto& piece) { piece(i - first_piece[g]); });
    });
  });
}

void batched_matmul(const BatchedMatmul& args) {
  for (Index s = 0; s < args.c.dim(0); ++s) matmul(args.of(s), {});
}

void matmul_gelu(const MatmulGelu& args) {
  dispatch_float(args.x.dtype(), "matmul_gelu", [&]<class T>() {
    if (args.z.numel() == 0) return;
    const Matmul whole{.a = args.x, .b = args.w, .c = args.z, .transpose_b = Transpose::yes};
    if constexpr (std::is_same_v<T, Arithmetic<T>>) {
      matmul(whole, {});
      bias_gelu({args.z, args.bias, args.y, args.form});
    } else {
      T *z = args.z.data<T>(), *y = args.y.data<T>();
      const ElementwiseKernels<float>& wide = kernels<float>().elementwise;
      const auto add_bias_and_activate = args.form == GeluForm::erf ? wide.bias_gelu_erf : wide.bias_gelu;
      product_16<T>(whole, AmongTeam{}, [&, n = args.z.dim(1)](float* sums, Index row, Index column, Index count) {
        float bias[kMaxColumns], gelu[kMaxColumns];
        kernels<T>().elementwise.widen(args.bias.data<T>() + column, bias, count);
        add_bias_and_activate(sums, bias, gelu, count);
        kernels<T>().elementwise.round(sums, z + row * n + column, count);
        kernels<T>().elementwise.round(gelu, y + row * n + column, count);
      });
    }
  });
}

void matmul_gelu_backward(const MatmulGeluBackward& args, const Tensor& parts) {
  dispatch_float(args.dy.dtype(), "matmul_gelu_backward", [&]<class T>() {
    if (args.dz.numel() == 0) return;
    const Matmul whole{.a = args.dy, .b = args.w, .c = args.dz};
    if constexpr (std::is_same_v<T, Arithmetic<T>>) {
      matmul(whole, {});
      gelu_backward({args.z, args.dz, args.dz, args.form});
    } else {
      const T* z = args.z.data<T>();
      T* dz = args.dz.data<T>();
      const ElementwiseKernels<float>& wide = kernels<float>().elementwise;
      const auto differentiate = args.form == GeluForm::erf ? wide.gelu_erf_backward : wide.gelu_backward;
      product_16<T>(whole, AmongTeam{}, [&, n = args.z.dim(1)](float* sums, Index row, Index column, Index count) {
        float wide_z[kMaxColumns];
        kernels<T>().elementwise.widen(z + row * n + column, wide_z, count);
        differentiate(wide_z, sums, sums, count);
        kernels<T>().elementwise.round(sums, dz + row * n + column, count);
      });
    }
    bias_backward(args.dz, args.bias_grad, parts);
  });
}

void matmul_swiglu(const MatmulSwiglu& args) {
  matmul({.a = args.x, .b = args.w, .c = args.z, .transpose_b = Transpose::yes}, {});
  swiglu({.gate_up = args.z, .y = args.y});
}

void matmul_swiglu_backward(const MatmulSwigluBackward& args, const Tensor& dh) {
  matmul({.a = args.dy, .b = args.w, .c = dh}, {});
  if (args.y) swiglu({.gate_up = args.z, .y = args.y});
  swiglu_backward({.gate_up = args.z, .dy = dh, .dgate_up = args.dz});
}

}  // namespace megalith::ops::cpu
