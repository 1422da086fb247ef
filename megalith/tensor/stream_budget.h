#pragma once
#include <atomic>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {

/// Hardware queues of a GPU that a process uses, and the maximum. comm::set_gpu_environment sets
/// CUDA_DEVICE_MAX_CONNECTIONS to it. With more streams than queues two share one, and the later one waits for what the
/// earlier waits for. Two ranks may then wait for each other.
inline constexpr int kHardwareQueues = 32;
/// The hardware queues of this process. comm::set_gpu_environment sets them, before the first stream is made.
inline std::atomic<int> hardware_queues{kHardwareQueues};

/// Counts the streams that one rank has on its GPU. Any thread may give one back.
class StreamBudget {
 public:
  /// Throws ConfigError when all queues have a stream.
  void take() {
    const int queues = hardware_queues;
    if (taken_.fetch_add(1) < queues) return;
    give_back();
    throw ConfigError(str("[streams] a rank needs more than ", queues, " streams of its GPU, which has ", queues,
                          " hardware queues: in a shared queue messages between ranks may hang; use "
                          "fewer of parallel.tp, parallel.pp and data-parallel groups at once"));
  }
  void give_back() noexcept { taken_.fetch_sub(1); }
  int taken() const { return taken_.load(); }

 private:
  std::atomic<int> taken_{0};
};

}  // namespace megalith
