#include "megalith/comm/peer/stream_signals.h"

#include <array>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/driver.h"

namespace megalith::comm {
namespace {

CUstreamBatchMemOpParams native(const SignalStep& step, Waits waits) {
  CUstreamBatchMemOpParams params{};
  const auto address = reinterpret_cast<CUdeviceptr>(step.word);
  if (step.kind == SignalStep::Kind::wait) {
    unsigned flags = CU_STREAM_WAIT_VALUE_GEQ;
    if (waits == Waits::flushing) flags |= CU_STREAM_WAIT_VALUE_FLUSH;
    params.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                        .address = address,
                        .value = step.value,
                        .flags = flags,
                        .alias = 0};
  } else {
    params.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                         .address = address,
                         .value = step.value,
                         .flags = CU_STREAM_WRITE_VALUE_DEFAULT,
                         .alias = 0};
  }
  return params;
}

}  // namespace

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(cuda::native(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

bool can_flush() { return cuda::has_attribute(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES); }

bool can_use_stream_words() { return MEGALITH_DRIVER(cuStreamBatchMemOp) != nullptr; }

void StreamSignals::add(const SignalStep& step) {
  if (steps_.count == kMaxSignalSteps)
    throw InternalError(str("[StreamSignals] more than ", kMaxSignalSteps, " steps"));
  steps_.at[static_cast<std::size_t>(steps_.count++)] = step;
}

void StreamSignals::submit(Stream stream) {
  if (is_capturing(stream)) {
    run_signals(stream, steps_);
  } else {
    std::array<CUstreamBatchMemOpParams, kMaxSignalSteps> params{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(steps_.count); ++i) params[i] = native(steps_.at[i], waits_);
    cuda::check_driver(MEGALITH_DRIVER(cuStreamBatchMemOp)(cuda::native(stream), static_cast<unsigned>(steps_.count),
                                                           params.data(), 0));
  }
  steps_.count = 0;
}

}  // namespace megalith::comm
