#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include "megalith/comm/channel.h"

namespace megalith::comm {

/// The calls on a communicator with its stream. They are those of the whole group (op = barrier stands for all
/// collectives), or the messages to or from one peer with one lane number.
struct CommStreamKey {
  Op op = Op::barrier;
  int peer = -1;
  int lane = 0;
  bool operator==(const CommStreamKey&) const = default;
};

/// A communicator with its own stream and events. Its calls run in the order in which they are submitted, concurrently
/// with everything else. All of it is made at the start, so a call allocates nothing and creates no event. The rank's
/// thread submits and waits; the watchdog's thread observes.
///
/// The communicators are NCCL's blocking kind. A non-blocking one starts a thread for every call.
class CommStream {
 public:
  /// At most this many calls may be submitted and not waited for.
  static constexpr std::uint64_t kInFlight = 1024;

  static constexpr int kAnyCtas = 0;

  /// The stream and the events, on the GPU of the calling thread. No communicator yet. `max_ctas`: CTAs that a call may
  /// hold, or kAnyCtas.
  CommStream(const CommStreamKey& key, int max_ctas);
  CommStream(const CommStream&) = delete;
  CommStream& operator=(const CommStream&) = delete;

  const CommStreamKey& key() const { return key_; }
  cudaStream_t stream() const { return stream_; }
  /// Null before connect().
  ncclComm_t comm() const { return comm_.load(std::memory_order_acquire); }
  /// Makes the communicator of `size` ranks, in which this one is `rank`. Within grouped(), which then waits for all of
  /// them. From here on comm() can be aborted.
  ncclResult_t connect(const ncclUniqueId& id, int size, int rank);

  /// A call begins. Its data is ready at the present point of `caller`. Returns its number, from 0. Throws
  /// InternalError if kInFlight calls have not been waited for.
  std::uint64_t begin(const Call& call, Stream caller);
  /// Work that is submitted from here on starts after the present point of `caller`.
  void follow(Stream caller);
  /// The call ends at the present point of the stream. Called a second time when a deferred part of it has been
  /// submitted.
  void submitted(std::uint64_t number);
  /// Later work of `stream` starts after the call. Throws InternalError if the call was waited for before.
  void wait(std::uint64_t number, Stream stream);
  /// Nobody will wait for the call. False if it may still access its memory.
  bool forget(std::uint64_t number) noexcept;

  struct Overdue {
    Call call;
    double waited_s = 0;
  };
  /// The oldest call that has not ended within `timeout_s`. Calls that were captured into a CUDA graph cannot be
  /// observed (HostWait). Throws BackendError if the GPU has failed.
  std::optional<Overdue> overdue(double timeout_s);

 private:
  enum class Stage : std::uint8_t { begun, submitted, captured };
  struct Flight {
    Call call;
    double start_s = 0;
    Event done;
    Stage stage = Stage::begun;
    bool awaited = false;  // its ticket was returned
  };
  Flight& at(std::uint64_t number) { return flights_[number % kInFlight]; }

  CommStreamKey key_;
  int max_ctas_;
  std::shared_ptr<void> owned_stream_;
  cudaStream_t stream_ = nullptr;
  std::atomic<ncclComm_t> comm_{nullptr};
  Event ready_;
  std::mutex mutex_;  // guards the following members; held for at most a few event calls
  std::vector<Flight> flights_;
  std::uint64_t next_ = 0, oldest_ = 0;  // oldest_: all calls before it have ended
};

}  // namespace megalith::comm
