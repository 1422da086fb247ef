#include "megalith/tensor/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/tensor/capture_guard.h"
#include "megalith/tensor/cuda/device.h"
#include "megalith/tensor/has_cuda.h"
#include "megalith/tensor/memory.h"

namespace megalith {
namespace {

[[noreturn]] void throw_no_cuda() {
  throw BackendError(
      "device.type = cuda: this build has no CUDA backend; install the CUDA toolkit (nvcc on PATH) and build again, or "
      "use device.type = \"cpu\"");
}

void refuse_in_graphs(Device device, const char* what, const char* why) {
  if (const CaptureGuard* capture = CaptureGuard::active(device); capture != nullptr) capture->refuse(what, why);
}

constexpr const char* kNoWait = "inside a graph the host cannot wait for the device";
constexpr const char* kNoQuery = "inside a graph the host cannot ask how far the device has come";
constexpr const char* kNoTime = "what runs inside a graph cannot be timed";
constexpr const char* kNoMemory = "a graph's memory is taken before the capture";

void refuse_beside_ops(Device device, const char* what) {
  if (const CaptureGuard* capture = CaptureGuard::active(device); capture != nullptr && !capture->in_op())
    capture->refuse(what, "memory is written by ops only, through Exec::run");
}

/// The device of an object that has a handle on GPUs only.
Device device_of(const std::shared_ptr<void>& handle) { return handle ? Device::cuda : Device::cpu; }

}  // namespace

std::string_view name_of(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

void require_device(Device device) {
  if (device == Device::cpu) return;
  if constexpr (build::has_cuda)
    cuda::require_gpu();
  else
    throw_no_cuda();
}

OwnedStream::OwnedStream(Device device) {
  if (device == Device::cpu) return;
  if constexpr (build::has_cuda)
    handle_ = cuda::make_stream();
  else
    throw_no_cuda();
}

Event::Event(Device device) {
  if (device == Device::cpu) return;
  if constexpr (build::has_cuda)
    handle_ = cuda::make_event();
  else
    throw_no_cuda();
}

void Event::record(Stream stream) {
  if constexpr (build::has_cuda) {
    if (handle_) cuda::record(handle_.get(), stream);
  }
}

void Event::hold(Stream stream) const {
  if constexpr (build::has_cuda) {
    if (handle_) cuda::hold(handle_.get(), stream);
  }
}

void Event::wait() const {
  refuse_in_graphs(device_of(handle_), "Event::wait", kNoWait);
  if constexpr (build::has_cuda) {
    if (handle_) cuda::wait(handle_.get());
  }
}

bool Event::passed() const {
  refuse_in_graphs(device_of(handle_), "Event::passed", kNoQuery);
  if constexpr (build::has_cuda) {
    if (handle_) return cuda::passed(handle_.get());
  }
  return true;
}

TimePoint::TimePoint(Device device) {
  if (device == Device::cpu) return;
  if constexpr (build::has_cuda)
    handle_ = cuda::make_timed_event();
  else
    throw_no_cuda();
}

void TimePoint::record(Stream stream) {
  refuse_in_graphs(device_of(handle_), "TimePoint::record", kNoTime);
  if constexpr (build::has_cuda) {
    if (handle_) return cuda::record(handle_.get(), stream);
  }
  clock_s_ = monotonic_s();
}

double TimePoint::seconds_since(const TimePoint& earlier) const {
  refuse_in_graphs(device_of(handle_), "TimePoint::seconds_since", kNoWait);
  if constexpr (build::has_cuda) {
    if (handle_) return cuda::seconds_between(earlier.handle_.get(), handle_.get());
  }
  return clock_s_ - earlier.clock_s_;
}

namespace device {
namespace {

std::shared_ptr<std::byte> allocate_plain(Index bytes, Contents contents) {
  if (bytes == 0) return nullptr;
  const auto padded = static_cast<std::size_t>(round_up(bytes, kAlignment));
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, padded));
  if (data == nullptr)
    throw IoError(str("[memory] cannot take ", human_bytes(bytes),
                      ": the system has no more memory. `megalith plan` shows what a recipe takes; a smaller "
                      "train.micro_batch or more parallel ranks take less each"));
  std::shared_ptr<std::byte> memory(data, [](std::byte* taken) { std::free(taken); });
  if (contents == Contents::zeros) std::memset(data, 0, padded);
  return memory;
}

}  // namespace

int num_gpus() {
  if constexpr (build::has_cuda)
    return cuda::num_gpus();
  else
    return 0;
}

std::vector<GpuId> gpu_ids() {
  if constexpr (build::has_cuda)
    return cuda::gpu_ids();
  else
    return {};
}

GpuId id_of_gpu(int number) { return gpu_ids().at(static_cast<std::size_t>(number)); }

int number_of_gpu(const GpuId& id) {
  const std::vector<GpuId> ids = gpu_ids();
  const auto found = std::ranges::find(ids, id);
  return found == ids.end() ? -1 : static_cast<int>(found - ids.begin());
}

std::vector<Gpu> gpus() {
  if constexpr (build::has_cuda)
    return cuda::gpus();
  else
    return {};
}

Index memory_in_use(Device device) {
  if (device == Device::cpu) return 0;
  if constexpr (build::has_cuda)
    return cuda::memory_in_use();
  else
    throw_no_cuda();
}

Index memory_left(Device device) {
  if (device == Device::cpu) return std::numeric_limits<Index>::max();
  if constexpr (build::has_cuda)
    return cuda::memory_left();
  else
    throw_no_cuda();
}

void use(Device device, int index, std::span<const int> gpus) {
  if (device == Device::cpu) return;
  if constexpr (build::has_cuda)
    cuda::use(index, gpus);
  else
    throw_no_cuda();
}

std::span<const int> sharers() {
  if constexpr (build::has_cuda)
    return cuda::sharers();
  else
    return {};
}

std::shared_ptr<std::byte> allocate(Device device, Index bytes) {
  if (bytes > 0) refuse_in_graphs(device, "device::allocate", kNoMemory);
  if (device == Device::cpu) return allocate_plain(bytes, Contents::zeros);
  if constexpr (build::has_cuda)
    return cuda::allocate(bytes);
  else
    throw_no_cuda();
}

std::shared_ptr<std::byte> allocate_host(Device device, Index bytes, Contents contents) {
  if (bytes > 0) refuse_in_graphs(device, "device::allocate_host", kNoMemory);
  if (device == Device::cpu) return allocate_plain(bytes, contents);
  if constexpr (build::has_cuda) {
    std::shared_ptr<std::byte> memory = cuda::allocate_host(bytes);
    if (contents == Contents::zeros && bytes > 0) std::memset(memory.get(), 0, static_cast<std::size_t>(bytes));
    return memory;
  } else {
    throw_no_cuda();
  }
}

void copy(Device device, void* to, const void* from, Index bytes, Stream stream) {
  if (bytes == 0 || to == from) return;
  refuse_beside_ops(device, "device::copy");
  if (device == Device::cpu) {
    std::memmove(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  if constexpr (build::has_cuda)
    cuda::copy(to, from, bytes, stream);
  else
    throw_no_cuda();
}

void fill_bytes(Device device, void* to, int byte, Index bytes, Stream stream) {
  if (bytes == 0) return;
  refuse_beside_ops(device, "device::fill_bytes");
  if (device == Device::cpu) {
    std::memset(to, byte, static_cast<std::size_t>(bytes));
    return;
  }
  if constexpr (build::has_cuda)
    cuda::fill_bytes(to, byte, bytes, stream);
  else
    throw_no_cuda();
}

void synchronize(Device device, Stream stream) {
  refuse_in_graphs(device, "device::synchronize", kNoWait);
  if (device == Device::cpu) return;
  if constexpr (build::has_cuda)
    cuda::synchronize(stream);
  else
    throw_no_cuda();
}

}  // namespace device
}  // namespace megalith
