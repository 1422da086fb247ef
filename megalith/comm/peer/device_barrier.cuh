#pragma once
#include <cstdint>

#include "megalith/comm/peer/device_barrier.h"

namespace megalith::comm {

// Other GPUs write or read these words, so every access has system scope.

/// All later work of the thread comes after everything that preceded the write of the word that it has read.
__device__ inline std::uint32_t load_signal(const std::uint32_t* word) {
  std::uint32_t value = 0;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
/// The write comes after everything that the thread has written or seen.
__device__ inline void store_signal(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/// One CTA's part in the device barrier of its kernel. Lies in shared memory. All threads of all CTAs call begin() and
/// end(); a CTA has kMaxSummed threads or more.
class BarrierArrival {
 public:
  /// Returns when the kernels of all members have begun. False if a member has failed: the kernel must then end.
  __device__ bool begin(const DeviceBarrier& barrier) {
    const auto member = static_cast<int>(threadIdx.x);
    bool goes_on = true;
    if (barrier.is_alone) {
      if (member < barrier.members) symmetric_[member] = static_cast<std::byte*>(barrier.symmetric);
    } else if (member < barrier.members) {
      BarrierFlags& own = flags_of(barrier, barrier.rank);
      const std::uint32_t turn = *static_cast<volatile std::uint32_t*>(&own.turn) + 1;
      if (member == barrier.rank) {
        turn_ = turn;
        symmetric_[member] = static_cast<std::byte*>(barrier.symmetric);
      } else {
        if (blockIdx.x == 0) {
          BarrierFlags& theirs = flags_of(barrier, member);
          *static_cast<std::byte* volatile*>(&theirs.symmetric[barrier.rank]) =
              static_cast<std::byte*>(barrier.symmetric);
          store_signal(&theirs.begun[barrier.rank], turn);
        }
        goes_on = await(own, own.begun[member], turn);
        symmetric_[member] = *static_cast<std::byte* volatile*>(&own.symmetric[member]);
      }
    }
    return __syncthreads_and(static_cast<int>(goes_on)) != 0;
  }

  /// The symmetric memory of a member.
  __device__ std::byte* symmetric(int member) const { return symmetric_[member]; }

  /// The last CTA of the kernel returns when the kernels of all members have completed their share, or a member has
  /// failed.
  __device__ void end(const DeviceBarrier& barrier) {
    if (barrier.is_alone) return;
    BarrierFlags& own = flags_of(barrier, barrier.rank);
    const auto member = static_cast<int>(threadIdx.x);
    __syncthreads();
    if (member == 0) {  // for the whole CTA: what it has written comes before the count, and so before the words
      __threadfence_system();
      is_last_ = atomicAdd(&own.blocks_through, 1) == gridDim.x - 1;
      __threadfence_system();
    }
    __syncthreads();
    if (!is_last_) return;
    if (member < barrier.members && member != barrier.rank) {
      store_signal(&flags_of(barrier, member).through[barrier.rank], turn_);
      static_cast<void>(await(own, own.through[member], turn_));
    }
    __syncthreads();
    if (member != 0) return;
    own.blocks_through = 0;
    own.turn = turn_;
  }

 private:
  __device__ static BarrierFlags& flags_of(const DeviceBarrier& barrier, int member) {
    return *barrier.flags[static_cast<std::size_t>(member)];
  }
  /// Waits until the word has reached `turn`. False if a member has failed. Turns may wrap around.
  __device__ static bool await(const BarrierFlags& own, const std::uint32_t& word, std::uint32_t turn) {
    for (;;) {
      const bool has_come = static_cast<std::int32_t>(load_signal(&word) - turn) >= 0;
      if (*static_cast<const volatile std::uint32_t*>(&own.failed) != 0) return false;
      if (has_come) return true;
    }
  }

  std::uint32_t turn_;
  bool is_last_;
  std::byte* symmetric_[kMaxSummed];
};

}  // namespace megalith::comm
