#pragma once
#include <vector>

#include "megalith/comm/channel.h"
#include "megalith/comm/mpi/link.h"

namespace megalith::comm {

/// Precedes every payload, and is compared with the receiver's own call before the payload is received.
struct Header {
  std::uint64_t key = 0;    // Channel::key()
  std::uint64_t count = 0;  // elements of the call; all_to_all: bytes for this pair
  std::uint32_t sequence = 0;
  std::uint32_t site = 0;  // send, recv: 0, because their call sites differ
  std::int32_t root = 0;   // send, recv: the lane
  Op op = Op::barrier;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  std::uint8_t part = 0;  // a long collective exchanges in several parts
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 32);

/// One message in flight. A small payload follows the header in one piece. It is copied into the transfer, so a send is
/// done without the other side. A large payload follows the header in pieces, straight from or to the tensor. Its
/// receive is posted when the header has arrived and agreed. Equal headers mean equal sizes, and a payload of another
/// size could be written past the tensor's end.
class Transfer {
 public:
  static constexpr Index kSmallBytes = 4096 - 32;  // with the header within the eager limit of MPI's shared memory

  /// The call of a message, which outlives it, the other end, and the first of the lane's two tags.
  struct Lane {
    const Channel* channel = nullptr;
    const Call* call = nullptr;
    int peer = 0;
    int tag = 0;
  };

  void start_send(Link& link, const Header& header, const void* data, Index bytes, const Lane& lane);
  void start_recv(Link& link, const Header& expected, void* data, Index bytes, const Lane& lane);
  /// Makes progress. Returns true when the message is complete. A receive's header is for HeaderQueue::advance().
  bool advance(Link& link);
  bool active() const { return active_; }

 private:
  friend class HeaderQueue;
  bool header_came(Link& link);
  bool shares_lane_with(const Transfer& other) const;
  /// Compares the header that has arrived, and takes or posts the payload. Throws CollectiveError.
  void open(Link& link);
  void start_pieces(Link& link);

  bool active_ = false, receiving_ = false;
  bool header_came_ = false, opened_ = false;
  Header header_;  // sent, or expected
  Lane lane_;
  std::byte* data_ = nullptr;
  Index bytes_ = 0;
  Link::Handle first_ = -1;
  std::vector<Link::Handle> pieces_;  // still in flight
  std::vector<std::byte> buffer_;     // header and small payload; made at the first use
};

}  // namespace megalith::comm
