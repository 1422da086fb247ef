#include "megalith/comm/peer/process_links.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "megalith/base/host.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/gather_values.h"

namespace megalith::comm {
namespace {

Descriptor new_socket(int flags = 0) { return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0)); }

/// The address of a random number: a name without a file, which begins with a zero byte.
struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;

  explicit Address(std::uint64_t word) {
    const std::string text = str("megalith-", ::getuid(), '-', hex64(word));
    name.sun_family = AF_UNIX;
    text.copy(name.sun_path + 1, sizeof(name.sun_path) - 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

/// Whether the other end belongs to this process's user. Anybody may connect to a name without a file.
bool is_of_own_user(const Descriptor& link) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return ::getsockopt(link.number(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == ::getuid();
}

/// Room for one file descriptor beside a message.
union Beside {
  cmsghdr alignment;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

bool on_all(const Group& host, bool own) {
  return std::ranges::min(gather_values(host, static_cast<std::uint8_t>(own ? 1 : 0))) == 1;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

bool ProcessLinks::send(const Descriptor& link, std::span<const std::byte> bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // only read
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Beside beside{};
  if (descriptor >= 0) {
    message.msg_control = beside.bytes.data();
    message.msg_controllen = beside.bytes.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(link.number(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

ProcessLinks::Received ProcessLinks::receive(const Descriptor& link, std::span<std::byte> bytes,
                                             Descriptor& descriptor) {
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Beside beside{};
  message.msg_control = beside.bytes.data();
  message.msg_controllen = beside.bytes.size();
  const ssize_t received = ::recvmsg(link.number(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return Received::nothing_yet;
  if (received < 0) return Received::closed;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
      header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(int));
    descriptor = Descriptor(number);
  }
  return received == static_cast<ssize_t>(bytes.size()) ? Received::message : Received::closed;
}

std::unique_ptr<ProcessLinks> ProcessLinks::connect(const Group& host) {
  std::unique_ptr<ProcessLinks> links(new ProcessLinks(host.rank(), host.size()));
  const std::uint64_t word = random_word();
  const Address own(word);
  const Descriptor listener = new_socket(SOCK_NONBLOCK);
  bool can = listener.is_open() && ::bind(listener.number(), own.get(), own.bytes) == 0 &&
             ::listen(listener.number(), 4 * host.size()) == 0;
  const std::vector<std::uint64_t> words = gather_values(host, word);
  if (!on_all(host, can)) return nullptr;
  const std::int32_t self = host.rank();
  for (int member = 0; member < host.size(); ++member) {
    if (member == host.rank()) continue;
    const Address theirs(words[static_cast<std::size_t>(member)]);
    Descriptor link = new_socket();  // connects without waiting for the other to accept
    can = can && link.is_open() && ::connect(link.number(), theirs.get(), theirs.bytes) == 0 && is_of_own_user(link) &&
          send(link, std::as_bytes(std::span(&self, 1)));
    links->to(member) = std::move(link);
  }
  if (!on_all(host, can)) return nullptr;
  for (;;) {
    Descriptor link(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!link.is_open()) break;
    std::int32_t member = -1;
    Descriptor none;
    const bool greets =
        is_of_own_user(link) && receive(link, std::as_writable_bytes(std::span(&member, 1)), none) == Received::message;
    if (greets && member >= 0 && member < host.size() && member != self) links->from(member) = std::move(link);
  }
  for (int member = 0; member < host.size(); ++member) can = can && (member == self || links->from(member).is_open());
  return on_all(host, can) ? std::move(links) : nullptr;
}

}  // namespace megalith::comm
