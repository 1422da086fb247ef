#pragma once
#include "megalith/tensor/cuda/shared_barrier.cuh"

/// Bulk copies between the memory of GPUs and shared memory, which a GPU has from compute capability 9.0 on. Elsewhere
/// nothing may call these functions. Addresses and sizes are multiples of 16. Source: PTX ISA 8.0, "cp.async.bulk" and
/// "mbarrier".
namespace megalith::comm::bulk {

/// Each phase waits for one arrival.
using Arrivals = cuda::Barrier;
using cuda::shared_address;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool kHasCopies = true;

__device__ inline void init(Arrivals& arrivals) { cuda::init(arrivals, 1); }
/// Makes the thread's init() calls, and its writes to shared memory, visible to copies. A barrier of the CTA follows.
__device__ inline void fence_shared() {
  cuda::fence_init();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Orders copies that read the memory of GPUs after what the thread has seen there.
__device__ inline void fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// The one arrival of a phase, which also waits for `bytes` of copies.
__device__ inline void arrive(Arrivals& arrivals, unsigned bytes) { cuda::arrive_and_expect(arrivals, bytes); }
__device__ inline void wait(Arrivals& arrivals, unsigned parity) { cuda::wait(arrivals, parity); }
__device__ inline void load(void* shared, const void* from, unsigned bytes, Arrivals& arrivals) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&arrivals))
               : "memory");
}
__device__ inline void store(void* to, const void* shared, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
/// The thread's stores since the last call are a group.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Returns when the thread's groups, but for the last kLeft, have read their shared memory.
template <int kLeft>
__device__ inline void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
/// Returns when all of the thread's groups are complete.
__device__ inline void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
#else
inline constexpr bool kHasCopies = false;

__device__ inline void init(Arrivals&) {}
__device__ inline void fence_shared() {}
__device__ inline void fence_global() {}
__device__ inline void arrive(Arrivals&, unsigned) {}
__device__ inline void wait(Arrivals&, unsigned) {}
__device__ inline void load(void*, const void*, unsigned, Arrivals&) {}
__device__ inline void store(void*, const void*, unsigned) {}
__device__ inline void commit_stores() {}
template <int kLeft>
__device__ inline void wait_for_reads() {}
__device__ inline void wait_for_stores() {}
#endif

}  // namespace megalith::comm::bulk
