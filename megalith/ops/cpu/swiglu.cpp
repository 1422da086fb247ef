#include "megalith/ops/cpu/swiglu.h"

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"

namespace megalith::ops::cpu {

template <class T>
void swiglu(const Swiglu& args) {
  const T* gate_up = args.gate_up.data<T>();
  T* y = args.y.data<T>();
  const Index n = args.y.numel();
  parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
    kernels<T>().elementwise.swiglu(gate_up + 2 * begin, y + begin, count);
  });
}

template <class T>
void swiglu_backward(const SwigluBackward& args) {
  const T *gate_up = args.gate_up.data<T>(), *dy = args.dy.data<T>();
  T* dgate_up = args.dgate_up.data<T>();
  const Index n = args.dy.numel();
  parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
    kernels<T>().elementwise.swiglu_backward(gate_up + 2 * begin, dy + begin, dgate_up + 2 * begin, count);
  });
}

#define MEGALITH_INSTANTIATE(T)                \
  template void swiglu<T>(const Swiglu& args); \
  template void swiglu_backward<T>(const SwigluBackward& args)
MEGALITH_INSTANTIATE(float);
MEGALITH_INSTANTIATE(double);
MEGALITH_INSTANTIATE(bfloat16);
MEGALITH_INSTANTIATE(float16);
#undef MEGALITH_INSTANTIATE

}  // namespace megalith::ops::cpu
