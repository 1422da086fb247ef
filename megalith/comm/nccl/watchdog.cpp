#include "megalith/comm/nccl/watchdog.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include <cuda_runtime.h>
#include <nccl.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/hang_verdict.h"
#include "megalith/comm/nccl/nccl_channel.h"
#include "megalith/comm/positions.h"
#include "megalith/tensor/cuda/check.h"

namespace megalith::comm {
namespace {

using Channels = std::vector<std::shared_ptr<NcclChannel>>;

/// Aborts the communicators that are not in `aborted`, and adds them. ncclCommAbort has two parts. It makes the
/// communicator's kernels and host calls end. Then it frees the communicator, which the rank's thread may still be
/// using in a call. Within a group the second part waits for ncclGroupEnd, which must come when the rank's thread has
/// left NCCL for good.
void abort_all(const Channels& channels, std::vector<ncclComm_t>& aborted) {
  for (const auto& channel : channels) {
    for (const CommStream& comm_stream : channel->comm_streams()) {
      const ncclComm_t comm = comm_stream.comm();
      if (comm == nullptr || std::ranges::find(aborted, comm) != aborted.end()) continue;
      if (aborted.empty()) static_cast<void>(ncclGroupStart());
      aborted.push_back(comm);
      static_cast<void>(ncclCommAbort(comm));
    }
  }
}

/// While it lives, the calling thread may query events and streams. Otherwise no thread may do so while any of them
/// captures a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

Watchdog::Watchdog(const World& host, double timeout_s) : host_(host), timeout_s_(timeout_s) {
  cuda::check(cudaGetDevice(&gpu_));
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() { close(); }

void Watchdog::add(std::shared_ptr<NcclChannel> channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(std::move(channel));
}

void Watchdog::add(Stream replays) {
  const std::lock_guard lock(mutex_);
  replays_.push_back(replays);
}

void Watchdog::remove(Stream replays) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(replays_, [&](const Stream& one) { return one.handle == replays.handle; });
}

void Watchdog::begin_host_wait() {
  ++host_waits_;
  host_waits_since_s_ = monotonic_s();
  show_life(host_waits_since_s_);
}

void Watchdog::end_host_wait() noexcept {
  const double now = monotonic_s();
  host_waits_since_s_ = --host_waits_ == 0 ? kNoWait : now;
  show_life(now);
}

void Watchdog::show_life(double now_s) const noexcept { host_.positions()->writer(host_.rank()).alive(now_s); }

std::vector<std::shared_ptr<NcclChannel>> Watchdog::channels() const {
  const std::lock_guard lock(mutex_);
  return channels_;
}

void Watchdog::check_health() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  drain();
  const std::unique_lock lock(mutex_);
  std::rethrow_exception(verdict_);
}

void Watchdog::fail(std::exception_ptr verdict) noexcept {
  const std::lock_guard lock(mutex_);
  if (verdict_ == nullptr) {
    verdict_ = std::move(verdict);
    failed_at_s_ = monotonic_s();
  }
  failed_.store(true, std::memory_order_release);
  wake_.notify_all();
}

void Watchdog::give_up() noexcept {
  fail(std::make_exception_ptr(AbortedError("[nccl] this rank has failed before and communicates no more")));
  drain();
}

bool Watchdog::is_idle(const std::vector<std::shared_ptr<NcclChannel>>& channels) const {
  const auto is_busy = [](cudaStream_t stream) { return cudaStreamQuery(stream) == cudaErrorNotReady; };
  for (const auto& channel : channels) {
    if (std::ranges::any_of(channel->comm_streams(), is_busy, &CommStream::stream)) return false;
  }
  const std::lock_guard lock(mutex_);
  return std::ranges::none_of(replays_, is_busy, cuda::native);
}

/// Waits until nothing communicates any more after a failure. After the watching thread has ended NCCL's kernels, this
/// releases all other waits for members. The thread that is about to free memory does this itself, because freeing may
/// block other threads. Not earlier, because the last vote of a step must not pass after sums over undefined data.
void Watchdog::drain() const noexcept {
  const RelaxedCapture relaxed;
  const auto all = channels();
  double end_s = 0;
  {
    const std::lock_guard lock(mutex_);
    end_s = failed_at_s_ + kDrain_s;
  }
  while (!is_idle(all) && monotonic_s() < end_s) {
    if (aborted_.load(std::memory_order_acquire)) {
      for (const auto& channel : all) channel->release();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Kernels of other members that began before they could know of the failure may still access this member's tensors.
  const auto reaches_tensors = [](const auto& channel) { return channel->reaches_tensors(); };
  const double grace_s = end_s - kDrain_s + kGrace_s - monotonic_s();
  if (aborted_.load(std::memory_order_acquire) && grace_s > 0 && std::ranges::any_of(all, reaches_tensors))
    std::this_thread::sleep_for(std::chrono::duration<double>(grace_s));
  static_cast<void>(cudaGetLastError());  // "not ready" is a valid answer here
}

void Watchdog::watch() {
  constexpr auto kEvery = std::chrono::milliseconds(50);
  constexpr auto kEveryOnceFailed = std::chrono::milliseconds(1);  // each releases one more wait
  static_cast<void>(cudaSetDevice(gpu_));
  const RelaxedCapture relaxed;
  std::vector<ncclComm_t> aborted;
  for (std::unique_lock lock(mutex_); !closing_; lock.lock()) {
    wake_.wait_for(lock, failed_ ? kEveryOnceFailed : kEvery);
    lock.unlock();
    look();
    if (!failed_) continue;
    abort_all(channels(), aborted);
    aborted_.store(true, std::memory_order_release);
    for (const auto& channel : channels()) channel->release();
  }
  if (failed_) abort_all(channels(), aborted);
  if (!aborted.empty()) static_cast<void>(ncclGroupEnd());
}

void Watchdog::look() {
  if (failed_) return;
  // This thread lives for the rank's, which cannot show life while it waits for its GPU.
  if (host_waits_since_s_ != kNoWait) show_life(monotonic_s());
  try {
    const std::string failure = host_.failure();
    if (!failure.empty()) throw AbortedError("[nccl] " + failure);
    for (const auto& channel : channels()) channel->look(timeout_s_);
    look_at_host_wait();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Watchdog::look_at_host_wait() const {
  const double since_s = host_waits_since_s_, waited_s = monotonic_s() - since_s;
  if (since_s == kNoWait || waited_s < timeout_s_ + kAfterCalls_s) return;
  std::string groups;
  std::set<int> members;
  for (const auto& channel : channels()) {
    groups += str(groups.empty() ? "" : ", ", channel->name());
    members.insert(channel->world_ranks().begin(), channel->world_ranks().end());
  }
  members.erase(host_.rank());
  RankList others;
  for (const int member : members) others.add(member);
  throw HangVerdict(str("[gpu] groups ", groups, ": rank ", host_.rank(), " waited ", waited_text(waited_s),
                        " for its GPU, which may wait in a captured call for ", others.text()),
                    verdict_of(*host_.positions(), host_.rank(), waited_s));
}

void Watchdog::close() noexcept {
  if (!thread_.joinable()) return;
  for (const auto& channel : channels()) {
    for (const CommStream& comm_stream : channel->comm_streams())
      static_cast<void>(cudaStreamSynchronize(comm_stream.stream()));
  }
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wake_.notify_all();
  }
  thread_.join();
  if (failed_) return;
  // A communicator is freed only when its other members free it, too, and each rank has its streams in its own order.
  static_cast<void>(ncclGroupStart());
  for (const auto& channel : channels()) {
    for (const CommStream& comm_stream : channel->comm_streams())
      static_cast<void>(ncclCommDestroy(comm_stream.comm()));
  }
  static_cast<void>(ncclGroupEnd());
}

}  // namespace megalith::comm
