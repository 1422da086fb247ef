#include <algorithm>
#include <cmath>
#include <cstring>

#include "megalith/base/philox.h"
#include "megalith/ops/cpu/dropout.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/row_parts.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops::cpu {

std::optional<ResolvedDropout> resolve(const Dropout& dropout) {
  if (dropout.probability == 0) return std::nullopt;
  StepState state;
  std::memcpy(&state, dropout.step_state.raw(), sizeof state);
  return ResolvedDropout{{.seed = dropout.seed,
                          .step = static_cast<std::uint32_t>(state.step),
                          .site = dropout.site,
                          .threshold = dropout_threshold(dropout.probability),
                          .kept_scale = 1.0 / (1.0 - dropout.probability)},
                         state.first_sample,
                         static_cast<std::uint64_t>(dropout.first_row)};
}

template <class T>
void add_parts(const T* parts, Index blocks, Index part_stride, Index columns, T* sums) {
  for (Index i = 0; i < blocks; ++i) kernels<T>().elementwise.add(sums, parts + i * part_stride, sums, columns);
}
template void add_parts(const float*, Index, Index, Index, float*);
template void add_parts(const double*, Index, Index, Index, double*);

void add_bias(const Tensor& x, const Tensor& bias) {
  dispatch_float(x.dtype(), "add_bias", [&]<class T>() {
    const Index columns = x.dim(1);
    T* data = x.data<T>();
    const T* b = bias.data<T>();
    const auto row = kernels<T>().elementwise.add;
    parallel_rows(x.dim(0), columns, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) row(data + r * columns, b, data + r * columns, columns);
    });
  });
}

void bias_backward(const Tensor& dy, const Tensor& bias_grad, const Tensor& parts) {
  dispatch_float(dy.dtype(), "bias_backward", [&]<class T>() {
    using A = Arithmetic<T>;
    const Index rows = dy.dim(0), columns = dy.dim(1);
    parallel_pieces(rows, kSumRows, rows * columns, [&](Index begin, Index count) {
      A* part = parts.data<A>() + begin / kSumRows * columns;
      std::fill_n(part, columns, A{0});
      kernels<T>().elementwise.add_rows(dy.data<T>() + begin * columns, count, columns, part);
    });
    add_parts(parts.data<A>(), row_blocks(rows), columns, columns, bias_grad.data<A>());
  });
}

void bias_gelu(const BiasGelu& args) {
  dispatch_float(args.x.dtype(), "bias_gelu", [&]<class T>() {
    const Index columns = args.x.dim(1);
    T *x = args.x.data<T>(), *y = args.y.data<T>();
    const T* bias = args.bias.data<T>();
    const ElementwiseKernels<T>& all = kernels<T>().elementwise;
    const auto row = args.form == GeluForm::erf ? all.bias_gelu_erf : all.bias_gelu;
    parallel_rows(args.x.dim(0), columns, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) row(x + r * columns, bias, y + r * columns, columns);
    });
  });
}

void gelu(const Gelu& args) {
  dispatch_float(args.z.dtype(), "gelu", [&]<class T>() {
    const T* z = args.z.data<T>();
    T* y = args.y.data<T>();
    const Index n = args.z.numel();
    const ElementwiseKernels<T>& all = kernels<T>().elementwise;
    const auto piece = args.form == GeluForm::erf ? all.gelu_erf : all.gelu;
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) { piece(z + begin, y + begin, count); });
  });
}

void gelu_backward(const GeluBackward& args) {
  dispatch_float(args.z.dtype(), "gelu_backward", [&]<class T>() {
    const T *z = args.z.data<T>(), *dy = args.dy.data<T>();
    T* dz = args.dz.data<T>();
    const Index n = args.z.numel();
    const ElementwiseKernels<T>& all = kernels<T>().elementwise;
    const auto piece = args.form == GeluForm::erf ? all.gelu_erf_backward : all.gelu_backward;
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) { piece(z + begin, dy + begin, dz + begin, count); });
  });
}

// A few rows per step pass these two, so they have no kernels per instruction set.
void tanh_forward(const Tensor& x, const Tensor& y) {
  dispatch_float(x.dtype(), "tanh_forward", [&]<class T>() {
    const Index n = x.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      for (Index i = begin; i < begin + count; ++i)
        y.data<T>()[i] = converted<T>(std::tanh(converted<Arithmetic<T>>(x.data<T>()[i])));
    });
  });
}

void tanh_backward(const TanhBackward& args) {
  dispatch_float(args.y.dtype(), "tanh_backward", [&]<class T>() {
    using A = Arithmetic<T>;
    const T *y = args.y.data<T>(), *dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    const Index n = args.y.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      for (Index i = begin; i < begin + count; ++i) {
        const A value = converted<A>(y[i]);
        dx[i] = converted<T>(converted<A>(dy[i]) * (A{1} - value * value));
      }
    });
  });
}

void bias_dropout_residual(const BiasDropoutResidual& args) {
  dispatch_float(args.x.dtype(), "bias_dropout_residual", [&]<class T>() {
    const Index columns = args.x.dim(1);
    const T *x = args.x.data<T>(), *residual = args.residual.data<T>(),
            *bias = args.bias ? args.bias.data<T>() : nullptr;
    T* out = args.out.data<T>();
    const auto dropout = resolve(args.dropout);
    const auto row = kernels<T>().elementwise.bias_dropout_add;
    parallel_rows(args.x.dim(0), columns, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        const Index at = r * columns;
        row(x + at, bias, residual + at, out + at, columns, dropout ? &dropout->stream : nullptr,
            dropout ? dropout->element_at(args.dropout.seq_len, columns, at) : 0);
      }
    });
  });
}

namespace {

void copy_bytes(const Tensor& from, const Tensor& to) {
  if (from.raw() == to.raw()) return;
  constexpr Index kBytes = kPiece * 4;
  // 1 KiB per call: above 4 KiB glibc switches to "rep movsb". On Zen 3 that is 5 times slower when both addresses have
  // the same offset in their page, as planned tensors do.
  constexpr Index kCall = 1024;
  const auto* source = static_cast<const std::byte*>(from.raw());
  auto* target = static_cast<std::byte*>(to.raw());
  parallel_pieces(from.bytes(), kBytes, from.numel(), [&](Index begin, Index count) {
    for (Index i = begin; i < begin + count; i += kCall) {
      std::memcpy(target + i, source + i, static_cast<std::size_t>(std::min(kCall, begin + count - i)));
    }
  });
}

}  // namespace

void dropout_backward(const DropoutBackward& args) {
  dispatch_float(args.dout.dtype(), "dropout_backward", [&]<class T>() {
    const auto dropout = resolve(args.dropout);
    if (!dropout) return copy_bytes(args.dout, args.dx);
    const T* dout = args.dout.data<T>();
    T* dx = args.dx.data<T>();
    const Index n = args.dout.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      kernels<T>().elementwise.dropout(dout + begin, dx + begin, count, dropout->stream,
                                       dropout->element_at(args.dropout.seq_len, args.dout.dim(1), begin));
    });
  });
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_float(a.dtype(), "add", [&]<class T>() {
    const Index n = a.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      kernels<T>().elementwise.add(a.data<T>() + begin, b.data<T>() + begin, out.data<T>() + begin, count);
    });
  });
}

void fill(const Tensor& x, double value) {
  dispatch_float(x.dtype(), "fill", [&]<class T>() {
    const Index n = x.numel();
    parallel_pieces(n, kPiece, n,
                    [&](Index begin, Index count) { std::fill_n(x.data<T>() + begin, count, converted<T>(value)); });
  });
}

void scale(const Tensor& x, double factor) {
  dispatch_float(x.dtype(), "scale", [&]<class T>() {
    const Index n = x.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      kernels<T>().elementwise.scale(x.data<T>() + begin, static_cast<Arithmetic<T>>(factor), count);
    });
  });
}

}  // namespace megalith::ops::cpu
