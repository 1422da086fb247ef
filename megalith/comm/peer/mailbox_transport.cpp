#include "megalith/comm/peer/mailbox_transport.h"

#include <algorithm>
#include <array>

#include "megalith/comm/peer/kernels.h"

namespace megalith::comm {
namespace {

/// CTAs of a kernel that sends a message in a graph. There a copy by a copy engine costs the host 2 us and more at each
/// launch. Measured with 1.2B over two stages on H200s, 64 messages of 6 MiB per step, in ms per step and us of the
/// host:
///   16 CTAs 287.0, 286.5 and 98, 86; 8 CTAs 288.0, 287.2 and 103, 82; copy engines 287.4, 287.5 and 257, 270.
constexpr int kSendBlocks = 16;

void copy(void* to, const void* from, Index bytes, Stream stream) {
  if (bytes > 0) device::copy(Device::cuda, to, from, bytes, stream);
}

/// The stream continues when the word is 1, and has then set it to 0.
void wait_signal(std::uint32_t* word, Waits waits, Stream stream) {
  StreamSignals words(waits);
  words.wait_for(word, 1);
  words.write(word, 0);
  words.submit(stream);
}

/// The signal for a wait of another member.
void set_signal(std::uint32_t* word, Stream stream) {
  StreamSignals words;
  words.write(word, 1);
  words.submit(stream);
}

}  // namespace

/// The members' parts of a piece of a tensor: that of member m is `bytes(m)` bytes from m * stride on.
struct MailboxTransport::MemberParts {
  Index stride = 0;
  Index begin = 0;      ///< within a member's part
  Index max_bytes = 0;  ///< of a part
  Index total = 0;      ///< the end of the tensor

  Index offset(int member) const { return member * stride + begin; }
  Index bytes(int member) const { return std::clamp<Index>(total - offset(member), 0, max_bytes); }
};

/// out = the sum of all members' parts for this member, of their messages `in`. It is also written into `copy` unless
/// that is null.
struct MailboxTransport::Sum {
  const std::byte* in;
  std::byte* out;
  std::byte* copy;
  DType dtype;
};

MailboxTransport::MailboxTransport(int rank, Messages messages, Mailboxes mailboxes)
    : layout_{static_cast<int>(mailboxes.of_members.size()), messages},
      rank_(rank),
      waits_(mailboxes.links == Links::pcie ? Waits::flushing : Waits::plain),
      mailboxes_(std::move(mailboxes.of_members)),
      pieces_(mailboxes_.size() * 2 * MailboxLayout::kLanes),
      release_stream_(Device::cuda) {}

template <class F>
void MailboxTransport::for_others(F&& f) const {
  for (int step = 1; step < size(); ++step) f((rank_ + step) % size());  // each link has one pair at a time
}

/// Later work of `stream` starts after all earlier work of every member's stream.
void MailboxTransport::barrier(int phase, Stream stream) const {
  StreamSignals words(waits_);
  for_others([&](int member) { words.write(mailbox(member).arrived(phase, rank_), 1); });
  for_others([&](int member) { words.wait_for(mailbox(rank_).arrived(phase, member), 1); });
  for_others([&](int member) { words.write(mailbox(rank_).arrived(phase, member), 0); });
  words.submit(stream);
}

void MailboxTransport::reduce_part(const MemberParts& parts, const Sum& sum, Stream stream) const {
  for_others(
      [&](int member) { copy(mailbox(member).in(rank_), sum.in + parts.offset(member), parts.bytes(member), stream); });
  PartsSum args{.members = size(), .count = parts.bytes(rank_) / size_of(sum.dtype), .dtype = sum.dtype};
  args.add_out(sum.out);
  if (sum.copy != nullptr) args.add_out(sum.copy);
  for (int member = 0; member < size(); ++member)
    args.parts[static_cast<std::size_t>(member)] =
        member == rank_ ? sum.in + parts.offset(rank_) : mailbox(rank_).in(member);
  between_barriers(stream, [&] { sum_parts(stream, args); });
}

/// Copies the others' parts of `to` from their mailboxes.
void MailboxTransport::gather_parts(const MemberParts& parts, std::byte* to, Stream stream) const {
  for_others([&](int member) { copy(to + parts.offset(member), mailbox(member).out(), parts.bytes(member), stream); });
}

void MailboxTransport::all_reduce(const Call& call, void* data, Stream stream) const {
  const Index total = call.count * size_of(call.dtype);
  const Index share = round_up(ceil_div(total, Index{size()}), MailboxLayout::kAlignment);
  const Index stride = std::min(share, layout_.part_bytes());
  for (Index begin = 0; begin < total; begin += stride * size()) {
    const MemberParts parts{stride, 0, stride, std::min(total - begin, stride * size())};
    std::byte* const here = static_cast<std::byte*>(data) + begin;
    reduce_part(parts, {here, here + parts.offset(rank_), mailbox(rank_).out(), call.dtype}, stream);
    gather_parts(parts, here, stream);
  }
}

void MailboxTransport::reduce_scatter(const Call& call, const void* in, void* out, Stream stream) const {
  const Index total = call.count * size_of(call.dtype), stride = total / size(), max_bytes = layout_.part_bytes();
  for (Index begin = 0; begin < stride; begin += max_bytes) {
    const MemberParts parts{stride, begin, std::min(max_bytes, stride - begin), total};
    reduce_part(parts, {static_cast<const std::byte*>(in), static_cast<std::byte*>(out) + begin, nullptr, call.dtype},
                stream);
  }
}

void MailboxTransport::all_gather(const Call& call, const void* in, void* out, Stream stream) const {
  const Index stride = call.count * size_of(call.dtype), max_bytes = layout_.part_bytes();
  auto* const to = static_cast<std::byte*>(out);
  if (to + rank_ * stride != in) copy(to + rank_ * stride, in, stride, stream);
  for (Index begin = 0; begin < stride; begin += max_bytes) {
    const MemberParts parts{stride, begin, std::min(max_bytes, stride - begin), stride * size()};
    between_barriers(stream, [&] {
      copy(mailbox(rank_).out(), static_cast<const std::byte*>(in) + begin, parts.max_bytes, stream);
    });
    gather_parts(parts, to, stream);
  }
}

template <class F>
void MailboxTransport::for_slots(const Call& call, F&& f) {
  const Index total = call.count * size_of(call.dtype);
  const std::size_t line =
      (static_cast<std::size_t>(call.root) * 2 + (call.op == Op::send ? 0 : 1)) * MailboxLayout::kLanes +
      static_cast<std::size_t>(call.lane);
  for (Index begin = 0; begin < total; begin += MailboxLayout::kSlotBytes) {
    const auto slot = static_cast<int>(pieces_[line]++ % MailboxLayout::kSlots);
    f(slot, begin, std::min(MailboxLayout::kSlotBytes, total - begin));
  }
}

void MailboxTransport::send(const Call& call, const void* data, PeerTransport transport, Stream stream) {
  const PeerMailbox &own = mailbox(rank_), &theirs = mailbox(call.root);
  for_slots(call, [&](int slot, Index begin, Index bytes) {
    wait_signal(own.room(call.root, call.lane, slot), waits_, stream);
    const std::array<void*, 1> to = {theirs.slot(rank_, call.lane, slot)};
    const std::byte* const from = static_cast<const std::byte*>(data) + begin;
    if (transport == PeerTransport::copy_kernels) {
      copy_by_kernel(stream, to, from, bytes, {.max_ctas = kSendBlocks, .unless = &own.barrier_flags()->failed});
    } else {
      copy(to[0], from, bytes, stream);
    }
    set_signal(theirs.full(rank_, call.lane, slot), stream);
  });
}

void MailboxTransport::recv(const Call& call, void* data, Stream stream) {
  const PeerMailbox &own = mailbox(rank_), &theirs = mailbox(call.root);
  for_slots(call, [&](int slot, Index begin, Index bytes) {
    wait_signal(own.full(call.root, call.lane, slot), waits_, stream);
    copy_by_kernel(stream, static_cast<std::byte*>(data) + begin, own.slot(call.root, call.lane, slot), bytes);
    set_signal(theirs.room(rank_, call.lane, slot), stream);
  });
}

void MailboxTransport::release() noexcept {
  try {
    const PeerMailbox& own = mailbox(rank_);
    StreamSignals failed;  // first, because kernels that are released below must find it
    for (int member = 0; member < size(); ++member) failed.write(&mailbox(member).barrier_flags()->failed, 1);
    failed.submit(release_stream_.get());
    for_others([&](int member) {
      StreamSignals words;
      for (int phase = 0; phase < MailboxLayout::kPhases; ++phase) words.write(own.arrived(phase, member), 1);
      for (int lane = 0; lane < MailboxLayout::kLanes; ++lane) {
        for (int slot = 0; slot < MailboxLayout::kSlots; ++slot) {
          words.write(own.full(member, lane, slot), 1);
          words.write(own.room(member, lane, slot), 1);
        }
      }
      words.submit(release_stream_.get());
    });
  } catch (const std::exception&) {  // the GPU has failed: nothing waits there any more
  }
}

}  // namespace megalith::comm
