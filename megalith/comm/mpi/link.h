#pragma once
#include <string>
#include <string_view>

#include "megalith/base/types.h"
#include "megalith/comm/mpi/header_queue.h"

namespace megalith::comm {

class PositionWriter;

/// Point-to-point bytes between the processes of a job. It is the MPI channels' only access to MPI, so that one file
/// includes mpi.h. All calls are made on the rank's own thread.
class Link {
 public:
  using Handle = int;

  virtual ~Link() = default;
  /// Both are posted and never block. `bytes` is at most kMaxBytes. The memory stays in use until test() has returned
  /// true.
  virtual Handle isend(const void* data, Index bytes, int world_rank, int tag) = 0;
  virtual Handle irecv(void* data, Index bytes, int world_rank, int tag) = 0;
  /// Makes progress. Returns true once the transfer is done; the handle is then free.
  virtual bool test(Handle handle) = 0;
  /// This rank fails. It sends the others the reason, unless `reason` is empty or another rank has sent its own before.
  /// It gives calls in flight a moment to end, at most 0.1 s, and makes no progress from then on. Memory of calls in
  /// flight may be freed while the error unwinds, and MPI would read it, or fault. All further calls but this one throw
  /// AbortedError. headers() is empty then.
  virtual void settle(std::string_view reason) noexcept = 0;
  /// The first of two tags (headers and payloads) of a lane of the `group`-th group that both ranks share.
  virtual int tag(Index group, int lane) const = 0;
  /// The number of the next group that this rank shares with `world_rank`.
  virtual Index next_group(int world_rank) = 0;
  /// "rank 2 failed first: its error" once another rank has reported so, else empty.
  virtual const std::string& failure() = 0;
  /// Whether a rank of this host reports the failure of the job, which is about to end.
  virtual bool is_failure_reported() const = 0;
  virtual double timeout_s() const = 0;
  /// Whether this process and that of the rank have memory in common.
  virtual bool shares_memory_with(int world_rank) const = 0;
  /// This rank's position, as others read it.
  virtual PositionWriter& position() = 0;
  HeaderQueue& headers() { return headers_; }

  static constexpr Index kMaxBytes = Index{1} << 26;

 private:
  HeaderQueue headers_;
};

}  // namespace megalith::comm
