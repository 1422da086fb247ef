#include <cmath>
#include <thread>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/library.h"
#include "megalith/ops/norm.h"
#include "megalith/ops/qk_head_norm.h"
#include "megalith/ops/qk_norm.h"
#include "megalith/tensor/cuda/device.h"
#include "megalith/tensor/stream_budget.h"

#include "tests/io/temp_dir.h"
#include "tests/ops/device_cases.h"

namespace megalith::ops {
namespace {

// bf16 rounds by at most 2^-8 of a number, once or twice on the way (its intermediates too), f16 by 2^-11.
const auto kRows = ::testing::Values(DeviceRow{Device::cuda, DType::f32, 5e-6, 5e-6, 1e-5},
                                     DeviceRow{Device::cuda, DType::bf16, 1e-2, 1e-2, 1e-3},
                                     DeviceRow{Device::cuda, DType::f16, 2e-3, 2e-3, 1e-3});
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceOps, kRows, name_of_row);
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceAttention, kRows, name_of_row);

/// The loss of rows of zeros, which are all words' logits alike.
TEST(GpuCrossEntropy, AGraphThatWasCapturedOutlivesAnEvaluation) {
  MEGALITH_NEEDS_GPUS(1);
  constexpr Index kTokens = 600, kWords = 16384;
  device::use(Device::cuda, 0);
  Exec ex(Device::cuda);
  start_libraries(ex);
  const Tensor logits = ex.tensor({kTokens, kWords}, DType::bf16), targets = ex.tensor({kTokens}, DType::i32),
               loss = ex.tensor({kTokens}, DType::f32), sum = ex.tensor({1}, DType::f64),
               state = ex.tensor({Index{sizeof(StepState)}}, DType::u8);
  const auto zero = [&](const Tensor& tensor) {
    device::fill_bytes(Device::cuda, tensor.raw(), 0, tensor.bytes(), ex.stream());
  };
  for (const Tensor& tensor : {targets, state}) zero(tensor);
  CrossEntropy training{
      .logits = logits, .targets = targets, .step_state = state, .loss = loss, .loss_sum = sum, .vocab_size = kWords};
  CrossEntropy evaluation = training;
  evaluation.step_state = {};
  const auto loss_of = [&](const auto& run) {
    for (const Tensor& tensor : {logits, loss, sum}) zero(tensor);
    run();
    double total = 0;
    ex.copy(&total, sum.raw(), sum.bytes());
    ex.synchronize();
    return total / kTokens;
  };
  const double want = std::log(static_cast<double>(kWords));
  EXPECT_NEAR(loss_of([&] { cross_entropy(ex, training); }), want, 1e-4);
  megalith::cuda::begin_capture(ex.stream());
  cross_entropy(ex, training);
  const megalith::cuda::CapturedNodes nodes = megalith::cuda::end_capture(ex.stream());
  const std::shared_ptr<void> graph = megalith::cuda::instantiate(nodes, ex.stream());
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(loss_of([&] { cross_entropy(ex, evaluation); }), want, 1e-4);
    EXPECT_NEAR(loss_of([&] { megalith::cuda::launch(graph.get(), ex.stream()); }), want, 1e-4);
  }
}

TEST(GpuStreams, ARankHasNoMoreThanHardwareQueues) {
  MEGALITH_NEEDS_GPUS(1);
  std::thread([] {  // a rank
    std::vector<OwnedStream> streams;
    for (int i = 0; i < kHardwareQueues; ++i) streams.emplace_back(Device::cuda);
    EXPECT_THROW(OwnedStream(Device::cuda), ConfigError);
    streams.pop_back();
    EXPECT_NO_THROW(OwnedStream(Device::cuda));
  })
      .join();
}

// What resolve() lets a recipe ask of a GPU (config/run_plan.cpp), which DeviceOps.Norms takes, and no more.
TEST(GpuNorms, TakeNoRowsOverTheirLimit) {
  MEGALITH_NEEDS_GPUS(1);
  Exec ex(Device::cuda);
  const Index columns = kMaxNormColumnsOnGpu + 1;
  const Tensor x = ex.tensor({1, columns}, DType::f32), row = ex.tensor({columns}, DType::f32),
               statistic = ex.tensor({1}, DType::f32);
  const auto run = [&] {
    norm_forward(ex, {.x = x, .gamma = row, .beta = row, .y = x, .mean = statistic, .rstd = statistic});
  };
  EXPECT_EQ(error_of<BackendError>(run),
            "[norm] columns = 16385: must be at most 16384 on a GPU; use a smaller hidden size");
}

// Heads as wide as attention takes, which DeviceOps.QkHeadNorms takes, and no wider.
TEST(GpuNorms, TakeNoHeadsOverTheirLimit) {
  MEGALITH_NEEDS_GPUS(1);
  Exec ex(Device::cuda);
  const Index head_dim = kMaxHeadDimOnGpu + 1;
  const Tensor qkv = ex.tensor({1, 3 * head_dim}, DType::f32), row = ex.tensor({head_dim}, DType::f32),
               statistic = ex.tensor({1, 2}, DType::f32);
  const auto forward = [&] {
    qk_head_norm(
        ex,
        {.qkv = qkv, .gamma_q = row, .gamma_k = row, .out = qkv, .rstd = statistic, .num_heads = 1, .num_kv_heads = 1});
  };
  const auto backward = [&] {
    qk_head_norm_backward(ex, {.dout = qkv,
                               .qkv = qkv,
                               .gamma_q = row,
                               .gamma_k = row,
                               .rstd = statistic,
                               .dqkv = qkv,
                               .gamma_q_grad = row,
                               .gamma_k_grad = row,
                               .num_heads = 1,
                               .num_kv_heads = 1});
  };
  EXPECT_EQ(error_of<BackendError>(forward), "[qk_head_norm] head_dim = 257: must be at most 256 on a GPU");
  EXPECT_EQ(error_of<BackendError>(backward), "[qk_head_norm_backward] head_dim = 257: must be at most 256 on a GPU");
}

}  // namespace
}  // namespace megalith::ops
