#include "megalith/corpus/minhash.h"

namespace megalith::corpus {

// Defined in isa/minhash.cpp, once per build of it.
namespace isa_baseline {
void minhash(const MinHashWork& work);
}
namespace isa_avx2 {
void minhash(const MinHashWork& work);
}
namespace isa_avx512 {
void minhash(const MinHashWork& work);
}

std::vector<NamedKernel> minhash_kernels() {
  std::vector<NamedKernel> kernels{{"baseline", isa_baseline::minhash}};
  if (__builtin_cpu_supports("avx2")) kernels.push_back({"avx2", isa_avx2::minhash});
  if (__builtin_cpu_supports("avx512f")) kernels.push_back({"avx512", isa_avx512::minhash});
  return kernels;
}

}  // namespace megalith::corpus
