#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace megalith::comm {

/// Most members of a group whose parts are summed by one kernel.
inline constexpr int kMaxSummed = 8;

/// Words in a member's memory by which one kernel of every member meets the others'. Zero at first; what stands for
/// member i is written by it.
struct BarrierFlags {
  std::uint32_t failed;          ///< not 0 once a member has failed: no kernel begins with the others' tensors any more
  std::uint32_t turn;            ///< kernels of this member that have ended
  std::uint32_t blocks_through;  ///< thread blocks of the present one that have done their share
  std::uint32_t begun[kMaxSummed];    ///< turn + 1 once its kernel has begun
  std::uint32_t through[kMaxSummed];  ///< turn + 1 once its kernel has done its share
  std::byte* symmetric[kMaxSummed];   ///< what its kernel has symmetric along, valid from `begun` until `through`
};

/// What a kernel needs to meet those of the other members: none touches memory before all have begun, so that what each
/// did before in its stream is done, and none ends before all have done their share. The kernels with a barrier of one
/// group follow one another in one stream of each member, in the same order on all.
struct DeviceBarrier {
  std::array<BarrierFlags*, kMaxSummed> flags{};  ///< of all members
  int members = 0;
  int rank = 0;
  void* symmetric = nullptr;  ///< memory that all members' kernels may touch until this one ends
};

}  // namespace megalith::comm
