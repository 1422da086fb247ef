#pragma once
#include <cstdint>

/// Barriers in shared memory, for which bulk copies count. GPUs have them from compute capability 9.0 on. Elsewhere no
/// kernel may call these functions. Source: PTX ISA 8.0, "mbarrier".
namespace megalith::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Counts arrivals and the bytes of copies in flight; both at zero end a phase. Phases are numbered from 0. A wait
/// names the parity of the phase whose end it waits for: wait(barrier, 1) returns at once on a new barrier.
using Barrier = std::uint64_t;

__device__ inline void init(Barrier& barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
/// Makes the thread's earlier init() calls visible to the copy engine and the cluster's other blocks.
__device__ inline void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// One arrival. The phase's end also waits for `bytes` of copies.
__device__ inline void arrive_and_expect(Barrier& barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void wait(Barrier& barrier, unsigned parity) {
  unsigned is_over = 0;
  while (is_over == 0) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n"
        "}"
        : "=r"(is_over)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
  }
}

}  // namespace megalith::cuda
