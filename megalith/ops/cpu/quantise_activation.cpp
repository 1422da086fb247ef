#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/quantise_squares.h"
#include "megalith/ops/quantise_activation_kernels.h"

namespace megalith::ops::cpu {
namespace {

/// Rounds the matrix that line(row, column, count, numbers) makes, a part of a row at a time. Also stores it to `out`,
/// where that is defined.
template <class T, class Line>
void quantise_lines(const OperandsOf& operands, const Tensor& out, const Line& line) {
  quantise_squares(operands, [&](Square& square) {
    T numbers[kScaleBlock];
    for (Index r = 0; r < square.live_rows; ++r) {
      const Index row = square.row + r;
      line(row, square.column, square.columns, numbers);
      for (Index c = 0; c < square.columns; ++c) square.x[r][c] = static_cast<float>(numbers[c]);
      if (out) std::copy_n(numbers, square.columns, out.data<T>() + row * operands.columns + square.column);
    }
  });
}

}  // namespace

void quantise_activation(const QuantiseActivation& args) {
  const bool is_gated = args.activation == Activation::swiglu;
  const Index rows = args.z.dim(0), width = args.z.dim(1), units = is_gated ? width / 2 : width;
  dispatch_float(args.z.dtype(), "quantise_activation", [&]<class T>() {
    const ElementwiseKernels<T>& all = kernels<T>().elementwise;
    const auto activate = is_gated ? all.swiglu : args.activation == Activation::gelu_erf ? all.gelu_erf : all.gelu;
    const T* const z = args.z.data<T>();
    quantise_lines<T>({rows, units, args.straight, args.turned, ScaleForm::f32, args.groups}, args.y,
                      [&](Index row, Index column, Index count, T* numbers) {
                        activate(z + row * width + (is_gated ? 2 * column : column), numbers, count);
                      });
  });
}

void quantise_activation_backward(const QuantiseActivationBackward& args, const Tensor& sum_parts) {
  const bool is_gated = args.activation == Activation::swiglu;
  const Index rows = args.z.dim(0), width = args.z.dim(1), units = args.dy.dim(1);
  dispatch_float(args.z.dtype(), "quantise_activation_backward", [&]<class T>() {
    const ElementwiseKernels<T>& all = kernels<T>().elementwise;
    const auto go_back = is_gated                                  ? all.swiglu_backward
                         : args.activation == Activation::gelu_erf ? all.gelu_erf_backward
                                                                   : all.gelu_backward;
    const T *const z = args.z.data<T>(), *const dy = args.dy.data<T>();
    const Index each = is_gated ? 2 : 1;  // numbers of a unit
    quantise_lines<T>({.rows = rows,
                       .columns = width,
                       .straight = args.straight,
                       .turned = args.turned,
                       .column_sums = args.column_sums,
                       .sum_parts = sum_parts},
                      args.dz, [&](Index row, Index column, Index count, T* numbers) {
                        go_back(z + row * width + column, dy + row * units + column / each, numbers, count / each);
                      });
  });
}

}  // namespace megalith::ops::cpu
