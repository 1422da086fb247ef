#include "megalith/ops/cpu/kernels.h"

namespace megalith::ops::cpu {

// Defined in cpu/isa/table.cpp, once per build of it.
namespace isa_baseline {
template <class T>
Kernels<T> table();
}
namespace isa_avx2 {
template <class T>
Kernels<T> table();
}
namespace isa_avx512 {
template <class T>
Kernels<T> table();
}

bool is_available(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::avx512:
      return is_available(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }
  return false;
}

// Each table is made at its first use, because the code that makes it is already in its instruction set.
template <class T>
const Kernels<T>& kernels(Isa isa) {
  if (isa == Isa::avx512) {
    static const Kernels<T> table = isa_avx512::table<T>();
    return table;
  }
  if (isa == Isa::avx2) {
    static const Kernels<T> table = isa_avx2::table<T>();
    return table;
  }
  static const Kernels<T> table = isa_baseline::table<T>();
  return table;
}
template const Kernels<float>& kernels(Isa isa);
template const Kernels<double>& kernels(Isa isa);
template const Kernels<bfloat16>& kernels(Isa isa);
template const Kernels<float16>& kernels(Isa isa);

template <class T>
const Kernels<T>& kernels() {
  static const Kernels<T>& best =
      kernels<T>(is_available(Isa::avx512) ? Isa::avx512 : (is_available(Isa::avx2) ? Isa::avx2 : Isa::baseline));
  return best;
}
template const Kernels<float>& kernels();
template const Kernels<double>& kernels();
template const Kernels<bfloat16>& kernels();
template const Kernels<float16>& kernels();

}  // namespace megalith::ops::cpu
