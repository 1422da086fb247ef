#pragma once
#include <memory>
#include <vector>

#include "megalith/comm/channel.h"
#include "megalith/comm/mpi/link.h"
#include "megalith/comm/ticket_table.h"

namespace megalith::comm {

/// What precedes every payload, and is compared with the receiver's own call before the payload is used.
struct Header {
  std::uint64_t key = 0;    // Channel::key()
  std::uint64_t count = 0;  // elements of the call; all_to_all: bytes for this pair
  std::uint32_t sequence = 0;
  std::uint32_t site = 0;  // send, recv: 0, they stand at different places
  std::int32_t root = 0;   // send, recv: the lane
  Op op = Op::barrier;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  std::uint8_t part = 0;  // a long collective exchanges in several parts
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 32);

/// One message on its way: a header with the payload behind it when that is small (it is then copied into the transfer,
/// and a send is done without the other side), else the header and the payload in pieces, straight from or to the
/// tensor.
class Transfer {
 public:
  static constexpr Index kSmallBytes = 4096 - 32;  // with the header within the eager limit of MPI's shared memory

  void start_send(Link& link, const Header& header, const void* data, Index bytes, int world_rank, int tag);
  void start_recv(Link& link, const Header& expected, void* data, Index bytes, int world_rank, int tag);
  /// Makes progress; true when the message is complete. Throws CollectiveError when the header is not the expected one.
  bool advance(Link& link, const Channel& channel, const Call& call, int peer);
  bool active() const { return active_; }

 private:
  void start_pieces(Link& link, std::byte* data, Index bytes, int world_rank, int tag);

  bool active_ = false, receiving_ = false, header_done_ = false;
  Header header_;  // sent, or expected
  std::byte* data_ = nullptr;
  Index bytes_ = 0;
  Link::Handle first_ = -1;
  std::vector<Link::Handle> pieces_;  // still on their way
  std::vector<std::byte> buffer_;     // header and small payload; made at the first use
};

/// A process's end of a group. Collectives are direct exchanges, summed in ascending group rank. Memory: 8 KiB per
/// member, and for reductions of more than Transfer::kSmallBytes a staging area of at most kPartBytes for each of the
/// others.
class MpiChannel final : public Channel {
 public:
  static constexpr Index kPartBytes = Index{1} << 20;  // of one member's share, reduced at a time

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
  /// What one member is sent and what is received from it in an exchange. Bytes -1: nothing, not even a header.
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
  bool advance_legs(const Call& call);
  /// This rank's input among those of the others, which lie in the staging area, reduced to `out`.
  void reduce_staged(const Call& call, const std::byte* own, std::byte* out, Index count);
  std::byte* staging(int member, Index bytes);
  template <class Done, class Awaited>
  void wait_for(const Call& call, Done&& done, Awaited&& awaited);
  int tag_of(int peer, int lane) const;

  Link& link_;
  std::vector<Index> group_numbers_;  // per member: of this group among those shared with it
  std::vector<Leg> legs_;
  std::vector<std::byte> staging_;
  std::vector<const std::byte*> inputs_;
  TicketTable<Slot> in_flight_;
};

}  // namespace megalith::comm
