#include "megalith/comm/mpi/transfer.h"

#include <algorithm>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::comm {
namespace {

/// The other side's call, as far as its header describes it.
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

void Transfer::start_pieces(Link& link) {
  const int to = lane_.channel->world_rank(lane_.peer), tag = lane_.tag + 1;
  for (Index at = 0; at < bytes_; at += Link::kMaxBytes) {
    const Index piece = std::min(Link::kMaxBytes, bytes_ - at);
    pieces_.push_back(receiving_ ? link.irecv(data_ + at, piece, to, tag) : link.isend(data_ + at, piece, to, tag));
  }
}

void Transfer::start_send(Link& link, const Header& header, const void* data, Index bytes, const Lane& lane) {
  constexpr Index kHeader = sizeof(Header);
  buffer_.resize(static_cast<std::size_t>(kHeader + kSmallBytes));
  active_ = opened_ = true;
  receiving_ = header_came_ = false;
  header_ = header;
  lane_ = lane;
  // MPI only reads from a send's memory; its pieces share one function with those of a receive.
  data_ = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  bytes_ = bytes;
  pieces_.clear();
  const bool small = bytes <= kSmallBytes;
  std::memcpy(buffer_.data(), &header, sizeof(header));
  if (small && bytes > 0) std::memcpy(buffer_.data() + kHeader, data, static_cast<std::size_t>(bytes));
  first_ = link.isend(buffer_.data(), small ? kHeader + bytes : kHeader, lane.channel->world_rank(lane.peer), lane.tag);
  if (!small) start_pieces(link);
}

void Transfer::start_recv(Link& link, const Header& expected, void* data, Index bytes, const Lane& lane) {
  buffer_.resize(sizeof(Header) + static_cast<std::size_t>(kSmallBytes));
  active_ = receiving_ = true;
  header_came_ = opened_ = false;
  header_ = expected;
  lane_ = lane;
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  pieces_.clear();
  first_ =
      link.irecv(buffer_.data(), static_cast<Index>(buffer_.size()), lane.channel->world_rank(lane.peer), lane.tag);
  link.headers().add(*this);
}

bool Transfer::header_came(Link& link) {
  if (!header_came_) header_came_ = link.test(first_);
  return header_came_;
}

bool Transfer::shares_lane_with(const Transfer& other) const {
  return lane_.tag == other.lane_.tag &&
         lane_.channel->world_rank(lane_.peer) == other.lane_.channel->world_rank(other.lane_.peer);
}

void Transfer::open(Link& link) {
  const Channel& channel = *lane_.channel;
  Header there;
  std::memcpy(&there, buffer_.data(), sizeof(there));
  if (there != header_) {
    channel.throw_mismatch(*lane_.call, channel.world_rank(), theirs(there, header_, channel),
                           channel.world_rank(lane_.peer));
  }
  opened_ = true;
  if (bytes_ > kSmallBytes) return start_pieces(link);
  if (bytes_ > 0) std::memcpy(data_, buffer_.data() + sizeof(Header), static_cast<std::size_t>(bytes_));
}

bool Transfer::advance(Link& link) {
  if (!active_) return true;
  if (!opened_ || !header_came(link)) return false;
  while (!pieces_.empty() && link.test(pieces_.back())) pieces_.pop_back();
  active_ = !pieces_.empty();
  return !active_;
}

void HeaderQueue::advance(Link& link) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    Transfer* const receive = waiting_[i];
    const auto is_before = [&](const Transfer* other) { return receive->shares_lane_with(*other); };
    const bool its_turn = receive->header_came(link) &&
                          std::none_of(waiting_.begin(), waiting_.begin() + static_cast<Index>(kept), is_before);
    if (its_turn) {
      receive->open(link);
    } else {
      waiting_[kept++] = receive;
    }
  }
  waiting_.resize(kept);
}

}  // namespace megalith::comm
