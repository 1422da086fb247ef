#include "megalith/ops/cpu/kernels.h"

// One build of cpu/isa/ for processors other than x86-64, in the compiler's generic vectors of 16 bytes.
namespace megalith::ops::cpu {

namespace isa_baseline {
template <class T>
Kernels<T> table();
}

bool is_available(Isa isa) { return isa == Isa::baseline; }

template <class T>
const Kernels<T>& kernels() {
  static const Kernels<T> table = isa_baseline::table<T>();
  return table;
}
template const Kernels<float>& kernels();
template const Kernels<double>& kernels();
template const Kernels<bfloat16>& kernels();
template const Kernels<float16>& kernels();

template <class T>
const Kernels<T>& kernels(Isa) {
  return kernels<T>();
}
template const Kernels<float>& kernels(Isa isa);
template const Kernels<double>& kernels(Isa isa);
template const Kernels<bfloat16>& kernels(Isa isa);
template const Kernels<float16>& kernels(Isa isa);

}  // namespace megalith::ops::cpu
