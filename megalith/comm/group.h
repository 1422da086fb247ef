#pragma once
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string_view>
#include <utility>

#include "megalith/comm/channel.h"
#include "megalith/runtime/exec.h"

namespace megalith::comm {

/// Ranks that communicate. A cheap handle, copied freely; made by a World only, so there is no default group.
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

/// Communication in flight. Wait before the tensors are read, overwritten or freed. On the CPU transports collectives
/// are complete when the call returns; sends and receives are not. On GPUs the host only submits: a wait holds the
/// stream of its Exec, not the host, and World::check_health() tells what failed meanwhile. Moved, not copied;
/// destroyed without a wait (an error unwinds) it gives the message up, so that no other rank touches memory that is
/// about to go. Must not outlive its Group.
class [[nodiscard]] Pending {
 public:
  /// Of a call that was started while a graph was captured.
  struct Captured {
    std::uint64_t capture = 0;  ///< Capture::number()
    Ticket ticket;              ///< of the latest launch; on a GPU of the capture
  };
  Pending() = default;  ///< nothing in flight: what a group of one rank returns
  /// `tensor` and `other` are the memory in use until the wait.
  Pending(Channel& channel, Ticket ticket, const Tensor& tensor, const Tensor& other)
      : channel_(&channel), ticket_(ticket), tensor_(tensor), other_(other) {}
  Pending(Channel& channel, std::shared_ptr<const Captured> captured, const Tensor& tensor, const Tensor& other)
      : channel_(&channel), captured_(std::move(captured)), tensor_(tensor), other_(other) {}
  Pending(Pending&& from) noexcept { *this = std::move(from); }
  Pending& operator=(Pending&& from) noexcept;
  ~Pending() { drop(); }

  /// Returns when the tensors are the caller's again. A second wait does nothing. Recorded as an op "wait" that touches
  /// the tensors, so that a plan keeps them until here. Throws InternalError when a graph would have one end of the
  /// call only: within a capture for a call that was started before it or in another; outside for a call that was
  /// started within one. The call stays in flight.
  void wait(Exec& ex);

 private:
  void drop() noexcept;
  void expect_same_capture(const Exec& ex) const;

  Channel* channel_ = nullptr;
  Ticket ticket_;
  std::shared_ptr<const Captured> captured_;  // null: started outside of captures
  Tensor tensor_, other_;
};

using Where = std::source_location;

// All collectives: every member calls them in the same order, at the same place in the source and with the same
// arguments; a disagreement throws CollectiveError on the ranks that notice it, a member that never comes HangError
// after the World's timeout, a member that failed AbortedError; tensors that do not fit together throw ShapeError
// before anything is sent. A group of one rank returns its input unchanged, communicates and counts nothing. Sums are
// taken in ascending group rank for every element, so that all CPU transports give the same bits. The collectives of a
// group run one after the other: one may work on what the one before it writes, without a wait in between.
//
// On GPUs calls are not compared: ranks that disagree hang until the timeout or get undefined data. Large sums between
// rank threads are taken as on CPUs (peer/peer_group.h); others in an order of NCCL's own, bf16 ones rounded at every
// step of it, and max and min lose a NaN.

/// In place; f64, f32, bf16 and f16 (summed in f32, rounded once), i64, i32, u64, u8. A NaN in any rank's part gives
/// NaN, also in max and min. Volume per rank: 2 (n-1)/n of the tensor.
Pending all_reduce(Exec& ex, const Group& group, const Tensor& tensor, Reduce reduce,
                   Priority priority = Priority::awaited, Where where = Where::current());
/// in [n*k, ...] -> out [k, ...]: rank r receives the reduction of everybody's r-th part.
Pending reduce_scatter(Exec& ex, const Group& group, const Tensor& in, const Tensor& out, Reduce reduce,
                       Priority priority = Priority::awaited, Where where = Where::current());
/// in [k, ...] -> out [n*k, ...] in group rank order. `in` may be the rank's own part of `out`.
Pending all_gather(Exec& ex, const Group& group, const Tensor& in, const Tensor& out,
                   Priority priority = Priority::awaited, Where where = Where::current());
/// Sends send_counts[r] rows of `in` to rank r, in rank order; receives recv_counts[r] rows from it into `out`. The
/// counts add up to the rows of `in` and `out`; what r sends here must be what is received from it.
Pending all_to_all(Exec& ex, const Group& group, const Tensor& in, std::span<const Index> send_counts,
                   const Tensor& out, std::span<const Index> recv_counts, Where where = Where::current());
Pending broadcast(Exec& ex, const Group& group, const Tensor& tensor, int root, Where where = Where::current());
/// On GPUs the streams meet, not the hosts: what comes later in `ex` starts when all members have come this far.
void barrier(Exec& ex, const Group& group, Where where = Where::current());

/// Posted: never blocks. Messages between two ranks of a group with the same `lane` (from 0 to below kMaxLanes) arrive
/// in order; lanes are independent. A send's wait may return before the message has been received: small ones are
/// buffered. Throws BackendError on GPUs for a peer or a lane that the group's Messages leave out.
Pending send(Exec& ex, const Group& group, const Tensor& tensor, int peer, int lane = 0,
             Where where = Where::current());
Pending recv(Exec& ex, const Group& group, const Tensor& tensor, int peer, int lane = 0,
             Where where = Where::current());

}  // namespace megalith::comm
