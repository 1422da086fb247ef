#pragma once
#include <array>
#include <string_view>
#include <utility>

#include "megalith/base/str.h"
#include "megalith/runtime/exec.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith::ops {

/// The device has no kernel for this op in this build.
[[noreturn]] void throw_not_built(Device device, std::string_view op);

/// Throws BackendError for an element type without kernels on the device.
void expect_float(const Exec& ex, const Tensor& tensor, std::string_view op);

/// The same, for f32 and on the CPU f64. Throws ShapeError for 16 bits, naming `what`.
void expect_wide(const Exec& ex, const Tensor& tensor, std::string_view op, std::string_view what);

/// Throws ShapeError unless ids [first_id, ...) of a vocabulary are possible.
void expect_vocabulary(Index first_id, Index vocab_size, std::string_view op);

/// `tensor` must have this shape and dtype. Throws ShapeError naming `what` = "op.argument".
inline void expect_like(const Tensor& tensor, const Shape& shape, DType dtype, std::string_view what) {
  expect_shape(tensor, shape, what);
  expect_dtype(tensor, dtype, what);
}

/// `tensor` holds one struct.
template <class Struct>
void expect_struct(const Tensor& tensor, std::string_view what) {
  expect_like(tensor, {Index{sizeof(Struct)}}, DType::u8, what);
}

/// Checks of an op's arguments by their names. Text is put together only for an error, because ops allocate nothing.
struct Arguments {
  std::string_view op;

  /// The sizes of a tensor of known rank.
  template <int kRank>
  std::array<Index, kRank> dims(const Tensor& tensor, std::string_view argument) const {
    if (tensor.shape().rank() != kRank) throw_rank(tensor, kRank, str(op, ".", argument));
    return megalith::dims<kRank>(tensor, argument);
  }
  /// `tensor` must have this shape and dtype. Throws ShapeError that names it "op.argument".
  void like(const Tensor& tensor, const Shape& shape, DType dtype, std::string_view argument) const {
    if (tensor.shape() != shape || tensor.dtype() != dtype) expect_like(tensor, shape, dtype, str(op, ".", argument));
  }
};

/// What an Exec runs: on_cpu() or on_gpu(exec, stream). on_gpu is generic, so that a build without CUDA parses it and
/// links nothing.
template <class OnCpu, class OnGpu>
auto kernel_of(const char* name, OnCpu on_cpu, OnGpu on_gpu) {
  return [name, on_cpu = std::move(on_cpu), on_gpu = std::move(on_gpu)](Exec& exec, Stream stream) {
    if (exec.device() == Device::cpu) return on_cpu();
    if constexpr (build::has_cuda)
      on_gpu(exec, stream);
    else
      throw_not_built(exec.device(), name);
  };
}
/// The one line between checks and kernels. It passes the op to `ex`.
template <class OnCpu, class OnGpu>
void run_kernel(Exec& ex, const OpInfo& op, OnCpu on_cpu, OnGpu on_gpu) {
  ex.run(op, kernel_of(op.name, std::move(on_cpu), std::move(on_gpu)));
}

}  // namespace megalith::ops
