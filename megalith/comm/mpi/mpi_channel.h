#pragma once
#include <memory>
#include <vector>

#include "megalith/comm/channel.h"
#include "megalith/comm/mpi/transfer.h"
#include "megalith/comm/ticket_table.h"

namespace megalith::comm {

/// A process's end of a group. Collectives are direct exchanges, summed in ascending group rank. Memory: 8 KiB per
/// member, and for reductions of more than Transfer::kSmallBytes a staging area of at most kPartBytes for each of the
/// others.
class MpiChannel final : public Channel {
 public:
  static constexpr Index kPartBytes = Index{1} << 20;  // bytes of one member's share that are reduced at a time

  MpiChannel(Link& link, std::string name, std::vector<int> world_ranks, int rank);

  Ticket all_reduce(const Call& call, void* data, Stream stream) override;
  Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) override;
  Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) override;
  Ticket all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) override;
  Ticket broadcast(const Call& call, void* data, Stream stream) override;
  void barrier(const Call& call, Stream stream) override;
  Ticket post_send(const Call& call, const void* data, Stream stream) override;
  Ticket post_recv(const Call& call, void* data, Stream stream) override;
  void wait(Ticket ticket, Stream stream) override;
  void cancel(Ticket ticket) noexcept override;

 private:
  /// The bytes for one member and from it in an exchange. Bytes -1: nothing, not even a header.
  struct Leg {
    const std::byte* out = nullptr;
    std::byte* in = nullptr;
    Index out_bytes = -1, in_bytes = -1;
    Transfer sending, receiving;
  };
  struct Slot {
    Call call;
    Transfer transfer;
  };

  Leg& leg(int member) { return legs_[static_cast<std::size_t>(member)]; }
  void clear_legs();
  Header header_of(const Call& call, int part) const;
  void exchange(const Call& call, int part);
  bool advance_legs();
  /// Reduces this rank's input, and those of the others in the staging area, to `out`.
  void reduce_staged(const Call& call, const std::byte* own, std::byte* out, Index count);
  std::byte* staging(int member, Index bytes);
  template <class Done, class Awaited>
  void wait_for(const Call& call, Done&& done, Awaited&& awaited);
  Transfer::Lane lane_to(int peer, int lane, const Call& call) const;

  Link& link_;
  std::vector<Index> group_numbers_;  // per member: this group's number among those shared with it
  std::vector<Leg> legs_;
  std::vector<std::byte> staging_;
  std::vector<const std::byte*> inputs_;
  TicketTable<Slot> in_flight_;
};

}  // namespace megalith::comm
