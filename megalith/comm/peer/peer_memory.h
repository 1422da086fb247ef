#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "megalith/comm/peer/address_range.h"
#include "megalith/comm/peer/process_links.h"
#include "megalith/tensor/memory_publisher.h"

namespace megalith::comm {

/// Maps memory of other processes into this one.
class PeerMapper {
 public:
  virtual ~PeerMapper() = default;
  /// The calling thread makes all later calls but the last ones, of a destructor.
  virtual void begin_thread() {}
  /// Throws if it cannot be done.
  virtual void map(std::byte* address, Index bytes, int descriptor) = 0;
  virtual void unmap(std::byte* address, Index bytes) noexcept = 0;
};

/// Memory of GPUs that the processes of one host share: one process's end. Each process takes addresses from a range of
/// its own, which all have reserved. It sends what it publishes to all others, and waits for their answers. A thread of
/// each process serves the requests of the others at any time, so nobody waits for what another rank computes.
///
/// Published memory lives until the last process has unmapped it, also if its owner is killed. A process that has ended
/// its connections is asked no more.
class PeerMemory final : public MemoryPublisher {
 public:
  /// `own`: this process's addresses. `space`: the same number in all processes. Waits for answers end after
  /// `timeout_s`. Errors name members by `world_ranks`.
  struct Options {
    AddressRange own;
    std::uint64_t space = 0;
    double timeout_s = 600;
    std::vector<int> world_ranks;
  };
  PeerMemory(std::unique_ptr<ProcessLinks> links, std::unique_ptr<PeerMapper> mapper, Options options);
  ~PeerMemory() override;

  std::uint64_t space() const override { return options_.space; }
  std::byte* take_addresses(Index bytes) override;
  void publish(std::byte* address, Index bytes, int descriptor) override;
  void withdraw(std::byte* address, Index bytes, Published published) noexcept override;

  void keep(std::shared_ptr<const void> memory) override;
  /// Ends the connections, and frees what was kept. What others have published stays mapped until the end of this.
  void close() noexcept;

 private:
  enum class Kind : std::uint32_t { map, unmap };
  struct Request {
    Kind kind = Kind::map;
    std::uint32_t unused = 0;
    std::uint64_t address = 0;
    Index bytes = 0;
  };
  enum class Answer : std::uint8_t { done, refused };

  int world_rank(int member) const { return options_.world_ranks[static_cast<std::size_t>(member)]; }
  /// Asks all members. Returns the first that refuses, or -1. Throws HangError.
  int ask_all(const Request& request, int descriptor);
  bool await_answer(int member, const Request& request);
  void serve();
  /// False when the connection has ended.
  bool serve_one(int member);
  Answer carry_out(const Request& request, const Descriptor& descriptor) noexcept;

  std::unique_ptr<ProcessLinks> links_;
  std::unique_ptr<PeerMapper> mapper_;
  Options options_;
  std::mutex mutex_;  // of requests, addresses and what is kept
  std::vector<std::shared_ptr<const void>> kept_;
  std::string silent_;  // the error of a member that did not answer: it may lack what is published from then on
  std::map<std::byte*, Index> mapped_;  // of others; the serving thread's, and the destructor's
  Descriptor wake_;
  std::thread thread_;
};

}  // namespace megalith::comm
