#include "megalith/model/step_inputs.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/twin.h"

namespace megalith {
namespace {

// The inputs of a step reach the GPU while the step before still runs: a fourth load needs the host memory of the
// second, and gets it while the GPU has yet to end what was handed to it before that one.
TEST(GpuStepInputs, AreUploadedBesideTheStepBefore) {
  MEGALITH_NEEDS_GPUS(1);
  constexpr Index kBytes = Index{1} << 20, kWorkBytes = Index{1} << 30;
  constexpr int kMicrobatches = 2, kLoads = 4, kTimes = 300;  // 0.3 ms each
  device::use(Device::cuda, 0);
  Exec ex(Device::cuda);
  MemoryLedger ledger(Device::cuda);
  model::StepInputs inputs(ledger, "inputs", Device::cuda, kMicrobatches, kBytes);
  const Buffer work(kWorkBytes, Device::cuda), seen(kLoads * kMicrobatches * kBytes, Device::cuda);
  Event worked(Device::cuda);

  const auto value = [](int load, int microbatch) { return static_cast<std::byte>(16 * load + microbatch + 1); };
  bool worked_before_fourth = true;
  for (int load = 0; load < kLoads; ++load) {
    if (load == 1) {
      for (int i = 0; i < kTimes; ++i) device::fill_bytes(Device::cuda, work.data(), i, work.bytes(), ex.stream());
      worked.record(ex.stream());
      if (worked.passed()) GTEST_SKIP() << "work is not handed over ahead here: CUDA_LAUNCH_BLOCKING?";
    }
    inputs.load(ex, kMicrobatches, [&](int microbatch, std::span<std::byte> host) {
      if (load == 3 && microbatch == 0) worked_before_fourth = worked.passed();
      std::ranges::fill(host, value(load, microbatch));
    });
    for (int i = 0; i < kMicrobatches; ++i)
      ex.copy(seen.data() + (load * kMicrobatches + i) * kBytes, inputs.block(i).raw(), kBytes);
  }
  EXPECT_FALSE(worked_before_fourth) << "no upload ran beside the work, or that took less time than the uploads";

  std::vector<std::byte> got(static_cast<std::size_t>(seen.bytes()));
  device::copy(Device::cuda, got.data(), seen.data(), seen.bytes(), ex.stream());
  ex.synchronize();
  for (int load = 0; load < kLoads; ++load) {
    for (int i = 0; i < kMicrobatches; ++i) {
      const auto begin = got.begin() + (load * kMicrobatches + i) * kBytes;
      EXPECT_TRUE(std::all_of(begin, begin + kBytes, [&](std::byte byte) { return byte == value(load, i); }))
          << "load " << load << ", microbatch " << i;
    }
  }
}

}  // namespace
}  // namespace megalith
