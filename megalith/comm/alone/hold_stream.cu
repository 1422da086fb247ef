#include <cstdint>

#include "megalith/comm/alone/hold_stream.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/load_kernels.h"

// One thread, which sleeps and looks at the GPU's clock. It holds one SM's slot and no memory bandwidth.

namespace megalith::comm {
namespace {

__global__ void hold_kernel(std::uint64_t nanoseconds) {
  const auto now = [] {
    std::uint64_t time = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
  };
  for (const std::uint64_t begin = now(); now() - begin < nanoseconds;) __nanosleep(500);
}

}  // namespace

void hold_stream(Stream stream, double seconds) {
  hold_kernel<<<1, 1, 0, cuda::native(stream)>>>(static_cast<std::uint64_t>(1e9 * seconds));
  cuda::check(cudaGetLastError());
}

void load_hold_kernel() { cuda::load_kernels(hold_kernel); }

}  // namespace megalith::comm
