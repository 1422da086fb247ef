#include "megalith/comm/peer/peer_group.h"

#include <algorithm>
#include <array>

#include "megalith/comm/gather_values.h"
#include "megalith/comm/peer/kernels.h"
#include "megalith/comm/peer/stream_signals.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/gpu_attribute.h"

// With copy engines every call has the same two barriers of all members. A member submits its work in one order, so a
// barrier shows that all its earlier work is complete:
//   write parts into the others' mailboxes,  barrier,  sum and write the sum into the own one,  barrier,  copy theirs.
// After the second barrier every member's `in` may be reused. After the first one of the next call every `out` may be.

namespace megalith::comm {
namespace {

constexpr Index kMinBytes = Index{1} << 20;  ///< smallest collective; NCCL's latency is lower below it
static_assert(kMinBytes >= device::kMinShared, "other GPUs do not reach smaller pieces of memory");
constexpr Index kMinMessageBytes = Index{256} << 10;
/// CTAs of a gather between barriers. A step of 1.2B, TP 2 with sequence parallelism on H200s from a graph, ms, with
/// 16, 32, 64 of them: 75.7, 74.1, 74.1.
constexpr int kCopyBlocks = 32;
/// CTAs of a kernel that sends a message in a graph. There a copy by a copy engine costs the host 2 us and more at each
/// launch. Measured with 1.2B over two stages on H200s, 64 messages of 6 MiB per step, in ms per step and us of the
/// host:
///   16 CTAs 287.0, 286.5 and 98, 86; 8 CTAs 288.0, 287.2 and 103, 82; copy engines 287.4, 287.5 and 257, 270.
constexpr int kSendBlocks = 16;
/// CTAs of a symmetric-memory kernel that does not overlap with compute. Measured for the last 154 MB of gradients, DP
/// 2 of 124M on H200s, in ms per step, means of two. With copy engines it took 56.0, with this kernel 55.9; from a
/// graph 55.7, 55.5.
constexpr int kBlocksAlone = 32;
/// From this size on a copy engine's latency in a graph matters little. DP 2 of 124M from a graph took 55.0 ms per step
/// with copy engines for gradient sums that overlap with the backward pass. With kernels for all sums it took 55.9.
constexpr Index kMinCopiedBytes = Index{32} << 20;

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

/// The maximal number of CTAs of a member's symmetric-memory kernel. With it the kernels of all members fit on their
/// GPUs at the same time, even if members share one. 0 if the GPU of some member may not access memory that another
/// member's thread takes. Collective over `host`.
int max_barrier_ctas(const Group& host) {
  int gpu = 0;
  cuda::check(cudaGetDevice(&gpu));
  const int multiprocessors = cuda::gpu_attribute(cudaDevAttrMultiProcessorCount);
  const std::vector<int> gpus = gather_values(host, gpu);
  const auto may_touch = [](int other) { return std::ranges::count(device::sharers(), other) > 0; };
  const std::vector<std::uint64_t> agreed = gather_values(host, std::uint64_t{std::ranges::all_of(gpus, may_touch)});
  if (std::ranges::count(agreed, std::uint64_t{0}) > 0) return 0;
  return std::max(1, multiprocessors / (4 * static_cast<int>(std::ranges::count(gpus, gpu))));
}

}  // namespace

/// A piece of a message: the part of member m is `bytes(m)` bytes from m * stride on.
struct PeerGroup::Piece {
  Index stride = 0;
  Index begin = 0;       ///< within a member's part
  Index part_bytes = 0;  ///< at most
  Index total = 0;       ///< the end of the message

  Index offset(int member) const { return member * stride + begin; }
  Index bytes(int member) const { return std::clamp<Index>(total - offset(member), 0, part_bytes); }
};

enum class PeerGroup::Way : std::uint8_t {
  copies,            ///< copy engines, through the mailboxes
  barrier,           ///< one kernel with its own device barrier, which accesses the others' tensors
  between_barriers,  ///< a kernel that accesses them, between two barriers
};

std::unique_ptr<PeerGroup> PeerGroup::connect(const Group& host, const GroupUse& use) {
  auto mailboxes = open_mailboxes(host, use);
  if (mailboxes.of_members.empty()) return nullptr;
  load_kernels(host.size());
  const bool kernels_meet = use.messages == Messages::none && mailboxes.links == Links::nvlink;
  const int max_ctas = kernels_meet ? max_barrier_ctas(host) : 0;
  return std::unique_ptr<PeerGroup>(new PeerGroup(host, use, max_ctas, std::move(mailboxes)));
}

PeerGroup::PeerGroup(const Group& host, const GroupUse& use, int max_ctas, Mailboxes mailboxes)
    : host_(host),
      layout_{host.size(), use.messages},
      max_ctas_(max_ctas),
      rank_(host.rank()),
      waits_(mailboxes.links == Links::pcie ? Waits::flushing : Waits::plain),
      mailboxes_(std::move(mailboxes.of_members)),
      pieces_(mailboxes_.size() * 2 * MailboxLayout::kLanes),
      release_stream_(Device::cuda) {}

PeerGroup::~PeerGroup() = default;

Index PeerGroup::bytes_of(const Call& call) const {
  return call.count * size_of(call.dtype) * (call.op == Op::all_gather ? size() : 1);
}

bool PeerGroup::takes(const Call& call) const {
  const Index bytes = bytes_of(call);
  const bool for_messages = layout_.messages != Messages::none;
  if (is_message(call.op)) return for_messages && bytes >= kMinMessageBytes;
  if (for_messages) return false;
  switch (call.op) {
    case Op::all_gather:
      return bytes >= kMinBytes;
    case Op::all_reduce:
    case Op::reduce_scatter:
      return bytes >= kMinBytes && call.reduce == Reduce::sum && is_summed(call.dtype);
    default:
      return false;
  }
}

template <class F>
void PeerGroup::for_others(F&& f) const {
  for (int step = 1; step < size(); ++step) f((rank_ + step) % size());  // each link has one pair at a time
}

/// Later work of `stream` starts after all earlier work of every member's stream.
void PeerGroup::meet(int phase, Stream stream) const {
  StreamSignals words(waits_);
  for_others([&](int member) { words.write(mailbox(member).arrived(phase, rank_), 1); });
  for_others([&](int member) { words.wait_for(mailbox(rank_).arrived(phase, member), 1); });
  for_others([&](int member) { words.write(mailbox(rank_).arrived(phase, member), 0); });
  words.submit(stream);
}

template <class F>
void PeerGroup::between_barriers(Stream stream, F&& body) const {
  meet(0, stream);
  body();
  meet(1, stream);
}

/// out = the sum of all members' parts for this member, of their messages `in`. It is also written into `copy` unless
/// that is null.
struct PeerGroup::Sum {
  const std::byte* in;
  std::byte* out;
  std::byte* copy;
  DType dtype;
};

void PeerGroup::add_up(const Piece& piece, const Sum& sum, Stream stream) const {
  for_others(
      [&](int member) { copy(mailbox(member).in(rank_), sum.in + piece.offset(member), piece.bytes(member), stream); });
  PartsSum parts{.members = size(), .count = piece.bytes(rank_) / size_of(sum.dtype), .dtype = sum.dtype};
  parts.add_out(sum.out);
  if (sum.copy != nullptr) parts.add_out(sum.copy);
  for (int member = 0; member < size(); ++member)
    parts.parts[static_cast<std::size_t>(member)] =
        member == rank_ ? sum.in + piece.offset(rank_) : mailbox(rank_).in(member);
  between_barriers(stream, [&] { sum_parts(stream, parts); });
}

/// Copies the others' parts of `to` from their mailboxes.
void PeerGroup::pull(const Piece& piece, std::byte* to, Stream stream) const {
  for_others([&](int member) { copy(to + piece.offset(member), mailbox(member).out(), piece.bytes(member), stream); });
}

PeerGroup::Way PeerGroup::way_of(const Call& call, Stream stream) const {
  if (!reaches_tensors()) return Way::copies;
  const bool captured = is_capturing(stream);
  if (call.priority == Priority::beside_work && (!captured || bytes_of(call) >= kMinCopiedBytes)) return Way::copies;
  if (call.priority == Priority::alone || size() > 2) return Way::barrier;
  // The case of two members. 1.2B on H200s, ms per step: eager sums with copies 73.3, with symmetric-memory kernels
  // 74.7 (a rank's share of TP 4: 54.1, 48.0). Sequence parallelism from a graph: gathers with their own barrier 74.2,
  // 74.5, between two barriers 71.8, 73.1.
  if (call.op == Op::all_reduce && !captured) return Way::copies;
  return call.op == Op::all_gather && captured ? Way::between_barriers : Way::barrier;
}

std::string_view PeerGroup::transport_of(const Call& call, Stream stream) const {
  constexpr std::string_view kCopyEngines = "copy engines";
  if (is_message(call.op)) return is_capturing(stream) ? "kernels" : kCopyEngines;
  switch (way_of(call, stream)) {
    case Way::copies:
      return kCopyEngines;
    case Way::barrier:
      return "kernels with device barriers";
    case Way::between_barriers:
      return "kernels between barriers";
  }
  return "?";
}

std::vector<std::byte*> PeerGroup::addresses_of_all(const void* own) const {
  return gather_values(host_, static_cast<std::byte*>(const_cast<void*>(own)));
}

SymmetricPart PeerGroup::symmetric_part(const Call& call, void* memory, Index offset, Index count) const {
  DeviceBarrier barrier{.members = size(), .rank = rank_, .symmetric = memory};
  for (int member = 0; member < size(); ++member)
    barrier.flags[static_cast<std::size_t>(member)] = mailbox(member).barrier_flags();
  return {.barrier = barrier,
          .offset = offset,
          .count = count,
          .dtype = call.dtype,
          .blocks = std::min(max_ctas_, call.priority == Priority::alone ? kBlocksAlone : multiprocessors())};
}

void PeerGroup::all_gather_between_barriers(const Call& call, const void* in, void* out, Stream stream) const {
  const Index stride = call.count * size_of(call.dtype);
  std::vector<void*> to;
  for (std::byte* const theirs : addresses_of_all(out)) to.push_back(theirs + rank_ * stride);
  const Reach reach{.max_ctas = kCopyBlocks, .unless = &mailbox(rank_).barrier_flags()->failed};
  between_barriers(stream, [&] { copy_by_kernel(stream, to, in, stride, reach); });
}

void PeerGroup::all_reduce(const Call& call, void* data, Stream stream) {
  auto* const bytes = static_cast<std::byte*>(data);
  const Index total = call.count * size_of(call.dtype);
  const Index share = round_up(ceil_div(total, Index{size()}), MailboxLayout::kAlignment);
  if (way_of(call, stream) == Way::barrier) {
    const Piece part{share, 0, share, total};
    const Index count = part.bytes(rank_) / size_of(call.dtype);
    return all_reduce_symmetric(stream, symmetric_part(call, data, part.offset(rank_), count));
  }
  const Index stride = std::min(share, layout_.part_bytes());
  for (Index begin = 0; begin < total; begin += stride * size()) {
    const Piece piece{stride, 0, stride, std::min(total - begin, stride * size())};
    std::byte* const here = bytes + begin;
    add_up(piece, {here, here + piece.offset(rank_), mailbox(rank_).out(), call.dtype}, stream);
    pull(piece, here, stream);
  }
}

void PeerGroup::reduce_scatter(const Call& call, const void* in, void* out, Stream stream) {
  const Index total = call.count * size_of(call.dtype), stride = total / size();
  if (way_of(call, stream) == Way::barrier) {
    const SymmetricPart part = symmetric_part(call, const_cast<void*>(in), rank_ * stride, call.count / size());
    return reduce_scatter_symmetric(stream, part, out);
  }
  const Index most = layout_.part_bytes();
  for (Index begin = 0; begin < stride; begin += most) {
    const Piece piece{stride, begin, std::min(most, stride - begin), total};
    add_up(piece, {static_cast<const std::byte*>(in), static_cast<std::byte*>(out) + begin, nullptr, call.dtype},
           stream);
  }
}

void PeerGroup::all_gather(const Call& call, const void* in, void* out, Stream stream) {
  const Index stride = call.count * size_of(call.dtype), most = layout_.part_bytes();
  const Way way = way_of(call, stream);
  if (way == Way::between_barriers) return all_gather_between_barriers(call, in, out, stream);
  if (way == Way::barrier)
    return all_gather_symmetric(stream, symmetric_part(call, out, rank_ * stride, call.count), in);
  auto* const to = static_cast<std::byte*>(out);
  if (to + rank_ * stride != in) copy(to + rank_ * stride, in, stride, stream);
  for (Index begin = 0; begin < stride; begin += most) {
    const Piece piece{stride, begin, std::min(most, stride - begin), stride * size()};
    between_barriers(stream, [&] {
      copy(mailbox(rank_).out(), static_cast<const std::byte*>(in) + begin, piece.part_bytes, stream);
    });
    pull(piece, to, stream);
  }
}

template <class F>
void PeerGroup::for_slots(const Call& call, F&& f) {
  const Index total = call.count * size_of(call.dtype);
  const std::size_t line =
      (static_cast<std::size_t>(call.root) * 2 + (call.op == Op::send ? 0 : 1)) * MailboxLayout::kLanes +
      static_cast<std::size_t>(call.lane);
  for (Index begin = 0; begin < total; begin += MailboxLayout::kSlotBytes) {
    const auto slot = static_cast<int>(pieces_[line]++ % MailboxLayout::kSlots);
    f(slot, begin, std::min(MailboxLayout::kSlotBytes, total - begin));
  }
}

void PeerGroup::send(const Call& call, const void* data, Stream stream) {
  const PeerMailbox &own = mailbox(rank_), &theirs = mailbox(call.root);
  for_slots(call, [&](int slot, Index begin, Index bytes) {
    wait_signal(own.room(call.root, call.lane, slot), waits_, stream);
    const std::array<void*, 1> to = {theirs.slot(rank_, call.lane, slot)};
    const std::byte* const from = static_cast<const std::byte*>(data) + begin;
    if (is_capturing(stream)) {
      copy_by_kernel(stream, to, from, bytes, {.max_ctas = kSendBlocks, .unless = &own.barrier_flags()->failed});
    } else {
      copy(to[0], from, bytes, stream);
    }
    set_signal(theirs.full(rank_, call.lane, slot), stream);
  });
}

void PeerGroup::recv(const Call& call, void* data, Stream stream) {
  const PeerMailbox &own = mailbox(rank_), &theirs = mailbox(call.root);
  for_slots(call, [&](int slot, Index begin, Index bytes) {
    wait_signal(own.full(call.root, call.lane, slot), waits_, stream);
    copy_by_kernel(stream, static_cast<std::byte*>(data) + begin, own.slot(call.root, call.lane, slot), bytes);
    set_signal(theirs.room(rank_, call.lane, slot), stream);
  });
}

void PeerGroup::release() noexcept {
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
