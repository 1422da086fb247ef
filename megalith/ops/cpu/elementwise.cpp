#include "megalith/ops/cpu/elementwise.h"

#include <algorithm>
#include <cstring>

#include "megalith/base/philox.h"
#include "megalith/ops/cpu/parallel.h"

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

template <class T>
void add_bias(const Tensor& x, const Tensor& bias) {
  const Index columns = x.dim(1);
  T* data = x.data<T>();
  const T* b = bias.data<T>();
  const auto row = kernels<T>().elementwise.add;
  parallel_rows(x.dim(0), columns, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) row(data + r * columns, b, data + r * columns, columns);
  });
}

template <class T>
void bias_backward(const Tensor& dy, const Tensor& bias_grad, const Tensor& parts) {
  using A = Arithmetic<T>;
  const Index rows = dy.dim(0), columns = dy.dim(1);
  parallel_pieces(rows, kSumRows, rows * columns, [&](Index begin, Index count) {
    A* part = parts.data<A>() + begin / kSumRows * columns;
    std::fill_n(part, columns, A{0});
    kernels<T>().elementwise.add_rows(dy.data<T>() + begin * columns, count, columns, part);
  });
  add_parts(parts.data<A>(), row_blocks(rows), columns, columns, bias_grad.data<A>());
}

template <class T>
void bias_gelu(const BiasGelu& args) {
  const Index columns = args.x.dim(1);
  T *x = args.x.data<T>(), *y = args.y.data<T>();
  const T* bias = args.bias.data<T>();
  const auto row = kernels<T>().elementwise.bias_gelu;
  parallel_rows(args.x.dim(0), columns, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) row(x + r * columns, bias, y + r * columns, columns);
  });
}

template <class T>
void gelu(const Gelu& args) {
  const T* z = args.z.data<T>();
  T* y = args.y.data<T>();
  const Index n = args.z.numel();
  parallel_pieces(n, kPiece, n,
                  [&](Index begin, Index count) { kernels<T>().elementwise.gelu(z + begin, y + begin, count); });
}

template <class T>
void gelu_backward(const GeluBackward& args) {
  const T *z = args.z.data<T>(), *dy = args.dy.data<T>();
  T* dz = args.dz.data<T>();
  const Index n = args.z.numel();
  parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
    kernels<T>().elementwise.gelu_backward(z + begin, dy + begin, dz + begin, count);
  });
}

template <class T>
void bias_dropout_residual(const BiasDropoutResidual& args) {
  const Index columns = args.x.dim(1);
  const T *x = args.x.data<T>(), *residual = args.residual.data<T>(), *bias = args.bias ? args.bias.data<T>() : nullptr;
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
}

template <class T>
void dropout_backward(const DropoutBackward& args) {
  const auto dropout = resolve(args.dropout);
  if (!dropout) return copy_bytes(args.dout, args.dx);
  const T* dout = args.dout.data<T>();
  T* dx = args.dx.data<T>();
  const Index n = args.dout.numel();
  parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
    kernels<T>().elementwise.dropout(dout + begin, dx + begin, count, dropout->stream,
                                     dropout->element_at(args.dropout.seq_len, args.dout.dim(1), begin));
  });
}

template <class T>
void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  const Index n = a.numel();
  parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
    kernels<T>().elementwise.add(a.data<T>() + begin, b.data<T>() + begin, out.data<T>() + begin, count);
  });
}

template <class T>
void fill(const Tensor& x, double value) {
  const Index n = x.numel();
  parallel_pieces(n, kPiece, n,
                  [&](Index begin, Index count) { std::fill_n(x.data<T>() + begin, count, converted<T>(value)); });
}

template <class T>
void scale(const Tensor& x, double factor) {
  const Index n = x.numel();
  parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
    kernels<T>().elementwise.scale(x.data<T>() + begin, static_cast<Arithmetic<T>>(factor), count);
  });
}

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

#define MEGALITH_INSTANTIATE(T)                                                                   \
  template void add_bias<T>(const Tensor& x, const Tensor& bias);                                 \
  template void bias_backward<T>(const Tensor& dy, const Tensor& bias_grad, const Tensor& parts); \
  template void bias_gelu<T>(const BiasGelu& args);                                               \
  template void gelu<T>(const Gelu& args);                                                        \
  template void gelu_backward<T>(const GeluBackward& args);                                       \
  template void bias_dropout_residual<T>(const BiasDropoutResidual& args);                        \
  template void dropout_backward<T>(const DropoutBackward& args);                                 \
  template void add<T>(const Tensor& a, const Tensor& b, const Tensor& out);                      \
  template void fill<T>(const Tensor& x, double value);                                           \
  template void scale<T>(const Tensor& x, double factor)
MEGALITH_INSTANTIATE(float);
MEGALITH_INSTANTIATE(double);
MEGALITH_INSTANTIATE(bfloat16);
MEGALITH_INSTANTIATE(float16);
#undef MEGALITH_INSTANTIATE

}  // namespace megalith::ops::cpu
