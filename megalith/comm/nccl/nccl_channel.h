#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/comm/nccl/comm_stream.h"
#include "megalith/comm/nccl/nccl_rows.h"
#include "megalith/comm/peer/peer_group.h"
#include "megalith/comm/world.h"
#include "megalith/tensor/memory.h"

namespace megalith::comm {

class Watchdog;

/// A rank's end of a group of GPUs. NCCL carries the calls. A PeerGroup carries large messages, sums and gathers if the
/// GPUs can access each other's memory, and row collectives if it reaches the tensors of all members.
///  - A call only submits to the stream of the group, or for a message to the stream of its peer, direction and lane.
///    wait() makes the caller's stream wait. In a graph it first submits a large receive (Deferred).
///  - Calls may be captured into a CUDA graph after they have been made outside of one, because NCCL connects GPUs at
///    the first call of a kind. Each must be waited for within the same capture. The watchdog observes them only as a
///    whole, by the host's wait (HostWait). The graph must be destroyed before the World. Captures are collective over
///    the hosts (PeerGroup). No rank may launch before all have made their graphs. The tensors must live on every
///    member until the last launch on any has ended.
///  - Row collectives by NCCL (NcclRows): the host waits for lists and counts, so a capture is refused (BackendError).
///  - Calls throw what Watchdog::check_health() throws, and BackendError with NCCL's text.
/// Memory: NCCL's buffers, 1,024 events per stream, the mailboxes of PeerGroup, and what NcclRows takes.
class NcclChannel final : public Channel {
 public:
  static constexpr int kMessageLanes = 2;

  /// `host` has the same members, between host memories. Makes streams and events; communicates only from connect() on.
  NcclChannel(Watchdog& watchdog, const Group& host, std::string name, const GroupUse& use);
  /// Makes the communicators and connects the GPUs. Returns when all members have.
  void connect();

  Device device() const override { return Device::cuda; }
  int multiprocessors() const override;
  bool sums_in_rank_order() const override { return false; }
  bool reads_rows() const override { return reaches_tensors(); }
  Stream stream_of(Ticket ticket) const override;
  std::string_view transport_of(const Call& call, Stream stream) const override;
  Ticket all_reduce(const Call& call, void* data, Stream stream) override;
  Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) override;
  Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) override;
  Ticket all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) override;
  Ticket broadcast(const Call& call, void* data, Stream stream) override;
  void barrier(const Call& call, Stream stream) override;
  Ticket gather_rows(const Call& call, const GatherRows& args, Stream stream) override;
  Ticket gather_sum_rows(const Call& call, const GatherSumRows& args, Stream stream) override;
  Ticket post_send(const Call& call, const void* data, Stream stream) override;
  Ticket post_recv(const Call& call, void* data, Stream stream) override;
  void wait(Ticket ticket, Stream stream) override;
  void meet_hosts() override;
  void host_wait(const Event& point) override;
  void cancel(Ticket ticket) noexcept override;

  // For the watchdog's thread.
  const std::deque<CommStream>& comm_streams() const { return comm_streams_; }
  /// Throws HangError if a call has not ended within `timeout_s`, BackendError if a communicator reports an error.
  void look(double timeout_s);
  /// Ends waits for members that are not NCCL's (PeerGroup::release).
  void release() noexcept;
  /// Whether the kernels of other members may access this member's tensors.
  bool reaches_tensors() const { return connected_ && peers_ != nullptr && peers_->reaches_tensors(); }

 private:
  struct Ids;
  std::vector<Ids> exchange_ids() const;
  ncclResult_t make_communicator(CommStream& comm_stream, std::vector<Ids>& ids) const;
  ncclResult_t move_byte(const CommStream& comm_stream, std::byte* byte) const;
  void expect_success(const Call& call, ncclResult_t status) const;
  template <class Submit>
  Ticket run(std::size_t index, const Call& call, Stream caller, Submit&& submit);
  template <class Args>
  Ticket read_rows(const Call& call, const Args& args, Stream stream);
  bool takes_peers(const Call& call) const;
  bool is_deferred(std::size_t index, const Call& call, Stream stream);
  void receive_oldest(std::size_t index, Stream stream);
  /// The index of a message's stream. Throws BackendError if there is none.
  std::size_t stream_index(const Call& call) const;

  /// A receive by PeerGroup that is captured when it is awaited, not when it is posted. In a graph a CTA waits for the
  /// message, and a GEMM whose CTAs need a whole SM cannot use that SM. PP 2 of 1.2B, microbatch 2 on H200s, a step
  /// from a graph: 290 ms instead of 314.
  struct Deferred {
    std::uint64_t number = 0;  ///< number in its stream
    Call call;
    void* data = nullptr;
  };

  Watchdog& watchdog_;
  Group host_;
  GroupUse use_;
  std::deque<CommStream> comm_streams_;  // the first is the group's
  std::unique_ptr<PeerGroup> peers_;
  std::unique_ptr<NcclRows> rows_;
  std::vector<std::deque<Deferred>> deferred_;  // per stream, oldest first
  std::atomic<bool> connected_{false};
  Buffer scratch_;  // a byte for each stream's first call; barriers use the first
};

}  // namespace megalith::comm
