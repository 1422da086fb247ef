#pragma once
#include <cstdint>

#include "megalith/tensor/dtype.h"

namespace megalith::ops::cpu {

// The hot loops, one thread each, on raw pointers. They are compiled once per instruction set (cpu/isa/) and chosen
// once at run time. Everything above them (shapes, threads, order of blocks) is ordinary code that runs anywhere.
//
// CMake builds the sources of cpu/isa/ several times, each time with other compiler flags and another namespace
// MEGALITH_ISA. They may use nothing that the linker merges across these builds: no std:: templates, no inline function
// from outside their namespace. Otherwise the copy with AVX-512 instructions could serve every CPU.
//
// T is the type in which tensors are stored: double, float, bfloat16 or float16. Arithmetic<T> is the type of
// arithmetic. 16-bit elements are widened when they are loaded and rounded once, to nearest even, when they are stored.

enum class Isa : std::uint8_t { baseline, avx2, avx512 };

/// A stream of random words, one for each global element: RandomSite (base/philox.h).
struct WordStream {
  std::uint64_t seed = 0;
  std::uint32_t step = 0, site = 0;
};

/// The random words that a dropout reads, resolved from Dropout and StepState.
struct DropoutStream {
  std::uint64_t seed = 0;
  std::uint32_t step = 0, site = 0;
  std::uint32_t threshold = 0;  ///< an element is kept when its word is at least this
  double kept_scale = 1;        ///< 1 / (1 - p)
  /// Of attention's probabilities, in units of 2^-16 (ops/kept_patch.h). kept_scale is then that of this threshold.
  std::uint32_t attention_threshold = 0;
};

/// out, a, b ...: n elements each; out may be any of the inputs. `element`: global number of the first one.
template <class T>
struct ElementwiseKernels {
  void (*add)(const T* a, const T* b, T* out, Index n);
  void (*scale)(T* x, Arithmetic<T> factor, Index n);
  void (*bias_gelu)(T* x, const T* bias, T* y, Index n);
  void (*gelu)(const T* z, T* y, Index n);
  void (*gelu_backward)(const T* z, const T* dy, T* dz, Index n);
  // The same with GeluForm::erf.
  void (*bias_gelu_erf)(T* x, const T* bias, T* y, Index n);
  void (*gelu_erf)(const T* z, T* y, Index n);
  void (*gelu_erf_backward)(const T* z, const T* dy, T* dz, Index n);
  /// gate_up, dgate_up: n pairs (gate, up). dgate_up may be gate_up.
  void (*swiglu)(const T* gate_up, T* y, Index n);
  void (*swiglu_backward)(const T* gate_up, const T* dy, T* dgate_up, Index n);
  /// The pairs (x[i], x[i + half]) turned by the angles of these cosines and sines [half], times `direction` 1 or -1.
  void (*rotate)(T* x, const Arithmetic<T>* cosine, const Arithmetic<T>* sine, Index half, Arithmetic<T> direction);
  /// y = weights[0] rows[0] + weights[1] rows[1] + ... in this order; 0 for none.
  void (*weighted_sum)(const T* const* rows, const Arithmetic<T>* weights, Index count, T* y, Index n);
  /// out = x * factor
  void (*scaled)(const T* x, Arithmetic<T> factor, T* out, Index n);
  /// sums [columns] += the sum of the rows, top to bottom.
  void (*add_rows)(const T* x, Index rows, Index columns, Arithmetic<T>* sums);
  /// out = x * keep
  void (*dropout)(const T* x, T* out, Index n, const DropoutStream& stream, std::uint64_t element);
  /// out = (a + b) * keep; stream may be null (keep all)
  void (*add_dropout)(const T* a, const T* b, T* out, Index n, const DropoutStream* stream, std::uint64_t element);
  /// out = residual + (x + bias) * keep; bias and stream may be null
  void (*bias_dropout_add)(const T* x, const T* bias, const T* residual, T* out, Index n, const DropoutStream* stream,
                           std::uint64_t element);
  /// Conversions between the types of storage and arithmetic.
  void (*widen)(const T* x, Arithmetic<T>* out, Index n);
  void (*round)(const Arithmetic<T>* x, T* out, Index n);
};

/// Operates on one row of n elements each, except where stated.
template <class T>
struct NormKernels {
  void (*forward)(const T* x, const T* gamma, const T* beta, T* y, Index n, double eps, Arithmetic<T>* mean,
                  Arithmetic<T>* rstd);
  /// dx may be dy or residual; residual may be null.
  void (*backward)(const T* dy, const T* x, const T* gamma, const T* residual, T* dx, Index n, Arithmetic<T> mean,
                   Arithmetic<T> rstd);
  /// gamma_sum, beta_sum [columns] += over the rows, top to bottom.
  void (*weight_backward)(const T* dy, const T* x, const Arithmetic<T>* mean, const Arithmetic<T>* rstd, Index rows,
                          Index columns, Arithmetic<T>* gamma_sum, Arithmetic<T>* beta_sum);
  /// backward() and weight_backward() where the gradient of y is dy + more.
  void (*backward_of_sum)(const T* dy, const T* more, const T* x, const T* gamma, T* dx, Index n, Arithmetic<T> mean,
                          Arithmetic<T> rstd);
  void (*weight_backward_of_sum)(const T* dy, const T* more, const T* x, const Arithmetic<T>* mean,
                                 const Arithmetic<T>* rstd, Index rows, Index columns, Arithmetic<T>* gamma_sum,
                                 Arithmetic<T>* beta_sum);
  // The same for RMS norms, which have no mean and no beta.
  void (*rms_forward)(const T* x, const T* gamma, T* y, Index n, double eps, Arithmetic<T>* rstd);
  void (*rms_backward)(const T* dy, const T* x, const T* gamma, const T* residual, T* dx, Index n, Arithmetic<T> rstd);
  void (*rms_weight_backward)(const T* dy, const T* x, const Arithmetic<T>* rstd, Index rows, Index columns,
                              Arithmetic<T>* gamma_sum);
  void (*rms_backward_of_sum)(const T* dy, const T* more, const T* x, const T* gamma, T* dx, Index n,
                              Arithmetic<T> rstd);
  void (*rms_weight_backward_of_sum)(const T* dy, const T* more, const T* x, const Arithmetic<T>* rstd, Index rows,
                                     Index columns, Arithmetic<T>* gamma_sum);
  // Parts of RMS norms for rows in which rstd and the mean of g xhat, g = dy gamma, cover more than the n elements.
  /// y = x rstd gamma
  void (*rms_apply)(const T* x, const T* gamma, T* y, Index n, Arithmetic<T> rstd);
  /// The sum of g xhat, xhat = x rstd.
  Arithmetic<T> (*rms_g_xhat_sum)(const T* dy, const T* x, const T* gamma, Index n, Arithmetic<T> rstd);
  /// dx = rstd (g - xhat g_xhat_mean), plus the residual unless that is null. dx may be dy or residual.
  void (*rms_gradient)(const T* dy, const T* x, const T* gamma, const T* residual, T* dx, Index n, Arithmetic<T> rstd,
                       Arithmetic<T> g_xhat_mean);
};

/// Which keys of a tile a query sees: those up to itself, or all.
enum class VisibleKeys : std::uint8_t { up_to_query, all };

/// A rectangle of attention scores of one head: queries first_query + r, keys first_key + c.
template <class T>
struct AttentionTile {
  T* scores = nullptr;  ///< [rows, columns], row stride `stride`
  T* dprobs = nullptr;  ///< the same, backward only
  Index stride = 0, rows = 0, columns = 0;
  Index first_query = 0, first_key = 0, seq_len = 0;
  T scale = 1;
  const DropoutStream* dropout = nullptr;  ///< null: none
  std::uint64_t head_block = 0;            ///< the head's first block of random words (ops/kept_patch.h)
  Index first_token = 0;                   ///< the number of query 0 and key 0 in the sample
  VisibleKeys visible = VisibleKeys::up_to_query;
};

template <class T>
struct SoftmaxKernels {
  using A = Arithmetic<T>;
  void (*exp)(const A* x, A* y, Index n);
  A (*row_max)(const T* x, Index n);  ///< -inf for n = 0
  /// z <- exp(z - max); returns the sum (of what is not yet rounded).
  A (*exp_sum)(T* z, Index n, A max);
  /// The sum of exp(z - max); z stays.
  A (*sum_of_exp)(const T* z, Index n, A max);
  /// z <- exp(z - max) * factor
  void (*exp_times)(T* z, Index n, A max, A factor);
  /// Scores become the dropped-out exp(scale * score - max), 0 where not visible. max, sum [rows] are carried from tile
  /// to tile. correction [rows] receives the factor on the sums of earlier tiles.
  void (*attention_forward)(const AttentionTile<A>& tile, A* max, A* sum, A* correction);
  /// scores to P * keep, dprobs to dS = P (keep dprobs - delta) scale; log_sum_exp, delta [rows].
  void (*attention_backward)(const AttentionTile<A>& tile, const A* log_sum_exp, const A* delta);
};

template <class T>
struct AdamWFactors {
  T beta1, beta2, one_minus_beta1, one_minus_beta2;
  T gradient;       ///< factor on the gradient
  T step;           ///< lr / (1 - b1^n)
  T inverse_bias2;  ///< 1 / (1 - b2^n)
  T eps;
  T decay;  ///< lr * weight_decay
};

template <class T>
struct AdamWBf16 {
  T* w = nullptr;
  bfloat16 *m = nullptr, *v = nullptr;
  const T* grad = nullptr;
};

template <class T>
struct OptimizerKernels {
  void (*adamw)(T* w, T* m, T* v, const T* grad, Index n, const AdamWFactors<T>& factors);
  /// The same with moments in bf16, rounded by the words of global elements [element, element + n) (moment_rounding.h).
  void (*adamw_bf16)(const AdamWBf16<T>& a, Index n, const AdamWFactors<T>& factors, const WordStream& stream,
                     std::uint64_t element);
  double (*sum_of_squares)(const T* x, Index n);
  /// The values of split masters (tensor/master_values.h) where no carry is needed, from their halves; and the halves
  /// of any values. They return whether an element needs its carry.
  bool (*join)(const bfloat16* copy, const std::uint16_t* low, float* values, Index n);
  bool (*split)(const float* values, bfloat16* copy, std::uint16_t* low, Index n);
};

/// c [m, n] = beta c + op(a) op(b), beta 0 (c is not read) or 1. op(a)(i, l) = a[i * a_row + l * a_column], where one
/// of the two strides is 1; b likewise. c is c[i * c_row + j].
template <class T>
struct Product {
  Index m = 0, n = 0, k = 0;
  const T* a = nullptr;
  Index a_row = 0, a_column = 0;
  const T* b = nullptr;
  Index b_row = 0, b_column = 0;
  Arithmetic<T>* c = nullptr;
  Index c_row = 0;
  Arithmetic<T> beta = 0;
};

/// c [rows, columns] = beta c + x w^T, beta as in Product. x [rows, k] and w [columns, k] have no gaps between their
/// rows.
template <class T>
struct FewRows {
  Index rows = 0, columns = 0, k = 0;
  const T *x = nullptr, *w = nullptr;
  Arithmetic<T>* c = nullptr;
  Index c_row = 0;
  Arithmetic<T> beta = 0;
};

template <class T>
struct GemmKernels {
  using A = Arithmetic<T>;
  void (*product)(const Product<A>& product);
  A (*dot)(const T* x, const T* y, Index n);
  /// y [columns] = sum over l of x[l] * matrix[l, column], row stride `stride`, l ascending; beta as in Product.
  void (*weighted_row_sum)(const T* x, const T* matrix, Index stride, Index k, Index columns, A* y, A beta);
  /// c of all rows. Each weight is read from memory once. The bits of a row do not depend on the other rows.
  void (*few_rows)(const FewRows<T>& product);
};

template <class T>
struct Kernels {
  ElementwiseKernels<T> elementwise;
  NormKernels<T> norm;
  SoftmaxKernels<T> softmax;
  OptimizerKernels<Arithmetic<T>> optimizer;
  GemmKernels<T> gemm;
};

/// What this CPU can run and this build has.
bool is_available(Isa isa);
/// Precondition: is_available(isa).
template <class T>
const Kernels<T>& kernels(Isa isa);
/// The widest available one. It is looked up once.
template <class T>
const Kernels<T>& kernels();

}  // namespace megalith::ops::cpu
