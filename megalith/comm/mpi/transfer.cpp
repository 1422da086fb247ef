#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/mpi/mpi_channel.h"

namespace megalith::comm {
namespace {

/// The other side's call, as far as its header tells.
std::string theirs(const Header& there, const Header& expected, const Channel& channel) {
  Call call;
  call.op = there.op;
  call.dtype = there.dtype;
  call.reduce = there.reduce;
  call.root = there.op == Op::send ? channel.rank() : there.root;
  call.lane = there.op == Op::send ? there.root : 0;
  call.count = static_cast<Index>(there.count);
  call.sequence = there.sequence;
  std::string text = describe_there(call);
  if (there.key != expected.key) {
    text += " in another group";
  } else if (there.op == Op::all_to_all && expected.op == Op::all_to_all && there.count != expected.count) {
    text += str(" with ", there.count, " bytes where ", expected.count, " are expected");
  } else if (there.site != expected.site) {
    text += " at another place in the source";
  }
  return text;
}

}  // namespace

void Transfer::start_pieces(Link& link, std::byte* data, Index bytes, int world_rank, int tag) {
  for (Index at = 0; at < bytes; at += Link::kMaxBytes) {
    const Index piece = std::min(Link::kMaxBytes, bytes - at);
    pieces_.push_back(receiving_ ? link.irecv(data + at, piece, world_rank, tag)
                                 : link.isend(data + at, piece, world_rank, tag));
  }
}

void Transfer::start_send(Link& link, const Header& header, const void* data, Index bytes, int world_rank, int tag) {
  constexpr Index kHeader = sizeof(Header);
  buffer_.resize(static_cast<std::size_t>(kHeader + kSmallBytes));
  active_ = true;
  receiving_ = header_done_ = false;
  header_ = header;
  bytes_ = bytes;
  pieces_.clear();
  const bool small = bytes <= kSmallBytes;
  std::memcpy(buffer_.data(), &header, sizeof(header));
  if (small && bytes > 0) std::memcpy(buffer_.data() + kHeader, data, static_cast<std::size_t>(bytes));
  first_ = link.isend(buffer_.data(), small ? kHeader + bytes : kHeader, world_rank, tag);
  // MPI only reads from a send's memory; its pieces share one function with those of a receive.
  if (!small)
    start_pieces(link, const_cast<std::byte*>(static_cast<const std::byte*>(data)), bytes, world_rank, tag + 1);
}

void Transfer::start_recv(Link& link, const Header& expected, void* data, Index bytes, int world_rank, int tag) {
  buffer_.resize(sizeof(Header) + static_cast<std::size_t>(kSmallBytes));
  active_ = receiving_ = true;
  header_done_ = false;
  header_ = expected;
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  pieces_.clear();
  first_ = link.irecv(buffer_.data(), static_cast<Index>(buffer_.size()), world_rank, tag);
  if (bytes > kSmallBytes) start_pieces(link, data_, bytes, world_rank, tag + 1);
}

bool Transfer::advance(Link& link, const Channel& channel, const Call& call, int peer) {
  if (!active_) return true;
  if (!header_done_) {
    if (!link.test(first_)) return false;
    header_done_ = true;
    Header there;
    std::memcpy(&there, buffer_.data(), sizeof(there));
    if (receiving_ && there != header_) {
      channel.throw_mismatch(call, channel.world_rank(), theirs(there, header_, channel), channel.world_rank(peer));
    }
  }
  while (!pieces_.empty() && link.test(pieces_.back())) pieces_.pop_back();
  if (!pieces_.empty()) return false;
  if (receiving_ && bytes_ <= kSmallBytes && bytes_ > 0) {
    std::memcpy(data_, buffer_.data() + sizeof(Header), static_cast<std::size_t>(bytes_));
  }
  active_ = false;
  return true;
}

}  // namespace megalith::comm
