#include "megalith/comm/alone/alone_channel.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <type_traits>
#include <utility>

#include "megalith/base/philox.h"
#include "megalith/comm/alone/hold_stream.h"
#include "megalith/comm/peer/device_barrier.h"
#include "megalith/comm/peer/row_kernels.h"
#include "megalith/comm/peer/symmetric_transport.h"

namespace megalith::comm {
namespace {

constexpr Index kReceivedBytes = Index{4} << 20;

/// 16-bit words with a sign and 8 bits of each that are random: numbers of moderate size in every type of floats.
std::vector<std::uint16_t> made_up_words() {
  std::vector<std::uint16_t> words;
  words.reserve(kReceivedBytes / sizeof(std::uint16_t));
  const RandomSite site{.seed = 1};
  for (std::uint64_t block = 0; words.size() < words.capacity(); ++block) {
    for (const std::uint32_t random : site.block(block)) {
      for (const std::uint32_t half : {random & 0xffffu, random >> 16})
        words.push_back(static_cast<std::uint16_t>((half & 0x80ffu) | 0x3e00u));
    }
  }
  return words;
}

}  // namespace

AloneChannel::AloneChannel(std::string name, std::vector<int> world_ranks, int rank, Device device,
                           const AloneLinks& links, Messages messages)
    : Channel(std::move(name), std::move(world_ranks), rank),
      device_(device),
      links_(links),
      stream_(device),
      ready_(device) {
  if (device == Device::cpu) return;
  load_hold_kernel();
  if (size() <= kMaxSummed) gpu_rows_ = std::make_unique<RowsAlone>(size());
  if (messages != Messages::none) make_received();  // no graph may be captured while memory is taken
}

int AloneChannel::multiprocessors() const { return device_ == Device::cpu ? 0 : SymmetricTransport::kMultiprocessors; }

void AloneChannel::make_received() {
  const std::vector<std::uint16_t> words = made_up_words();
  received_ = Buffer(kReceivedBytes, device_, Side::device, Contents::undefined);
  copy(received_.data(), words.data(), kReceivedBytes, stream_.get());
  device::synchronize(device_, stream_.get());
}

void AloneChannel::copy(void* to, const void* from, Index bytes, Stream stream) const {
  if (bytes > 0 && to != from) device::copy(device_, to, from, bytes, stream);
}

template <class Work>
Ticket AloneChannel::run(const Call& call, Stream caller, Index bytes, Work&& work) {
  const double seconds = links_.bytes_per_s > 0 ? static_cast<double>(bytes) / links_.bytes_per_s : 0.0;
  if (device_ == Device::cpu) {
    work(caller);
    if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return {-1, call.entry};
  }
  ready_.record(caller);
  ready_.hold(stream_.get());
  work(stream_.get());
  if (seconds > 0) hold_stream(stream_.get(), seconds);
  const auto [done, ticket] = in_flight_.take(*this, call);
  if (!done.has_value()) done.emplace(Device::cuda);
  done->record(stream_.get());
  return ticket;
}

void AloneChannel::wait(Ticket ticket, Stream stream) {
  in_flight_.at(*this, ticket)->hold(stream);
  in_flight_.give_back(ticket);
}

void AloneChannel::cancel(Ticket ticket) noexcept {
  if (in_flight_.find(ticket) != nullptr) in_flight_.give_back(ticket);
}

Ticket AloneChannel::all_reduce(const Call& call, void*, Stream stream) {
  return run(call, stream, 2 * of_others(call.count * size_of(call.dtype)), [](Stream) {});
}

Ticket AloneChannel::reduce_scatter(const Call& call, const void* in, void* out, Stream stream) {
  const Index whole = call.count * size_of(call.dtype), part = whole / size();
  return run(call, stream, of_others(whole),
             [&](Stream own) { copy(out, static_cast<const std::byte*>(in) + rank() * part, part, own); });
}

Ticket AloneChannel::all_gather(const Call& call, const void* in, void* out, Stream stream) {
  const Index part = call.count * size_of(call.dtype), whole = part * size();
  return run(call, stream, of_others(whole), [&](Stream own) {
    auto* const to = static_cast<std::byte*>(out);
    copy(to, in, part, own);
    for (Index filled = part; filled < whole; filled *= 2) copy(to + filled, to, std::min(filled, whole - filled), own);
  });
}

Ticket AloneChannel::all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) {
  const auto own_member = static_cast<std::size_t>(rank());
  Index sent = 0, received = 0, before = 0;
  for (std::size_t member = 0; member < in.bytes.size(); ++member) {
    if (member == own_member) continue;
    sent += in.bytes[member];
    received += out.bytes[member];
    if (member < own_member) before += in.bytes[member];
  }
  return run(call, stream, std::max(sent, received), [&](Stream own) {
    const auto* const mine = static_cast<const std::byte*>(in.data) + before;
    auto* to = static_cast<std::byte*>(out.data);
    for (const Index bytes : out.bytes) {
      const Index copied = std::min(bytes, in.bytes[own_member]);
      copy(to, mine, copied, own);
      if (bytes > copied) device::fill_bytes(device_, to + copied, 0, bytes - copied, own);
      to += bytes;
    }
  });
}

Ticket AloneChannel::broadcast(const Call& call, void*, Stream stream) {
  return run(call, stream, call.count * size_of(call.dtype), [](Stream) {});
}

Ticket AloneChannel::post_recv(const Call& call, void* data, Stream stream) {
  if (received_.data() == nullptr) make_received();
  const Index bytes = call.count * size_of(call.dtype);
  return run(call, stream, bytes, [&](Stream own) {
    for (Index begin = 0; begin < bytes; begin += kReceivedBytes)
      copy(static_cast<std::byte*>(data) + begin, received_.data(), std::min(kReceivedBytes, bytes - begin), own);
  });
}

template <class Args>
Ticket AloneChannel::read_rows(const Call& call, const Args& args, Stream stream) {
  return run(call, stream, of_others(args.out.bytes()), [&](Stream own) {
    if (device_ == Device::cuda) {
      if constexpr (std::is_same_v<Args, GatherRows>)
        gpu_rows_->gather_rows(own, args, kMaxRowCtas);
      else
        gpu_rows_->gather_sum_rows(own, args, kMaxRowCtas);
      return;
    }
    take_own_rows(args, rows_);
  });
}

Ticket AloneChannel::gather_rows(const Call& call, const GatherRows& args, Stream stream) {
  return read_rows(call, args, stream);
}
Ticket AloneChannel::gather_sum_rows(const Call& call, const GatherSumRows& args, Stream stream) {
  return read_rows(call, args, stream);
}

}  // namespace megalith::comm
