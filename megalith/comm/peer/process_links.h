#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "megalith/comm/group.h"

namespace megalith::comm {

/// An open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& from) noexcept : number_(std::exchange(from.number_, -1)) {}
  Descriptor& operator=(Descriptor&& from) noexcept {
    std::swap(number_, from.number_);
    return *this;
  }
  ~Descriptor();
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

/// Connections between processes of one host (Unix sockets), over which file descriptors go: for each ordered pair one,
/// for the requests of the first to the second and their answers. Names of sockets are random numbers without a file,
/// so nothing is left of a killed process. Processes of other users are refused.
class ProcessLinks {
 public:
  /// Null on all members if a member cannot reach another one, as in containers with networks of their own. Collective
  /// over `host`.
  static std::unique_ptr<ProcessLinks> connect(const Group& host);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(to_.size()); }
  /// The connections for this process's requests to each member, and for those of each member. None to itself, nor to
  /// one that has ended the connection.
  Descriptor& to(int member) { return to_[static_cast<std::size_t>(member)]; }
  Descriptor& from(int member) { return from_[static_cast<std::size_t>(member)]; }

  /// Sends bytes, and a file descriptor unless it is below 0, as one message. False if the other end is closed.
  static bool send(const Descriptor& link, std::span<const std::byte> bytes, int descriptor = -1);
  enum class Received : std::uint8_t { message, nothing_yet, closed };
  /// Receives a message of exactly so many bytes, without waiting for it. One of another size counts as closed.
  static Received receive(const Descriptor& link, std::span<std::byte> bytes, Descriptor& descriptor);

 private:
  ProcessLinks(int rank, int size)
      : rank_(rank), to_(static_cast<std::size_t>(size)), from_(static_cast<std::size_t>(size)) {}

  int rank_;
  std::vector<Descriptor> to_, from_;
};

}  // namespace megalith::comm
