#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/swiglu_kernels.h"

namespace megalith::ops::cpu {

void swiglu(const Swiglu& args) {
  dispatch_float(args.gate_up.dtype(), "swiglu", [&]<class T>() {
    const T* gate_up = args.gate_up.data<T>();
    T* y = args.y.data<T>();
    const Index n = args.y.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      kernels<T>().elementwise.swiglu(gate_up + 2 * begin, y + begin, count);
    });
  });
}

void swiglu_backward(const SwigluBackward& args) {
  dispatch_float(args.gate_up.dtype(), "swiglu_backward", [&]<class T>() {
    const T *gate_up = args.gate_up.data<T>(), *dy = args.dy.data<T>();
    T* dgate_up = args.dgate_up.data<T>();
    const Index n = args.dy.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      kernels<T>().elementwise.swiglu_backward(gate_up + 2 * begin, dy + begin, dgate_up + 2 * begin, count);
    });
  });
}

}  // namespace megalith::ops::cpu
