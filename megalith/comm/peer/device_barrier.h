#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace megalith::comm {

/// The maximal number of members of a group whose parts one kernel sums.
inline constexpr int kMaxSummed = 8;

/// Words in a member's memory for a device barrier: one kernel of every member waits for the kernels of all others.
/// Initially zero. Member i writes the entries [i].
struct BarrierFlags {
  std::uint32_t failed;          ///< not 0 once a member has failed: no kernel starts to access the tensors of others
                                 ///< any more
  std::uint32_t turn;            ///< kernels of this member that have ended
  std::uint32_t blocks_through;  ///< CTAs of the present kernel that have completed their share
  std::uint32_t begun[kMaxSummed];    ///< turn + 1 once its kernel has begun
  std::uint32_t through[kMaxSummed];  ///< turn + 1 once its kernel has completed its share
  std::byte* symmetric[kMaxSummed];   ///< the symmetric memory of its kernel, valid from `begun` until `through`
};

/// The device barrier of one kernel per member. No kernel accesses memory before all have begun, so all earlier work of
/// every member's stream is complete. No kernel ends before all have completed their share. The kernels of one group
/// that use it run one after the other in one stream of each member. Their order is the same on all members.
struct DeviceBarrier {
  std::array<BarrierFlags*, kMaxSummed> flags{};  ///< those of all members
  int members = 0;
  int rank = 0;
  void* symmetric = nullptr;  ///< memory that the kernels of all members may access until this kernel ends
  bool is_alone = false;  ///< no other kernel takes part: `symmetric` is the memory of every member, no flag is read
};

}  // namespace megalith::comm
