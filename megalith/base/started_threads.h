#pragma once
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace megalith {

/// Up to `count` threads that run work(), and are joined at the end. Fewer where the system starts no more of them
/// (`ulimit -u`, `ulimit -v`, a control group): for work of which every thread takes what is left.
class StartedThreads {
 public:
  template <class Work>
  StartedThreads(int count, const Work& work) {
    try {
      for (int i = 0; i < count; ++i) threads_.emplace_back(work);
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
  }
  StartedThreads(const StartedThreads&) = delete;
  StartedThreads& operator=(const StartedThreads&) = delete;

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace megalith
