#include "megalith/comm/peer/mailbox.h"

#include <algorithm>

#include <unistd.h>

#include "megalith/base/hash.h"
#include "megalith/tensor/cuda/check.h"

namespace megalith::comm {
namespace {

/// The same for all threads of a process, another one for every process of a job, on whatever host.
std::uint64_t process_mark() {
  static const std::uint64_t mark = [] {
    char host[256] = {};
    static_cast<void>(gethostname(host, sizeof host - 1));
    return fnv1a(host) ^ (static_cast<std::uint64_t>(getpid()) * 0x9e3779b97f4a7c15u);
  }();
  return mark;
}

/// What a member says about itself.
struct Member {
  std::uint64_t process = 0;
  int gpu = 0;
  const std::shared_ptr<const Mailbox>* mailbox = nullptr;  ///< where it will stand, in its process
};

template <class T>
std::vector<T> gathered(const Group& host, const T& own) {
  T mine = own;
  std::vector<T> all(static_cast<std::size_t>(host.size()));
  constexpr auto kBytes = static_cast<Index>(sizeof(T));
  Exec ex;
  all_gather(ex, host, Tensor(&mine, {kBytes}, DType::u8), Tensor(all.data(), {kBytes * host.size()}, DType::u8))
      .wait(ex);
  return all;
}

bool reaches(int own, int other) {
  if (own == other) return true;
  int can = 0;
  cuda::check(cudaDeviceCanAccessPeer(&can, own, other));
  return can != 0;
}

}  // namespace

Mailbox::Mailbox(const MailboxLayout& layout, int member, std::span<const int> gpus)
    : layout_(layout),
      member_(member),
      memory_(layout.bytes(), gpus),
      words_(reinterpret_cast<std::uint32_t*>(memory_.data())),
      data_(memory_.data() + MailboxLayout::kWordBytes) {
  // At first there is room in all slots, whoever sends.
  const Index begin = room(0, 0, 0) - words_, end = room(layout.members, 0, 0) - words_;
  const std::vector<std::uint32_t> ones(static_cast<std::size_t>(end - begin), 1);
  cuda::check(cudaMemcpy(words_ + begin, ones.data(), ones.size() * sizeof(std::uint32_t), cudaMemcpyDefault));
  cuda::check(cudaStreamSynchronize(nullptr));
}

std::byte* Mailbox::slot(int from, int lane, int slot) const {
  const int sender = from == (member_ + 1) % layout_.members ? 0 : 1;  // the next member on the ring, or the previous
  const Index number = (sender * MailboxLayout::kLanes + lane) * MailboxLayout::kSlots + slot;
  return data_ + layout_.parts_bytes() + number * MailboxLayout::kSlotBytes;
}

std::uint32_t* Mailbox::slot_word(int kind, int peer, int lane, int slot) const {
  const int number = (peer * MailboxLayout::kLanes + lane) * MailboxLayout::kSlots + slot;
  const int of_a_kind = layout_.members * MailboxLayout::kLanes * MailboxLayout::kSlots;
  return arrived(MailboxLayout::kPhases, 0) + kind * of_a_kind + number;
}

std::vector<std::shared_ptr<const Mailbox>> open_mailboxes(const Group& host, Messages messages) {
  int gpu = 0;
  cuda::check(cudaGetDevice(&gpu));
  std::shared_ptr<const Mailbox> own;
  const std::vector<Member> all = gathered(host, Member{process_mark(), gpu, &own});
  const auto in_reach = [&](const Member& member) {
    return member.process == process_mark() && reaches(gpu, member.gpu);
  };
  const std::vector<std::uint64_t> agreed = gathered(host, std::uint64_t{std::ranges::all_of(all, in_reach)});
  if (std::ranges::count(agreed, std::uint64_t{0}) > 0) return {};

  std::vector<int> gpus;
  for (const Member& member : all) gpus.push_back(member.gpu);
  own = std::make_shared<Mailbox>(MailboxLayout{host.size(), messages}, host.rank(), gpus);
  Exec ex;
  barrier(ex, host);  // all have made theirs
  std::vector<std::shared_ptr<const Mailbox>> mailboxes;
  for (const Member& member : all) mailboxes.push_back(*member.mailbox);
  barrier(ex, host);  // all have copied: `own` may go
  return mailboxes;
}

}  // namespace megalith::comm
