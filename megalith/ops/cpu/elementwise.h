#pragma once
#include <optional>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/elementwise.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops::cpu {

/// A dropout with its StepState read: which words, and where the tensor is in the global numbering.
struct ResolvedDropout {
  DropoutStream stream;
  std::uint64_t first_sample = 0, first_row = 0;  ///< the microbatch's first sample; the tensor's first row in it

  /// Global number of an element of a tensor with `columns` columns and seq_len rows per sample.
  std::uint64_t element_at(Index seq_len, Index columns, Index element) const {
    return (first_sample * static_cast<std::uint64_t>(seq_len) + first_row) * static_cast<std::uint64_t>(columns) +
           static_cast<std::uint64_t>(element);
  }
};
/// Empty when nothing is dropped.
std::optional<ResolvedDropout> resolve(const Dropout& dropout);

/// Rows that a partial sum over rows covers. They are few enough to fit the cache, and many enough that adding the
/// parts costs nothing.
inline constexpr Index kSumRows = 128;
inline Index row_blocks(Index rows) { return ceil_div(rows, kSumRows); }
/// sums [columns] += parts[0] + parts[1] + ... in order; parts [blocks, columns].
template <class T>
void add_parts(const T* parts, Index blocks, Index part_stride, Index columns, T* sums);

template <class T>
void add_bias(const Tensor& x, const Tensor& bias);
/// parts: scratch [row_blocks(T), F]
template <class T>
void bias_backward(const Tensor& dy, const Tensor& bias_grad, const Tensor& parts);
template <class T>
void bias_gelu(const BiasGelu& args);
template <class T>
void gelu(const Gelu& args);
template <class T>
void gelu_backward(const GeluBackward& args);
template <class T>
void bias_dropout_residual(const BiasDropoutResidual& args);
template <class T>
void dropout_backward(const DropoutBackward& args);
template <class T>
void add(const Tensor& a, const Tensor& b, const Tensor& out);
template <class T>
void fill(const Tensor& x, double value);
template <class T>
void scale(const Tensor& x, double factor);
/// Copies a tensor of any dtype.
void copy_bytes(const Tensor& from, const Tensor& to);

}  // namespace megalith::ops::cpu
