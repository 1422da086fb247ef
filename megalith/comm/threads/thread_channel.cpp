#include "megalith/comm/threads/thread_channel.h"

#include <algorithm>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/reduce.h"

namespace megalith::comm {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, Index bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }
const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }

}  // namespace

ThreadChannel::ThreadChannel(Hub& hub, std::string name, std::vector<int> world_ranks, int rank)
    : Channel(std::move(name), std::move(world_ranks), rank),
      hub_(hub),
      room_(hub.room(*this)),
      inputs_(static_cast<std::size_t>(size())),
      outputs_(static_cast<std::size_t>(size())) {}

ThreadChannel::~ThreadChannel() { take_back_all(); }

void ThreadChannel::take_back_all() noexcept {
  in_flight_.for_each([this](Slot& slot) { take_back(slot); });
}

std::span<const std::byte* const> ThreadChannel::inputs(int parity) {
  for (int i = 0; i < size(); ++i) inputs_[static_cast<std::size_t>(i)] = room_->posting(parity, i).in;
  return inputs_;
}

std::span<std::byte* const> ThreadChannel::outputs(int parity) {
  for (int i = 0; i < size(); ++i) outputs_[static_cast<std::size_t>(i)] = room_->posting(parity, i).out;
  return outputs_;
}

/// All members read the same postings. So all reach the same verdict, and none waits for one that has thrown.
void ThreadChannel::compare_calls(int parity, const Call& mine) {
  const Call& first = room_->posting(parity, 0).call;
  for (int i = 1; i < size(); ++i) {
    const Call& other = room_->posting(parity, i).call;
    if (agree(first, other)) continue;
    // The culprit is a member that differs from all others, not the first of them.
    const bool first_is_odd = size() > 2 && i == 1 && agree(other, room_->posting(parity, 2).call);
    const int odd = first_is_odd ? 0 : i;
    const int usual = first_is_odd ? 1 : 0;
    throw_mismatch(room_->posting(parity, odd).call, world_rank(odd), describe(room_->posting(parity, usual).call),
                   world_rank(usual));
  }
  if (mine.op == Op::all_to_all) compare_counts(parity, mine);
}

/// The counts lie in the members' own memory. A disagreement, which all see, is thrown when all have read them.
void ThreadChannel::compare_counts(int parity, const Call& mine) {
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      const Index sent = room_->posting(parity, from).send_bytes[to];
      const Index expected = room_->posting(parity, to).recv_bytes[from];
      if (sent == expected) continue;
      room_->second_barrier(*this, round_);
      throw CollectiveError(str(where(mine.op), "rank ", world_rank(from), " sends ", sent, " bytes to rank ",
                                world_rank(to), ", which expects ", expected, " bytes, in ", describe(mine),
                                ": both must give one count"));
    }
  }
}

/// Waits for the others, compares the calls, works, and leaves. It leaves at once when the inputs were staged and only
/// own memory was written, else together with the others. `work` gets the parity of the postings and must not throw.
template <class Work>
void ThreadChannel::collective(const Posting& mine, Index in_bytes, Work&& work) {
  const Call& call = mine.call;
  const int parity = static_cast<int>(number_++ % 2);
  const bool stages = in_bytes <= Room::kStagedBytes && call.op != Op::all_to_all && !is_of_rows(call.op);
  const Memory memory = stages ? Memory::staged : Memory::direct;
  Posting& posting = room_->posting(parity, rank());
  posting = mine;
  if (memory == Memory::staged) {
    std::byte* staging = room_->staging(parity, rank());
    copy_bytes(staging, mine.in, in_bytes);
    posting.in = staging;
  }
  room_->first_barrier(*this, call, round_);
  compare_calls(parity, call);
  work(parity, memory);
  if (memory == Memory::direct) room_->second_barrier(*this, round_);
}

Ticket ThreadChannel::all_reduce(const Call& call, void* data, Stream) {
  std::byte* own = bytes_of(data);
  const Index bytes = call.count * size_of(call.dtype);
  collective({.call = call, .in = own, .out = own}, bytes, [&](int parity, Memory memory) {
    if (memory == Memory::staged) {
      reduce_into(call.dtype, call.reduce, inputs(parity), std::span(&own, 1), 0, call.count);
    } else {
      reduce_into(call.dtype, call.reduce, inputs(parity), outputs(parity), share_begin(call.count, size(), rank()),
                  share_begin(call.count, size(), rank() + 1));
    }
  });
  return {};
}

Ticket ThreadChannel::reduce_scatter(const Call& call, const void* in, void* out, Stream) {
  const Index part = call.count / size();
  const Index part_bytes = part * size_of(call.dtype);
  std::byte* own = bytes_of(out);
  collective({.call = call, .in = bytes_of(in)}, part_bytes * size(), [&](int parity, Memory) {
    inputs(parity);
    for (const std::byte*& input : inputs_) input += part_bytes * rank();
    reduce_into(call.dtype, call.reduce, inputs_, std::span(&own, 1), 0, part);
  });
  return {};
}

Ticket ThreadChannel::all_gather(const Call& call, const void* in, void* out, Stream) {
  const Index bytes = call.count * size_of(call.dtype);
  collective({.call = call, .in = bytes_of(in)}, bytes, [&](int parity, Memory) {
    for (int i = 0; i < size(); ++i) {
      const std::byte* from = i == rank() ? bytes_of(in) : room_->posting(parity, i).in;
      copy_bytes(bytes_of(out) + i * bytes, from, bytes);
    }
  });
  return {};
}

Ticket ThreadChannel::all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream) {
  const Posting mine{
      .call = call, .in = bytes_of(in.data), .send_bytes = in.bytes.data(), .recv_bytes = out.bytes.data()};
  collective(mine, 0, [&](int parity, Memory) {
    std::byte* to = bytes_of(out.data);
    for (int i = 0; i < size(); ++i) {
      const Posting& other = room_->posting(parity, i);
      const std::byte* from = other.in;
      for (int j = 0; j < rank(); ++j) from += other.send_bytes[j];
      copy_bytes(to, from, other.send_bytes[rank()]);
      to += other.send_bytes[rank()];
    }
  });
  return {};
}

Ticket ThreadChannel::broadcast(const Call& call, void* data, Stream) {
  const Index bytes = call.count * size_of(call.dtype);
  collective({.call = call, .in = bytes_of(data)}, bytes, [&](int parity, Memory) {
    if (rank() != call.root) copy_bytes(bytes_of(data), room_->posting(parity, call.root).in, bytes);
  });
  return {};
}

void ThreadChannel::barrier(const Call& call, Stream) {
  collective({.call = call}, 0, [](int, Memory) {});
}

template <class Args>
Ticket ThreadChannel::read_rows(const Call& call, const Args& args) {
  const Index row_bytes = args.mine.dim(1) * size_of(args.mine.dtype());
  const std::span<const RowPlace> places = places_of(args);
  rows_.resize(std::max(rows_.size(), capacity_of(args)));  // so that a longer list of a later step allocates nothing
  collective({.call = call, .in = bytes_of(args.mine.raw())}, 0, [&](int parity, Memory) {
    const auto from = inputs(parity);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto& [member, row] = places[i];
      rows_[i] = member == kNoMember ? nullptr : from[static_cast<std::size_t>(member)] + row * row_bytes;
    }
    take_rows(args, std::span(rows_).first(places.size()), {0, args.mine.dim(1)});
  });
  return {};
}

Ticket ThreadChannel::gather_rows(const Call& call, const GatherRows& args, Stream) { return read_rows(call, args); }
Ticket ThreadChannel::gather_sum_rows(const Call& call, const GatherSumRows& args, Stream) {
  return read_rows(call, args);
}

Mailbox& ThreadChannel::mailbox(const Call& call) {
  for (const Route& route : routes_) {
    if (route.op == call.op && route.peer == call.root && route.lane == call.lane) return *route.mailbox;
  }
  Mailbox& found =
      call.op == Op::send ? room_->mailbox(rank(), call.root, call.lane) : room_->mailbox(call.root, rank(), call.lane);
  routes_.push_back({call.op, call.root, call.lane, &found});
  return found;
}

Ticket ThreadChannel::post(const Call& call, std::byte* data) {
  Mailbox& box = mailbox(call);
  const auto [slot, ticket] = in_flight_.take(*this, call);
  Message& message = slot.message;
  message.call = call;
  message.data = data;
  message.bytes = call.count * size_of(call.dtype);
  message.world_rank = world_rank();
  message.done.store(false, std::memory_order_relaxed);

  Message* partner = nullptr;
  {
    const std::lock_guard lock(box.mutex);
    if (!box.waiting.empty() && box.waiting.front()->call.op != call.op) {
      partner = box.waiting.front();
      if (partner->call.dtype != call.dtype || partner->call.count != call.count) {
        in_flight_.give_back(ticket);
        throw_mismatch(call, world_rank(), describe(partner->call), partner->world_rank);
      }
      box.waiting.erase(box.waiting.begin());
    } else {
      box.waiting.push_back(&message);
    }
  }
  slot.mailbox = &box;
  if (partner != nullptr) {
    const bool sending = call.op == Op::send;
    copy_bytes(sending ? partner->data : data, sending ? data : partner->data, message.bytes);
    message.done.store(true, std::memory_order_relaxed);
    const int other = partner->world_rank;  // the partner may reuse its slot from the next line on
    partner->done.store(true, std::memory_order_release);
    hub_.unpark(other);
  }
  return ticket;
}

Ticket ThreadChannel::post_send(const Call& call, const void* data, Stream) {
  return post(call,
              const_cast<std::byte*>(bytes_of(data)));  // only read: a send's data is never the target of copy_bytes()
}

Ticket ThreadChannel::post_recv(const Call& call, void* data, Stream) { return post(call, bytes_of(data)); }

void ThreadChannel::wait(Ticket ticket, Stream) {
  const Message& message = in_flight_.at(*this, ticket).message;
  const int peer = world_rank(message.call.root);
  const Waited waited = hub_.wait(
      world_rank(), *this, message.call, [&] { return message.done.load(std::memory_order_acquire); },
      [&] { return hub_.ended(peer); },
      [&] {
        hub_.position(world_rank()).await({&peer, 1}, 1);
      });
  if (waited.outcome == Outcome::failed) throw AbortedError(where(message.call.op) + hub_.failure());
  if (waited.outcome != Outcome::ready) {
    RankList awaited;
    awaited.add(peer, hub_.whereabouts(peer));
    throw_hang(message.call, waited.seconds, awaited.text());
  }
  in_flight_.give_back(ticket);
}

/// Takes the message out of the mailbox, or waits until the other rank has copied it. Nobody copies it after that.
void ThreadChannel::take_back(Slot& slot) noexcept {
  {
    const std::lock_guard lock(slot.mailbox->mutex);
    if (std::erase(slot.mailbox->waiting, &slot.message) > 0)
      slot.message.done.store(true, std::memory_order_relaxed);  // for the next reader
  }
  hub_.wait_until(world_rank(), [&] { return slot.message.done.load(std::memory_order_acquire); });
}

void ThreadChannel::cancel(Ticket ticket) noexcept {
  Slot* slot = in_flight_.find(ticket);
  if (slot == nullptr) return;
  take_back(*slot);
  in_flight_.give_back(ticket);
}

}  // namespace megalith::comm
