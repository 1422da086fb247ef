#include "megalith/comm/mpi/mpi_channel.h"

#include <cstring>
#include <exception>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/mpi/backoff.h"
#include "megalith/comm/patience.h"
#include "megalith/comm/positions.h"
#include "megalith/comm/reduce.h"

namespace megalith::comm {
namespace {

constexpr int kCollectiveLane = kMaxLanes;  // one lane number above those of messages

void copy_bytes(void* to, const void* from, Index bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

MpiChannel::MpiChannel(Link& link, std::string name, std::vector<int> world_ranks, int rank)
    : Channel(std::move(name), std::move(world_ranks), rank),
      link_(link),
      group_numbers_(static_cast<std::size_t>(size())),
      legs_(static_cast<std::size_t>(size())),
      inputs_(static_cast<std::size_t>(size())) {
  for (int i = 0; i < size(); ++i) {
    if (i != rank) group_numbers_[static_cast<std::size_t>(i)] = link.next_group(world_rank(i));
  }
}

Transfer::Lane MpiChannel::lane_to(int peer, int lane, const Call& call) const {
  return {this, &call, peer, link_.tag(group_numbers_[static_cast<std::size_t>(peer)], lane)};
}

Header MpiChannel::header_of(const Call& call, int part) const {
  Header header;
  header.key = key();
  header.count = static_cast<std::uint64_t>(call.count);
  header.sequence = static_cast<std::uint32_t>(call.sequence);
  header.op = call.op;
  header.dtype = call.dtype;
  header.reduce = call.reduce;
  header.part = static_cast<std::uint8_t>(part);
  const bool message = is_message(call.op);
  header.site = message ? 0 : call.site;
  header.root = message ? call.lane : call.root;
  if (call.op == Op::recv) header.op = Op::send;
  return header;
}

/// Blocks until done(), the failure of any rank, or the timeout. awaited() lists the missing ranks.
template <class Done, class Awaited>
void MpiChannel::wait_for(const Call& call, Done&& done, Awaited&& awaited) {
  constexpr int kLookEvery = 16;
  constexpr double kLong_s = 0.1;  // from then on others can read for whom this rank waits
  PositionWriter& position = link_.position();
  Backoff backoff;
  Patience patience(link_.timeout_s());
  bool is_long = false;
  const auto await = [&] {
    const RankList ranks = awaited();
    position.wait_in(name(), call, monotonic_s());
    position.await(ranks.ranks(), ranks.count());
    is_long = true;
    return ranks.text();
  };
  try {
    const auto is_done = [&] {
      link_.headers().advance(link_);
      return done();
    };
    int awaited_at = 0;  // in units of kLong_s
    for (int round = 1; !is_done(); ++round) {
      backoff.pause();
      if (round % kLookEvery != 0) continue;
      const double now = monotonic_s();
      const bool is_over = patience.is_over(now);
      position.alive(now);
      if (!link_.failure().empty()) throw AbortedError(where(call.op) + link_.failure());
      if (is_over) throw_hang(call, patience.waited_s(now), await());
      if (const int at = static_cast<int>(patience.waited_s(now) / kLong_s); at > awaited_at) {
        awaited_at = at;
        await();
      }
    }
    // A process that was stopped, and is woken to be ended, finds its data and would go on as if nothing had happened.
    if (link_.is_failure_reported()) throw AbortedError(where(call.op) + "another rank has reported a failure");
    if (is_long) position.resume(monotonic_s());
  } catch (const AbortedError&) {
    link_.settle("");
    throw;
  } catch (const std::exception& error) {
    link_.settle(error.what());
    throw;
  }
}

void MpiChannel::clear_legs() {
  for (Leg& each : legs_) each.out_bytes = each.in_bytes = -1;
}

bool MpiChannel::advance_legs() {
  bool done = true;
  for (Leg& each : legs_) {
    if (!each.receiving.advance(link_)) done = false;
    if (!each.sending.advance(link_)) done = false;
  }
  return done;
}

/// Carries out all legs. Returns when this rank's memory is no longer in use.
void MpiChannel::exchange(const Call& call, int part) {
  Header header = header_of(call, part);
  // Whether each pair of members exchanges another number of bytes, which both know.
  const bool by_pair = call.op == Op::all_to_all || (is_of_rows(call.op) && part != kRequests);
  for (int distance = 1; distance < size(); ++distance) {
    const int from = (rank() - distance + size()) % size();
    Leg& other = leg(from);
    if (other.in_bytes < 0) continue;
    if (by_pair) header.count = static_cast<std::uint64_t>(other.in_bytes);
    other.receiving.start_recv(link_, header, other.in, other.in_bytes, lane_to(from, kCollectiveLane, call));
  }
  for (int distance = 1; distance < size(); ++distance) {
    const int to = (rank() + distance) % size();
    Leg& other = leg(to);
    if (other.out_bytes < 0) continue;
    if (by_pair) header.count = static_cast<std::uint64_t>(other.out_bytes);
    other.sending.start_send(link_, header, other.out, other.out_bytes, lane_to(to, kCollectiveLane, call));
  }
  const auto awaited = [&] {
    RankList ranks;
    for (int i = 0; i < size(); ++i) {
      if (leg(i).receiving.active() || leg(i).sending.active()) ranks.add(world_rank(i));
    }
    return ranks;
  };
  wait_for(
      call, [&] { return advance_legs(); }, awaited);
}

std::byte* MpiChannel::staging(int member, Index bytes) {
  const auto wanted = static_cast<std::size_t>(bytes * size());
  if (staging_.size() < wanted) staging_.resize(wanted);
  return staging_.data() + bytes * member;
}

void MpiChannel::reduce_staged(const Call& call, const std::byte* own, std::byte* out, Index count) {
  for (int i = 0; i < size(); ++i) inputs_[static_cast<std::size_t>(i)] = i == rank() ? own : leg(i).in;
  reduce_into(call.dtype, call.reduce, inputs_, std::span(&out, 1), 0, count);
}

Ticket MpiChannel::all_reduce(const Call& call, void* data, Stream) {
  auto* const own = static_cast<std::byte*>(data);
  const Index item = size_of(call.dtype);
  clear_legs();
  if (call.count * item <= Transfer::kSmallBytes) {  // one exchange of everything
    staging(0, call.count * item);
    for (int i = 0; i < size(); ++i) {
      if (i == rank()) continue;
      leg(i).out = own;
      leg(i).in = staging(i, call.count * item);
      leg(i).out_bytes = leg(i).in_bytes = call.count * item;
    }
    exchange(call, 0);
    reduce_staged(call, own, own, call.count);
    return {};
  }
  // Every member reduces its share and sends it to the others, kPartBytes at a time so that staging stays small.
  const Index part_length = kPartBytes / item;
  const Index parts = ceil_div(share_begin(call.count, size(), 1), part_length);
  staging(0, kPartBytes);
  for (Index part = 0; part < parts; ++part) {
    const auto begin = [&](int member) {
      const Index end = share_begin(call.count, size(), member + 1);
      return std::min(end, share_begin(call.count, size(), member) + part * part_length);
    };
    const auto length = [&](int member) {
      return std::min(part_length, share_begin(call.count, size(), member + 1) - begin(member));
    };
    std::byte* const mine = own + begin(rank()) * item;
    for (int i = 0; i < size(); ++i) {
      if (i == rank()) continue;
      leg(i).out = own + begin(i) * item;
      leg(i).out_bytes = length(i) * item;
      leg(i).in = staging(i, kPartBytes);
      leg(i).in_bytes = length(rank()) * item;
    }
    exchange(call, static_cast<int>(2 * part));
    reduce_staged(call, mine, mine, length(rank()));
    for (int i = 0; i < size(); ++i) {
      if (i == rank()) continue;
      leg(i).out = mine;
      leg(i).out_bytes = length(rank()) * item;
      leg(i).in = own + begin(i) * item;
      leg(i).in_bytes = length(i) * item;
    }
    exchange(call, static_cast<int>(2 * part + 1));
  }
  return {};
}

Ticket MpiChannel::reduce_scatter(const Call& call, const void* in, void* out, Stream) {
  const auto* const own = static_cast<const std::byte*>(in);
  const Index item = size_of(call.dtype);
  const Index share = call.count / size();
  const Index part_length = kPartBytes / item;
  const Index parts = std::max<Index>(1, ceil_div(share, part_length));
  const Index stride = std::min(part_length, share) * item;
  staging(0, stride);
  clear_legs();
  for (Index part = 0; part < parts; ++part) {
    const Index begin = part * part_length;
    const Index length = std::min(part_length, share - begin);
    for (int i = 0; i < size(); ++i) {
      if (i == rank()) continue;
      leg(i).out = own + (share * i + begin) * item;
      leg(i).in = staging(i, stride);
      leg(i).out_bytes = leg(i).in_bytes = length * item;
    }
    exchange(call, static_cast<int>(part));
    reduce_staged(call, own + (share * rank() + begin) * item, static_cast<std::byte*>(out) + begin * item, length);
  }
  return {};
}

Ticket MpiChannel::all_gather(const Call& call, const void* in, void* out, Stream) {
  const Index bytes = call.count * size_of(call.dtype);
  auto* const parts = static_cast<std::byte*>(out);
  clear_legs();
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    leg(i).out = static_cast<const std::byte*>(in);
    leg(i).in = parts + bytes * i;
    leg(i).out_bytes = leg(i).in_bytes = bytes;
  }
  copy_bytes(parts + bytes * rank(), in, bytes);
  exchange(call, 0);
  return {};
}

Ticket MpiChannel::all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream) {
  const auto* from = static_cast<const std::byte*>(in.data);
  auto* to = static_cast<std::byte*>(out.data);
  clear_legs();
  for (int i = 0; i < size(); ++i) {
    const auto member = static_cast<std::size_t>(i);
    if (i == rank()) {
      copy_bytes(to, from, in.bytes[member]);
    } else {
      leg(i).out = from;
      leg(i).in = to;
      leg(i).out_bytes = in.bytes[member];
      leg(i).in_bytes = out.bytes[member];
    }
    from += in.bytes[member];
    to += out.bytes[member];
  }
  exchange(call, 0);
  return {};
}

Ticket MpiChannel::broadcast(const Call& call, void* data, Stream) {
  const Index bytes = call.count * size_of(call.dtype);
  clear_legs();
  if (rank() != call.root) {
    leg(call.root).in = static_cast<std::byte*>(data);
    leg(call.root).in_bytes = bytes;
  } else {
    for (int i = 0; i < size(); ++i) {
      if (i == rank()) continue;
      leg(i).out = static_cast<const std::byte*>(data);
      leg(i).out_bytes = bytes;
    }
  }
  exchange(call, 0);
  return {};
}

void MpiChannel::barrier(const Call& call, Stream) { meet(call, 0); }

Ticket MpiChannel::post_send(const Call& call, const void* data, Stream) {
  const auto [slot, ticket] = in_flight_.take(*this, call);
  slot.call = call;
  slot.transfer.start_send(link_, header_of(call, 0), data, call.count * size_of(call.dtype),
                           lane_to(call.root, call.lane, slot.call));
  return ticket;
}

Ticket MpiChannel::post_recv(const Call& call, void* data, Stream) {
  const auto [slot, ticket] = in_flight_.take(*this, call);
  slot.call = call;
  slot.transfer.start_recv(link_, header_of(call, 0), data, call.count * size_of(call.dtype),
                           lane_to(call.root, call.lane, slot.call));
  return ticket;
}

void MpiChannel::wait(Ticket ticket, Stream) {
  Slot& slot = in_flight_.at(*this, ticket);
  const int peer = slot.call.root;
  const auto awaited = [&] {
    RankList ranks;
    ranks.add(world_rank(peer));
    return ranks;
  };
  wait_for(
      slot.call, [&] { return slot.transfer.advance(link_); }, awaited);
  in_flight_.give_back(ticket);
}

/// Posted messages cannot be cancelled and their memory is about to be freed, so this rank communicates no more. An
/// error that unwinds is reported by its owner. Without one the next call reports that this rank has failed.
void MpiChannel::cancel(Ticket ticket) noexcept {
  if (in_flight_.find(ticket) == nullptr) return;
  in_flight_.retire(ticket);
  link_.settle("it gave up a message that was under way");
}

}  // namespace megalith::comm
