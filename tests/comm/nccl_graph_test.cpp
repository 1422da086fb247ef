// Collectives and messages inside a CUDA graph. Only in builds with NCCL.
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

void replay(World& world) {
  constexpr Index kCount = 1000;
  Exec ex(Device::cuda);
  const Group all = everyone(world);
  const Tensor x = ex.tensor({kCount}, DType::f32), y = ex.tensor({kCount}, DType::f32);
  std::vector<float> values(kCount, 1);
  ex.copy(x.raw(), values.data(), x.bytes());
  step(ex, all, x, y);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  const cudaStream_t stream = cuda::native(ex.stream());
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  step(ex, all, x, y);
  cuda::check(cudaStreamEndCapture(stream, &graph));
  cuda::check(cudaGraphInstantiate(&ready, graph, 0));
  for (int i = 0; i < 3; ++i) cuda::check(cudaGraphLaunch(ready, stream));
  ex.copy(values.data(), y.raw(), y.bytes());
  ex.synchronize();
  world.check_health();
  cuda::check(cudaGraphExecDestroy(ready));
  cuda::check(cudaGraphDestroy(graph));
  step(ex, all, x, y);  // and outside of graphs again
  ex.synchronize();
  for (const float value : values) {
    if (value != 16) throw InternalError(str("after 4 steps ", value, ": must be 16"));
  }
}

TEST(NcclGraph, ReplaysCollectivesAndMessages) {
  if (device::num_gpus() < 2) GTEST_SKIP() << "needs 2 GPUs, this machine has " << device::num_gpus();
  EXPECT_NO_THROW(run_gpu_ranks(2, replay, {.timeout_s = 60}));
}

}  // namespace
}  // namespace megalith::comm
