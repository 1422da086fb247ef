#include "megalith/comm/nccl/comm_stream.h"

#include <algorithm>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/peer/stream_signals.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/device.h"

namespace megalith::comm {
CommStream::CommStream(const CommStreamKey& key, int max_ctas)
    : key_(key),
      max_ctas_(max_ctas),
      // communication first: other ranks wait for it, and it takes few SMs
      owned_stream_(cuda::make_stream(cuda::StreamPriority::high)),
      stream_(static_cast<cudaStream_t>(owned_stream_.get())),
      ready_(Device::cuda),
      flights_(kInFlight) {
  for (Flight& flight : flights_) flight.done = Event(Device::cuda);
}

ncclResult_t CommStream::connect(const ncclUniqueId& id, int size, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (max_ctas_ != kAnyCtas) config.maxCTAs = max_ctas_;
  ncclComm_t made = nullptr;
  const ncclResult_t status = ncclCommInitRankConfig(&made, size, id, rank, &config);
  comm_.store(made, std::memory_order_release);
  return status;
}

void CommStream::follow(Stream caller) {
  ready_.record(caller);
  ready_.hold({stream_});
}

std::uint64_t CommStream::begin(const Call& call, Stream caller) {
  const bool captured = is_capturing(caller);
  follow(caller);
  const std::lock_guard lock(mutex_);
  Flight& flight = at(next_);
  if (flight.awaited) {
    throw InternalError(str('[', name_of(call.op), "] more than ", kInFlight, " calls are in flight: wait for them"));
  }
  flight.call = call;
  flight.start_s = monotonic_s();
  flight.stage = captured ? Stage::captured : Stage::begun;
  flight.awaited = true;
  return next_++;
}

void CommStream::submitted(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  Flight& flight = at(number);
  flight.done.record({stream_});
  if (flight.stage == Stage::begun) flight.stage = Stage::submitted;
}

void CommStream::wait(std::uint64_t number, Stream stream) {
  Flight& flight = at(number);  // only this thread writes it
  if (!flight.awaited || number + kInFlight < next_) {
    throw InternalError(str("[wait] ", describe(flight.call), " is not in flight: it was waited for before"));
  }
  flight.awaited = false;
  flight.done.hold(stream);
}

bool CommStream::forget(std::uint64_t number) noexcept {
  Flight& flight = at(number);
  flight.awaited = false;
  if (flight.stage != Stage::submitted) return flight.stage == Stage::captured;
  try {
    return flight.done.passed();
  } catch (const std::exception&) {
    return false;
  }
}

std::optional<CommStream::Overdue> CommStream::overdue(double timeout_s) {
  const std::lock_guard lock(mutex_);
  if (next_ > kInFlight) oldest_ = std::max(oldest_, next_ - kInFlight);
  const double now = monotonic_s();
  for (; oldest_ < next_; ++oldest_) {
    const Flight& flight = at(oldest_);
    const double waited_s = now - flight.start_s;
    if (waited_s < timeout_s) break;
    const bool ended = flight.stage == Stage::captured || (flight.stage == Stage::submitted && flight.done.passed());
    if (!ended) return Overdue{flight.call, waited_s};
  }
  return std::nullopt;
}

}  // namespace megalith::comm
