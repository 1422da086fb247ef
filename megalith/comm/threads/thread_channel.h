#pragma once
#include <memory>
#include <vector>

#include "megalith/comm/threads/room.h"
#include "megalith/comm/ticket_table.h"

namespace megalith::comm {

/// A rank thread's end of a group. Collectives copy nothing: each member reads and writes the others' memory while all
/// are inside the call. Memory: 2 KiB of staging per member in the Room.
class ThreadChannel final : public Channel {
 public:
  ThreadChannel(Hub& hub, std::string name, std::vector<int> world_ranks, int rank);
  ~ThreadChannel() override;

  bool reads_rows() const override { return true; }
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
  void cancel(Ticket ticket) noexcept override;
  /// After this no message in flight is copied any more, so their memory may be freed.
  void take_back_all() noexcept;

 private:
  /// A message of this rank, and the mailbox in which it waits for its other end.
  struct Slot {
    Message message;
    Mailbox* mailbox = nullptr;
  };
  /// How the members see each other's input in the present collective.
  enum class Memory { staged, direct };

  template <class Work>
  void collective(const Posting& mine, Index in_bytes, Work&& work);
  void compare_calls(int parity, const Call& mine);
  void compare_counts(int parity, const Call& mine);
  std::span<const std::byte* const> inputs(int parity);
  std::span<std::byte* const> outputs(int parity);
  template <class Args>
  Ticket read_rows(const Call& call, const Args& args);

  Ticket post(const Call& call, std::byte* data);
  Mailbox& mailbox(const Call& call);
  void take_back(Slot& slot) noexcept;

  Hub& hub_;
  std::shared_ptr<Room> room_;
  std::uint64_t round_ = 0;   // number of this member's barriers
  std::uint64_t number_ = 0;  // number of this member's collectives
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<const std::byte*> rows_;  // as long as the longest list may be
  struct Route {
    Op op;
    int peer, lane;
    Mailbox* mailbox;
  };
  std::vector<Route> routes_;
  TicketTable<Slot> in_flight_;
};

}  // namespace megalith::comm
