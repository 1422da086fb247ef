#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string_view>
#include <utility>

#include "megalith/comm/channel.h"
#include "megalith/runtime/exec.h"

namespace megalith::comm {

/// Ranks that communicate. A cheap handle that can be copied freely. Only a World makes groups, so there is no default
/// group.
class Group {
 public:
  explicit Group(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  int rank() const { return channel_->rank(); }  ///< in [0, size())
  int size() const { return channel_->size(); }
  std::string_view name() const { return channel_->name(); }  ///< "tp", "dp-cp", ...: used in messages and traces
  std::span<const int> world_ranks() const { return channel_->world_ranks(); }
  const Counters& counters() const { return channel_->counters(); }
  Channel& channel() const { return *channel_; }

 private:
  std::shared_ptr<Channel> channel_;
};

/// The host waits for a point of the caller's stream after calls of the group (Channel::host_wait).
inline void host_wait(const Group& group, const Event& point) { group.channel().host_wait(point); }

/// Communication in flight. Wait before the tensors are read, overwritten or freed. On the CPU transports a collective
/// is complete when the call returns; a send or a receive is not. On GPUs the host only submits: wait() makes the
/// stream of its Exec wait, not the host, and World::check_health() reports errors that have occurred since. Moved, not
/// copied. If it is destroyed without a wait (an error unwinds), it gives the message up. So no other rank accesses
/// memory that is about to be freed. Must not outlive its Group.
class [[nodiscard]] Pending {
 public:
  /// The state of a call that was started during the capture of a graph.
  struct Captured {
    std::uint64_t capture = 0;  ///< Capture::number()
    Ticket ticket;              ///< ticket of the latest launch; on a GPU that of the capture
  };
  Pending() = default;  ///< nothing in flight: the result in a group of one rank
  /// Tensors of which those that are defined are in use until the wait, the defined ones first.
  using InUse = std::array<Tensor, 6>;
  Pending(Channel& channel, Ticket ticket, const InUse& in_use)
      : channel_(&channel), ticket_(ticket), in_use_(in_use) {}
  Pending(Channel& channel, std::shared_ptr<const Captured> captured, const InUse& in_use)
      : channel_(&channel), captured_(std::move(captured)), in_use_(in_use) {}
  Pending(Pending&& from) noexcept { *this = std::move(from); }
  Pending& operator=(Pending&& from) noexcept;
  ~Pending() { drop(); }

  /// Returns when the caller may use the tensors again. A second wait does nothing. It is recorded as an op "wait" on
  /// the tensors, so that a plan keeps them until here. Throws InternalError if a graph would contain only one end of
  /// the call. Within a capture this is a call that was started before it or in another capture. Outside it is a call
  /// that was started within one. The call then stays in flight.
  void wait(Exec& ex);

 private:
  void drop() noexcept;
  void expect_same_capture(const Exec& ex) const;

  Channel* channel_ = nullptr;
  Ticket ticket_;
  std::shared_ptr<const Captured> captured_;  // null: started outside of captures
  InUse in_use_;
};

using Where = std::source_location;

// All collectives: every member makes the same calls in the same order, from the same call site and with the same
// arguments.
//  - CollectiveError on the ranks that notice a disagreement.
//  - HangError after the World's timeout if a member never makes the call; AbortedError if a member has failed.
//  - ShapeError, before anything is sent, if the tensors do not fit together.
// A group of one rank returns its input unchanged, communicates nothing and counts nothing. Every element is summed in
// ascending group rank order, so all CPU transports give the same bits. The collectives of a group run one after the
// other. One may work on the output of the one before it, without a wait in between.
//
// On GPUs calls are not compared. Ranks that disagree hang until the timeout, or get undefined data. Large sums between
// rank threads have the order of CPUs (peer/peer_group.h). NCCL takes the other sums in its own order, rounds bf16 at
// every step, and loses a NaN in max and min.

/// In place. f64, f32, bf16 and f16 (summed in f32, rounded once), i64, i32, u64, u8. A NaN on any rank gives NaN, also
/// in max and min. Volume per rank: 2 (n-1)/n of the tensor.
Pending all_reduce(Exec& ex, const Group& group, const Tensor& tensor, Reduce reduce,
                   Priority priority = Priority::awaited, Where where = Where::current());
/// in [n*k, ...] -> out [k, ...]: rank r receives the reduction of all ranks' r-th part.
Pending reduce_scatter(Exec& ex, const Group& group, const Tensor& in, const Tensor& out, Reduce reduce,
                       Priority priority = Priority::awaited, Where where = Where::current());
/// in [k, ...] -> out [n*k, ...] in group rank order. `in` may be the rank's own part of `out`.
Pending all_gather(Exec& ex, const Group& group, const Tensor& in, const Tensor& out,
                   Priority priority = Priority::awaited, Where where = Where::current());
/// Sends send_counts[r] rows of `in` to rank r, in rank order, and receives recv_counts[r] rows from it into `out`. The
/// counts must add up to the rows of `in` and `out`. The send count for r here must equal the receive count on r. A
/// graph repeats the counts of its capture, so they must be the same in every launch.
Pending all_to_all(Exec& ex, const Group& group, const Tensor& in, std::span<const Index> send_counts,
                   const Tensor& out, std::span<const Index> recv_counts, Where where = Where::current());
Pending broadcast(Exec& ex, const Group& group, const Tensor& tensor, int root, Where where = Where::current());
/// On GPUs the streams wait, not the hosts: later work of `ex` starts when all members have reached the barrier.
void barrier(Exec& ex, const Group& group, Where where = Where::current());

/// Each member pulls rows of all members' matrices `mine` [N, W] into its own `out` [n, W], by lists of its own
/// (row_lists.h). N and W are the same on all members, n and all lists may differ. Rows of `out` that no list names
/// keep what they hold. Throws CollectiveError, before anything is sent, for a member or a row that does not exist (a
/// PeerGroup's kernels leave it out). Counted as all of `mine`, because the lists are data. Volume per rank: the p rows
/// of its lists in, and those of others' lists out, each with 4 bytes over MPI, 8 over NCCL, which no graph can hold.
Pending gather_rows(Exec& ex, const Group& group, const Tensor& mine, const RowPulls& pulls, const Tensor& out,
                    Where where = Where::current());
/// Each member sums rows of all members' matrices `mine` [N, W], with weights, into the rows of its own `out` [n, W]:
/// in the order of its lists, in f32 (f64 for f64). Write::accumulate adds them to what the row holds, one after the
/// other. A row without terms is 0, with Write::accumulate what it was. The rest as gather_rows. Volume per rank: a row
/// for each term, over NCCL for each row that the terms name.
Pending gather_sum_rows(Exec& ex, const Group& group, const Tensor& mine, const RowSums& sums, const Tensor& out,
                        Write write, Where where = Where::current());

/// Posted: never blocks. Messages between two ranks of a group with the same `lane` (from 0 to below kMaxLanes) arrive
/// in order. Lanes are independent. The wait of a send may return before the message is received, because small
/// messages are buffered. On GPUs throws BackendError for a peer or a lane that the group's Messages leave out.
Pending send(Exec& ex, const Group& group, const Tensor& tensor, int peer, int lane = 0,
             Where where = Where::current());
Pending recv(Exec& ex, const Group& group, const Tensor& tensor, int peer, int lane = 0,
             Where where = Where::current());

}  // namespace megalith::comm
