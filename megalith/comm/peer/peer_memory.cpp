#include "megalith/comm/peer/peer_memory.h"

#include <cerrno>
#include <exception>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/patience.h"

namespace megalith::comm {
namespace {

template <class T>
std::span<std::byte> bytes_of_value(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

PeerMemory::PeerMemory(std::unique_ptr<ProcessLinks> links, std::unique_ptr<PeerMapper> mapper, Options options)
    : links_(std::move(links)),
      mapper_(std::move(mapper)),
      options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  if (!wake_.is_open()) throw IoError("[memory] no eventfd: too many open files (ulimit -n)");
  thread_ = std::thread([this] { serve(); });
}

PeerMemory::~PeerMemory() {
  close();
  for (const auto& [address, bytes] : mapped_) mapper_->unmap(address, bytes);
}

void PeerMemory::close() noexcept {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.number(), &one, sizeof(one)));
  thread_.join();
  std::vector<std::shared_ptr<const void>> kept;  // freed without the lock, which withdraw() takes
  {
    const std::lock_guard lock(mutex_);
    for (int member = 0; member < links_->size(); ++member) {
      links_->to(member) = Descriptor();
      links_->from(member) = Descriptor();
    }
    kept = std::move(kept_);
  }
}

void PeerMemory::keep(std::shared_ptr<const void> memory) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(memory));
}

std::byte* PeerMemory::take_addresses(Index bytes) {
  const std::lock_guard lock(mutex_);
  std::byte* const part = options_.own.take(bytes);
  if (part != nullptr) return part;
  throw BackendError(str("[memory] no addresses are left for ", human_bytes(bytes), " that GPUs of several processes ",
                         "share: set parallel.transfers = \"kernels\", with which none is shared"));
}

void PeerMemory::publish(std::byte* address, Index bytes, int descriptor) {
  const std::lock_guard lock(mutex_);
  const int refusing = ask_all({Kind::map, 0, reinterpret_cast<std::uint64_t>(address), bytes}, descriptor);
  if (refusing < 0) return;
  throw BackendError(str("[memory] rank ", world_rank(refusing), " cannot map ", human_bytes(bytes), " of rank ",
                         world_rank(links_->rank()),
                         "'s GPU: set parallel.transfers = \"kernels\", with which processes share no memory"));
}

void PeerMemory::withdraw(std::byte* address, Index bytes, Published published) noexcept {
  const std::lock_guard lock(mutex_);
  if (published == Published::yes) {
    try {
      ask_all({Kind::unmap, 0, reinterpret_cast<std::uint64_t>(address), bytes}, -1);
    } catch (const std::exception&) {
      return;  // one has not answered, and may still have it there: the addresses stay taken
    }
  }
  options_.own.give_back(address, bytes);
}

int PeerMemory::ask_all(const Request& request, int descriptor) {
  if (!silent_.empty()) throw HangError(silent_);
  for (int member = 0; member < links_->size(); ++member) {
    Descriptor& link = links_->to(member);
    if (link.is_open() && !ProcessLinks::send(link, std::as_bytes(std::span(&request, 1)), descriptor))
      link = Descriptor();
  }
  int refusing = -1;
  for (int member = 0; member < links_->size(); ++member) {
    if (links_->to(member).is_open() && !await_answer(member, request) && refusing < 0) refusing = member;
  }
  return refusing;
}

/// Also true for a member that has ended its connection, and needs the memory no more.
bool PeerMemory::await_answer(int member, const Request& request) {
  constexpr int kLookEvery_ms = 250;
  Descriptor& link = links_->to(member);
  constexpr double kUnwinding_s = 1;  // a stopped member must not hold up the report of its error
  Patience patience(std::uncaught_exceptions() > 0 ? kUnwinding_s : options_.timeout_s);
  for (;;) {
    auto answer = Answer::refused;
    Descriptor none;
    const auto received = ProcessLinks::receive(link, bytes_of_value(answer), none);
    if (received == ProcessLinks::Received::message) return answer == Answer::done;
    if (received == ProcessLinks::Received::closed) {
      link = Descriptor();
      return true;
    }
    if (const double now = monotonic_s(); patience.is_over(now)) {
      silent_ = str("[memory] rank ", world_rank(links_->rank()), " waited ", waited_text(patience.waited_s(now)),
                    " for rank ", world_rank(member), " to ", request.kind == Kind::map ? "map " : "unmap ",
                    human_bytes(request.bytes), " of its GPU's memory");
      throw HangError(silent_);
    }
    pollfd readable{link.number(), POLLIN, 0};
    ::poll(&readable, 1, kLookEvery_ms);
  }
}

void PeerMemory::serve() {
  mapper_->begin_thread();
  std::vector<int> members;  // whose requests may still come
  for (int member = 0; member < links_->size(); ++member) {
    if (links_->from(member).is_open()) members.push_back(member);
  }
  for (;;) {
    std::vector<pollfd> readable{{wake_.number(), POLLIN, 0}};
    for (const int member : members) readable.push_back({links_->from(member).number(), POLLIN, 0});
    if (::poll(readable.data(), readable.size(), -1) < 0) continue;
    if (readable[0].revents != 0) return;
    std::vector<int> left;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (readable[i + 1].revents == 0 || serve_one(members[i])) left.push_back(members[i]);
    }
    members = std::move(left);
  }
}

bool PeerMemory::serve_one(int member) {
  const Descriptor& link = links_->from(member);
  Request request;
  Descriptor descriptor;
  const auto received = ProcessLinks::receive(link, bytes_of_value(request), descriptor);
  if (received == ProcessLinks::Received::nothing_yet) return true;
  if (received == ProcessLinks::Received::closed) return false;
  const Answer answer = carry_out(request, descriptor);
  return ProcessLinks::send(link, std::as_bytes(std::span(&answer, 1)));
}

PeerMemory::Answer PeerMemory::carry_out(const Request& request, const Descriptor& descriptor) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that means the same in all processes
  auto* const address = reinterpret_cast<std::byte*>(request.address);
  try {
    if (request.kind == Kind::map) {
      if (!descriptor.is_open()) return Answer::refused;
      mapper_->map(address, request.bytes, descriptor.number());
      mapped_[address] = request.bytes;
    } else if (mapped_.erase(address) > 0) {  // a member may not have been able to map it
      mapper_->unmap(address, request.bytes);
    }
    return Answer::done;
  } catch (const std::exception&) {
    return Answer::refused;
  }
}

}  // namespace megalith::comm
