#include "tests/comm/nccl_bench.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>

#include <cuda_runtime.h>

#include "megalith/tensor/cuda/check.h"

#include "tests/comm/transport_cases.h"

namespace megalith::comm {
namespace {

/// A pair of points in a stream's order and the time between them.
class Stopwatch {
 public:
  Stopwatch() {
    for (cudaEvent_t& event : events_) cuda::check(cudaEventCreate(&event));
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start(Stream stream) { cuda::check(cudaEventRecord(events_[0], cuda::native(stream))); }
  void stop(Stream stream) { cuda::check(cudaEventRecord(events_[1], cuda::native(stream))); }
  /// Once the stream has been synchronised.
  double microseconds() const {
    float milliseconds = 0;
    cuda::check(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  std::array<cudaEvent_t, 2> events_{};
};

/// The median time in microseconds of work(), submitted 20 times after 5.
double median_of(World& world, Exec& ex, const std::function<void()>& work) {
  constexpr int kUntimed = 5, kTimed = 20;
  std::array<Stopwatch, kTimed> watches;
  for (int i = 0; i < kUntimed; ++i) work();
  barrier(ex, everyone(world));
  for (Stopwatch& each : watches) {
    each.start(ex.stream());
    work();
    each.stop(ex.stream());
  }
  ex.synchronize();
  world.check_health();
  std::array<double, kTimed> times{};
  std::ranges::transform(watches, times.begin(), [](const Stopwatch& each) { return each.microseconds(); });
  std::ranges::nth_element(times, times.begin() + kTimed / 2);
  return times[kTimed / 2];
}

}  // namespace

void nccl_bench(World& world) {
  constexpr Index kSmallest = Index{64} << 10, kLargest = Index{256} << 20;
  Exec ex(Device::cuda);
  const Group all = everyone(world);
  const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
  const Index most = kLargest / size_of(DType::bf16);
  const Tensor a = ex.tensor({most}, DType::bf16), b = ex.tensor({most}, DType::bf16);
  for (Index bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
    const Index part = bytes / size_of(DType::bf16) / n, count = part * n;
    const Tensor whole = a.rows(0, count), own = b.rows(0, part), other = b.rows(0, count);
    const auto report = [&](const char* what, const std::function<void()>& work) {
      const double time = median_of(world, ex, work);
      if (world.rank() != 0) return;
      const auto moved = static_cast<double>(count * size_of(DType::bf16));
      std::printf("%-14s %d GPUs, %9.0f bytes: %9.1f us, %6.1f GB/s\n", what, n, moved, time, moved / time * 1e-3);
    };
    report("all_reduce", [&] { all_reduce(ex, all, whole, Reduce::sum).wait(ex); });
    report("reduce_scatter", [&] { reduce_scatter(ex, all, whole, own, Reduce::sum).wait(ex); });
    report("all_gather", [&] { all_gather(ex, all, own, whole).wait(ex); });
    report("send and recv", [&] {
      Pending receive = recv(ex, all, other, previous);
      send(ex, all, whole, next).wait(ex);
      receive.wait(ex);
    });
  }
}

}  // namespace megalith::comm
