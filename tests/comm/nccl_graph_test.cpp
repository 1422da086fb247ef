// Collectives and messages inside a CUDA graph. Only in builds with NCCL.
#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tensor/cuda/check.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/transport_cases.h"

namespace megalith::comm {
namespace {

/// Doubles x on two ranks and passes it round the ring.
void step(Exec& ex, const Group& all, const Tensor& x, const Tensor& y) {
  const int n = all.size(), next = (all.rank() + 1) % n, previous = (all.rank() + n - 1) % n;
  Pending receive = recv(ex, all, y, previous);
  all_reduce(ex, all, x, Reduce::sum).wait(ex);
  send(ex, all, x, next).wait(ex);
  receive.wait(ex);
}

/// step() as a graph.
class Captured {
 public:
  Captured(Exec& ex, const Group& all, const Tensor& x, const Tensor& y) : stream_(cuda::native(ex.stream())) {
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    step(ex, all, x, y);
    cuda::check(cudaStreamEndCapture(stream_, &graph_));
    cuda::check(cudaGraphInstantiate(&ready_, graph_, 0));
  }
  ~Captured() {
    static_cast<void>(cudaGraphExecDestroy(ready_));
    static_cast<void>(cudaGraphDestroy(graph_));
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void launch() { cuda::check(cudaGraphLaunch(ready_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

void replay(World& world) {
  constexpr Index kCount = 1000;
  Exec ex(Device::cuda);
  const Group all = everyone(world);
  const Tensor x = ex.tensor({kCount}, DType::f32), y = ex.tensor({kCount}, DType::f32);
  std::vector<float> values(kCount, 1);
  ex.copy(x.raw(), values.data(), x.bytes());
  step(ex, all, x, y);
  {
    Captured graph(ex, all, x, y);
    for (int i = 0; i < 3; ++i) graph.launch();
    ex.copy(values.data(), y.raw(), y.bytes());
    world.wait_for(ex);
  }
  step(ex, all, x, y);  // and outside of graphs again
  ex.synchronize();
  for (const float value : values) {
    if (value != 16) throw InternalError(str("after 4 steps ", value, ": must be 16"));
  }
}

/// Rank r sends r + to rows to rank `to`, in a graph of an Exec as a step has it; the caller's counts are gone then.
void replay_all_to_all(World& world) {
  const int n = world.size(), me = world.rank();
  Exec ex(Device::cuda);
  const Group all = everyone(world);
  std::vector<Index> counts;
  Index rows = 0;
  for (int peer = 0; peer < n; ++peer) rows += counts.emplace_back(me + peer);
  const Tensor x = ex.tensor({rows, 4}, DType::f32), y = ex.tensor({rows, 4}, DType::f32);
  std::vector<float> values(static_cast<std::size_t>(x.numel()));
  all_to_all(ex, all, x, counts, y, counts).wait(ex);
  world.wait_for(ex);
  const auto memory = [](const Tensor& tensor) {
    return std::span(static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.bytes()));
  };
  Capture capture("training", {memory(x), memory(y)});
  Graph graph = ex.captured(capture, [&] {
    const std::vector<Index> of_capture = counts;
    all_to_all(ex, all, x, of_capture, y, of_capture).wait(ex);
  });
  graph.prepare(ex);
  barrier(ex, all);  // no rank launches before all have made their graphs
  for (int step = 1; step <= 3; ++step) {
    std::fill(values.begin(), values.end(), static_cast<float>(100 * step + me));
    ex.copy(x.raw(), values.data(), x.bytes());
    ex.synchronize();
    graph.launch(ex);
    ex.copy(values.data(), y.raw(), y.bytes());
    world.wait_for(ex);
    auto value = values.begin();
    for (int peer = 0; peer < n; ++peer) {
      for (int i = 0; i < 4 * (me + peer); ++i) {
        const float got = *value++, want = static_cast<float>(100 * step + peer);
        if (got != want) throw InternalError(str("step ", step, ", from rank ", peer, ": ", got, ": must be ", want));
      }
    }
  }
}

/// Both replay once, then the first rank alone.
void replay_alone(World& world) {
  Exec ex(Device::cuda);
  const Group all = everyone(world);
  const Tensor x = ex.tensor({1000}, DType::f32), y = ex.tensor({1000}, DType::f32);
  step(ex, all, x, y);
  Captured graph(ex, all, x, y);
  barrier(ex, all);  // no rank launches before all have made their graphs
  const WatchedReplays replays(world, ex);
  graph.launch();
  world.wait_for(ex);
  if (world.rank() == 0) {
    graph.launch();
    world.wait_for(ex);
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(5));
  }
}

/// A capture of rows is refused on every rank. Afterwards the ranks communicate as before.
void capture_rows(World& world) {
  Exec ex(Device::cuda);
  const Group rows = world.group("rows", {0, 1}, {.transport = Transport::kernels});
  const Tensor mine = ex.tensor({3, 2}, DType::f32), out = ex.tensor({4, 2}, DType::f32);
  const RowSums sums{.begin = ex.tensor({5}, DType::i32), .places = ex.tensor({1, 2}, DType::i32), .weights = {}};
  std::vector<std::int32_t> begin = {0, 0, 1, 1, 1}, places = {1 - world.rank(), 2};
  std::vector<float> values = {1, 2, 3, 4, 5, static_cast<float>(world.rank())}, result(8);
  ex.copy(sums.begin.raw(), begin.data(), sums.begin.bytes());
  ex.copy(sums.places.raw(), places.data(), sums.places.bytes());
  ex.copy(mine.raw(), values.data(), mine.bytes());
  ex.synchronize();
  const auto sum = [&] { gather_sum_rows(ex, rows, mine, sums, out, Write::overwrite).wait(ex); };
  const auto memory = [](const Tensor& tensor) {
    return std::span(static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.bytes()));
  };
  Capture capture("training", {memory(mine), memory(out), memory(sums.begin), memory(sums.places)});
  std::string text = "nothing was thrown";
  try {
    static_cast<void>(ex.captured(capture, sum));
  } catch (const BackendError& error) {
    text = error.what();
  }
  if (text.find("[gather_sum_rows] group rows of 2 ranks: no graph can contain this call") == std::string::npos)
    throw InternalError(text);
  sum();
  ex.synchronize();
  ex.copy(result.data(), out.raw(), out.bytes());
  world.wait_for(ex);
  if (result != std::vector<float>{0, 0, 5, static_cast<float>(1 - world.rank()), 0, 0, 0, 0})
    throw InternalError(str("row 1 holds ", result[2], ", ", result[3]));
}

TEST(NcclGraph, RefusesRowsThatTheHostCounts) {
  if (device::num_gpus() < 2) GTEST_SKIP() << "needs 2 GPUs, this machine has " << device::num_gpus();
  EXPECT_NO_THROW(run_gpu_ranks(2, capture_rows, {.timeout_s = 60}));
}

TEST(NcclGraph, ReplaysCollectivesAndMessages) {
  if (device::num_gpus() < 2) GTEST_SKIP() << "needs 2 GPUs, this machine has " << device::num_gpus();
  EXPECT_NO_THROW(run_gpu_ranks(2, replay, {.timeout_s = 60}));
}

TEST(NcclGraph, ReplaysAnAllToAll) {
  if (device::num_gpus() < 2) GTEST_SKIP() << "needs 2 GPUs, this machine has " << device::num_gpus();
  EXPECT_NO_THROW(run_gpu_ranks(2, replay_all_to_all, {.timeout_s = 60}));
}

TEST(NcclGraph, AnAbsentRankIsAHang) {
  if (device::num_gpus() < 2) GTEST_SKIP() << "needs 2 GPUs, this machine has " << device::num_gpus();
  std::string text = "nothing was thrown";
  try {
    run_gpu_ranks(2, replay_alone, {.timeout_s = 2});
  } catch (const HangError& error) {
    text = error.what();
  }
  EXPECT_TRUE(text.starts_with("rank 0: [gpu] groups world: rank 0 waited 3.")) << text;
  EXPECT_TRUE(text.ends_with(" s for its GPU, which may wait in a captured call for rank 1")) << text;
}

}  // namespace
}  // namespace megalith::comm
