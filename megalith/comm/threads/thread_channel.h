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

  void all_reduce(const Call& call, void* data) override;
  void reduce_scatter(const Call& call, const void* in, void* out) override;
  void all_gather(const Call& call, const void* in, void* out) override;
  void all_to_all(const Call& call, const void* in, std::span<const Index> send_bytes, void* out,
                  std::span<const Index> recv_bytes) override;
  void broadcast(const Call& call, void* data) override;
  void barrier(const Call& call) override;
  Ticket post_send(const Call& call, const void* data) override;
  Ticket post_recv(const Call& call, void* data) override;
  void wait(Ticket ticket) override;
  void cancel(Ticket ticket) noexcept override;

 private:
  /// A message of this rank, and where it waits for its other end.
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

  Ticket post(const Call& call, std::byte* data);
  Mailbox& mailbox(const Call& call);
  void take_back(Slot& slot) noexcept;

  Hub& hub_;
  std::shared_ptr<Room> room_;
  std::uint64_t round_ = 0;   // meetings of this member
  std::uint64_t number_ = 0;  // collectives of this member
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  struct Route {
    Op op;
    int peer, lane;
    Mailbox* mailbox;
  };
  std::vector<Route> routes_;
  TicketTable<Slot> in_flight_;
};

}  // namespace megalith::comm
