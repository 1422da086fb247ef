#include "megalith/comm/peer/mailbox.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/host.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/peer/stream_signals.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/shared_memory.h"
#include "megalith/tensor/gpu_pretence.h"

namespace megalith::comm {
namespace {

/// The same for all threads of a process, different for every process of a job.
std::uint64_t process_mark() {
  static const std::uint64_t mark = random_word();
  return mark;
}

/// What a member sends to the others about itself.
struct Member {
  std::uint64_t space = 0;  ///< among members with the same number an address means the same
  device::GpuId gpu{};
  const std::shared_ptr<const PeerMailbox>* mailbox = nullptr;  ///< the address, in its process, where it will be
};

/// Memory of this GPU that the GPUs of the group can access.
std::shared_ptr<std::byte> take_memory(Index bytes, std::span<const int> gpus) {
  std::shared_ptr<std::byte> memory = cuda::take_shared_memory(bytes, gpus);
  if (memory != nullptr) return memory;
  throw IoError(str("[memory] cannot take ", human_bytes(bytes), " of the GPU for what goes between GPUs: use a ",
                    "smaller model or microbatch, or set parallel.transfers = \"kernels\", which takes less"));
}

}  // namespace

bool has_nvlink(int own, int other) {
  if (device::pretended().links_are_pcie) return false;
  if (own == other) return true;
  int has_atomics = 0;
  cuda::check(cudaDeviceGetP2PAttribute(&has_atomics, cudaDevP2PAttrNativeAtomicSupported, own, other));
  return has_atomics != 0;
}

bool is_reached(int own, int other) {
  if (own == other) return true;
  int can = 0;
  cuda::check(cudaDeviceCanAccessPeer(&can, own, other));
  return can != 0;
}

static_assert((MailboxLayout::kPhases + 2 * MailboxLayout::kLanes * MailboxLayout::kSlots) * kMaxSummed *
                      Index{sizeof(std::uint32_t)} <=
                  MailboxLayout::kWordBytes - Index{sizeof(BarrierFlags)},
              "the words of slots do not reach the flags of the device barrier");

PeerMailbox::PeerMailbox(const MailboxLayout& layout, int member, std::span<const int> gpus)
    : layout_(layout),
      member_(member),
      memory_(take_memory(layout.bytes(), gpus)),
      words_(reinterpret_cast<std::uint32_t*>(memory_.get())),
      data_(memory_.get() + MailboxLayout::kWordBytes) {
  // At first all slots have room for every sender.
  const Index begin = room(0, 0, 0) - words_, end = room(layout.members, 0, 0) - words_;
  const std::vector<std::uint32_t> ones(static_cast<std::size_t>(end - begin), 1);
  cuda::check(cudaMemcpy(words_ + begin, ones.data(), ones.size() * sizeof(std::uint32_t), cudaMemcpyDefault));
  cuda::check(cudaStreamSynchronize(nullptr));
}

PeerMailbox::PeerMailbox(const MailboxLayout& layout, int member, std::byte* memory)
    : layout_(layout),
      member_(member),
      memory_(memory, [](std::byte*) {}),
      words_(reinterpret_cast<std::uint32_t*>(memory)),
      data_(memory + MailboxLayout::kWordBytes) {}

std::byte* PeerMailbox::slot(int from, int lane, int slot) const {
  const int sender = from == (member_ + 1) % layout_.members ? 0 : 1;  // the next member on the ring, or the previous
                                                                       // one
  const Index number = (sender * MailboxLayout::kLanes + lane) * MailboxLayout::kSlots + slot;
  return data_ + layout_.parts_bytes() + number * MailboxLayout::kSlotBytes;
}

std::uint32_t* PeerMailbox::slot_word(int kind, int peer, int lane, int slot) const {
  const int number = (peer * MailboxLayout::kLanes + lane) * MailboxLayout::kSlots + slot;
  const int of_a_kind = layout_.members * MailboxLayout::kLanes * MailboxLayout::kSlots;
  return arrived(MailboxLayout::kPhases, 0) + kind * of_a_kind + number;
}

Mailboxes open_mailboxes(const Group& host, const GroupUse& use) {
  int gpu = 0;
  cuda::check(cudaGetDevice(&gpu));
  const std::shared_ptr<MemoryPublisher> publisher = cuda::memory_publisher();
  const std::uint64_t space = publisher != nullptr ? publisher->space() : process_mark();
  std::shared_ptr<const PeerMailbox> own;
  const std::vector<Member> all = gather_values(host, Member{space, device::id_of_gpu(gpu), &own});
  std::vector<int> numbers;  // of the members' GPUs in this process
  for (const Member& member : all) numbers.push_back(device::number_of_gpu(member.gpu));
  const bool can = host.size() <= kMaxSummed && can_use_stream_words() && cuda::can_share_memory() &&
                   refusal_of_peers().empty() &&
                   std::ranges::all_of(all, [&](const Member& member) { return member.space == space; }) &&
                   std::ranges::all_of(numbers, [&](int number) { return number >= 0 && is_reached(gpu, number); });
  enum Way : std::uint64_t { none, over_pcie, over_nvlink };
  Way mine = none;
  if (can && std::ranges::all_of(numbers, [&](int number) { return has_nvlink(gpu, number); }))
    mine = over_nvlink;
  else if (can && can_flush())
    mine = over_pcie;
  const std::uint64_t least = std::ranges::min(gather_values(host, std::uint64_t{mine}));
  if (least == none) return {};

  std::vector<int> gpus;
  for (const int number : publisher != nullptr ? std::vector<int>{gpu} : numbers) {
    if (std::ranges::count(gpus, number) == 0) gpus.push_back(number);
  }
  const MailboxLayout layout{host.size(), use.messages};
  own = std::make_shared<PeerMailbox>(layout, host.rank(), gpus);
  Mailboxes mailboxes{least == over_nvlink ? Links::nvlink : Links::pcie, {}};
  if (publisher != nullptr) {
    publisher->keep(own);
    const std::vector<std::byte*> memories = gather_values(host, own->memory());
    for (int member = 0; member < host.size(); ++member) {
      std::byte* const memory = memories[static_cast<std::size_t>(member)];
      mailboxes.of_members.push_back(member == host.rank() ? own
                                                           : std::make_shared<PeerMailbox>(layout, member, memory));
    }
    return mailboxes;
  }
  Exec ex;
  barrier(ex, host);  // all have made theirs
  for (const Member& member : all) mailboxes.of_members.push_back(*member.mailbox);
  barrier(ex, host);  // all have copied: `own` may be freed
  return mailboxes;
}

}  // namespace megalith::comm
