#include "megalith/base/hash.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/load_kernels.h"

#include "tests/gpu/spin.h"

namespace megalith::support {
namespace {

__device__ std::uint64_t now_ns() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

/// One thread. Moves nothing.
__global__ void spin_kernel(std::uint64_t seed, std::uint64_t max_ns) {
  const std::uint64_t begin = now_ns(), end = begin + mix64(seed + begin) % (max_ns + 1);
  while (now_ns() < end) __nanosleep(200);
}

}  // namespace

void spin(Stream stream, std::uint64_t seed, int max_us) {
  spin_kernel<<<1, 1, 0, cuda::native(stream)>>>(seed, static_cast<std::uint64_t>(max_us) * 1000);
  cuda::check(cudaGetLastError());
}

void load_spin() { cuda::load_kernels(spin_kernel); }

}  // namespace megalith::support
