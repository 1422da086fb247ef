#pragma once
#include <map>
#include <mutex>
#include <utility>

namespace megalith::cuda {

/// How much shared memory kernels were allowed beyond the 48 KiB that all may have, by GPU. A limit only rises: a graph
/// that was captured with a kernel needs the limit of then. Threads may ask at once.
class SharedLimits {
 public:
  /// Calls set(bytes) where the limit must rise to `bytes`; an error of it leaves the limit.
  template <class Set>
  void raise(int gpu, const void* kernel, int bytes, const Set& set) {
    const std::lock_guard lock(mutex_);
    int& limit = limits_[{gpu, kernel}];
    if (limit >= bytes) return;
    set(bytes);
    limit = bytes;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, const void*>, int> limits_;
};

/// Which of a multiprocessor's memory is for a kernel's blocks: as CUDA chooses, or as much as there is, so that two
/// blocks fit that each take what a block may.
enum class Carveout { chosen, most };

/// A kernel may take so many bytes of dynamic shared memory per block on the GPU that the calling thread uses. Said
/// before the first step, and again where it costs a look into a table.
void allow_shared_memory(const void* kernel, int bytes, Carveout carveout = Carveout::chosen);
template <class... Params>
void allow_shared_memory(void (*kernel)(Params...), int bytes, Carveout carveout = Carveout::chosen) {
  allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes, carveout);
}

}  // namespace megalith::cuda
