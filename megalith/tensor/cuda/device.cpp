#include "megalith/tensor/cuda/device.h"

#include <cstring>

#include <nvtx3/nvToolsExt.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/tensor/cuda/captured_fills.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/driver.h"
#include "megalith/tensor/cuda/fill.h"
#include "megalith/tensor/cuda/shared_memory.h"
#include "megalith/tensor/gpu_code.h"
#include "megalith/tensor/gpu_facts.h"
#include "megalith/tensor/stream_budget.h"

namespace megalith::cuda {

void check(cudaError_t status, std::source_location where) {
  if (status == cudaSuccess) return;
  const std::string_view file = where.file_name();
  throw BackendError(str("[", file.substr(file.rfind('/') + 1), ':', where.line(),
                         "] CUDA: ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ')'));
}

int num_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // "no driver" is an answer here, not an error to find later
    return 0;
  }
  return count;
}

std::vector<device::GpuId> gpu_ids() {
  std::vector<device::GpuId> ids(static_cast<std::size_t>(num_gpus()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // The runtime's cudaDeviceProp::uuid is not used: its documentation does not state that it differs for parts of a
    // GPU.
    CUdevice gpu = 0;
    CUuuid uuid{};
    static_assert(sizeof uuid == sizeof ids[i]);
    check_driver(MEGALITH_DRIVER(cuDeviceGet)(&gpu, static_cast<int>(i)));
    check_driver(MEGALITH_DRIVER(cuDeviceGetUuid)(&uuid, gpu));
    std::memcpy(ids[i].data(), &uuid, sizeof uuid);
  }
  return ids;
}

namespace {

std::string capability_of(const cudaDeviceProp& properties) { return str(properties.major, '.', properties.minor); }

}  // namespace

std::vector<device::Gpu> gpus() {
  std::vector<device::Gpu> found(static_cast<std::size_t>(num_gpus()));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const int index = static_cast<int>(i);
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index));
    device::Gpu& gpu = found[i];
    gpu.name = properties.name;
    gpu.capability = capability_of(properties);
    gpu.multiprocessors = properties.multiProcessorCount;
    gpu.memory_bytes = static_cast<Index>(properties.totalGlobalMem);
    for (int other = 0; other < static_cast<int>(found.size()); ++other) {
      int reaches = 0;
      if (other != index) check(cudaDeviceCanAccessPeer(&reaches, index, other));
      if (reaches != 0) gpu.reaches.push_back(other);
    }
  }
  return found;
}

namespace {

/// Throws BackendError when CUDA reports that this program has no code for the GPU that the calling thread uses.
void require_code() {
  const cudaError_t status = find_fill_kernel();
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction) return check(status);
  static_cast<void>(cudaGetLastError());
  int index = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&index));
  check(cudaGetDeviceProperties(&properties, index));
  const std::string capability = capability_of(properties);
  throw BackendError(str("device.type = cuda: GPU ", index, " is ", properties.name, " of compute capability ",
                         capability, ": ", device::lack_of_code(capability, device::code_architectures())));
}

}  // namespace

void require_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    throw BackendError(str("device.type = cuda: this machine has no usable GPU (",
                           status == cudaSuccess ? "none is visible" : cudaGetErrorString(status),
                           "); `megalith doctor` prints more, device.type = \"cpu\" runs without one"));
  }
  // CUDA itself is queried in use() only, about the GPU that is chosen by then. The query takes a context, hundreds of
  // MiB, and all ranks of a host would take theirs on GPU 0.
  const std::string architectures = device::code_architectures();
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, i));
    if (device::has_code_for(capability_of(properties), architectures)) return;
  }
  require_code();
}

namespace {

/// The GPUs of the calling thread. The one that CUDA itself keeps for it comes first.
thread_local std::vector<int> sharers_of_thread;

}  // namespace

void use(int index, std::span<const int> gpus) {
  check(cudaSetDevice(index));
  require_code();
  sharers_of_thread.assign({index});
  if (gpus.empty() || !can_share_memory()) return;
  for (const int other : gpus) {
    int reaches = 0;
    if (other != index) check(cudaDeviceCanAccessPeer(&reaches, other, index));
    if (reaches != 0) sharers_of_thread.push_back(other);
  }
}

std::span<const int> sharers() { return sharers_of_thread; }

namespace {

struct MemoryState {
  Index left = 0, all = 0;
};

MemoryState memory_state() {
  std::size_t left = 0, all = 0;
  check(cudaMemGetInfo(&left, &all));
  return {static_cast<Index>(left), static_cast<Index>(all)};
}

}  // namespace

Index memory_in_use() {
  const MemoryState state = memory_state();
  return state.all - state.left;
}
Index memory_left() { return memory_state().left; }

namespace {

/// Null when there is no more memory.
std::shared_ptr<std::byte> take_private_memory(Index bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  check(status);
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(data),
                                    [](std::byte* taken) { static_cast<void>(cudaFree(taken)); });
  check(cudaMemset(data, 0, static_cast<std::size_t>(bytes)));
  check(cudaStreamSynchronize(nullptr));  // neither the host nor our streams wait for that one
  return memory;
}

/// Takes memory that the thread's sharers can access, too.
std::shared_ptr<std::byte> take_reachable_memory(Index bytes) {
  std::shared_ptr<std::byte> memory = take_shared_memory(bytes, sharers_of_thread);
  if (memory == nullptr) return nullptr;
  std::byte* const data = memory.get();
  const int owner = sharers_of_thread.front();
  return {data, [owner, memory = std::move(memory)](std::byte*) mutable {  // as cudaFree() does, on any thread
            int current = owner;
            static_cast<void>(cudaGetDevice(&current));
            static_cast<void>(cudaSetDevice(owner));
            static_cast<void>(cudaDeviceSynchronize());
            memory.reset();
            static_cast<void>(cudaSetDevice(current));
          }};
}

}  // namespace

std::shared_ptr<std::byte> allocate(Index bytes) {
  if (bytes == 0) return nullptr;
  // Small pieces, too: ranks read rows of experts wherever they lie, as in messages of a pipeline.
  const bool is_reachable = sharers_of_thread.size() > 1 || memory_publisher() != nullptr;
  std::shared_ptr<std::byte> memory = is_reachable ? take_reachable_memory(bytes) : take_private_memory(bytes);
  if (memory != nullptr) return memory;
  const MemoryState state = memory_state();
  throw IoError(str("[memory] cannot take ", human_bytes(bytes), ": the GPU has ", human_bytes(state.left), " of ",
                    human_bytes(state.all),
                    " left. `megalith plan` shows what a recipe takes; a smaller train.micro_batch or more parallel "
                    "ranks take less each"));
}

std::shared_ptr<std::byte> allocate_host(Index bytes) {
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw IoError(str("[memory] cannot take ", human_bytes(bytes), " (", bytes,
                      " bytes) of page-locked host memory: the host has no more that can be locked; fewer ranks on a "
                      "host or a smaller model take less"));
  }
  check(status);
  return {static_cast<std::byte*>(data), [](std::byte* taken) { static_cast<void>(cudaFreeHost(taken)); }};
}

void copy(void* to, const void* from, Index bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, native(stream)));
}

void fill_bytes(void* to, int byte, Index bytes, Stream stream) {
  check(cudaMemsetAsync(to, byte, static_cast<std::size_t>(bytes), native(stream)));
}

void synchronize(Stream stream) { check(cudaStreamSynchronize(native(stream))); }

namespace {

/// The streams of the calling thread, a rank. They may outlive it.
thread_local const auto streams_of_thread = std::make_shared<StreamBudget>();

}  // namespace

std::shared_ptr<void> make_stream(StreamPriority priority) {
  streams_of_thread->take();
  std::shared_ptr<StreamBudget> budget(streams_of_thread.get(),
                                       [counted = streams_of_thread](StreamBudget* streams) { streams->give_back(); });
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == StreamPriority::high ? highest : 0));
  return {stream, [budget = std::move(budget)](void* handle) {
            static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(handle)));
          }};
}

namespace {

std::shared_ptr<void> make_event_with(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags));
  return {event, [](void* handle) { static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(handle))); }};
}

}  // namespace

std::shared_ptr<void> make_event() { return make_event_with(cudaEventDisableTiming); }
std::shared_ptr<void> make_timed_event() { return make_event_with(cudaEventDefault); }

double seconds_between(void* earlier, void* later) {
  float milliseconds = 0;
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(later)));
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier), static_cast<cudaEvent_t>(later)));
  return 1e-3 * static_cast<double>(milliseconds);
}

void begin_capture(Stream stream) { check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal)); }

void load_capture_kernels() { load_fill_kernels(); }

CapturedNodes end_capture(Stream stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(native(stream), &graph));
  std::shared_ptr<void> handle(
      graph, [](void* nodes) { static_cast<void>(cudaGraphDestroy(static_cast<cudaGraph_t>(nodes))); });
  replace_small_fills(graph);
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count));
  return {std::move(handle), static_cast<Index>(count)};
}

std::shared_ptr<void> instantiate(const CapturedNodes& nodes, Stream stream) {
  cudaGraphExec_t launchable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&launchable, static_cast<cudaGraph_t>(nodes.handle.get()),
                                                  cudaGraphInstantiateFlagUseNodePriority);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw IoError(str("[memory] the GPU has no more for a CUDA graph of ", nodes.count,
                      " nodes: graphs.mode = \"layers\" with graphs.per = \"slot\" takes least, a smaller "
                      "train.micro_batch leaves more"));
  }
  check(status);
  std::shared_ptr<void> handle(
      launchable, [](void* exec) { static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec))); });
  check(cudaGraphUpload(launchable, native(stream)));
  return handle;
}

void abandon_capture(Stream stream) noexcept {
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(native(stream), &graph));
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaGetLastError());
}

void launch(void* graph, Stream stream) { check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream))); }

void push_range(const char* name) { nvtxRangePushA(name); }
void pop_range() { nvtxRangePop(); }

void record(void* event, Stream stream) { check(cudaEventRecord(static_cast<cudaEvent_t>(event), native(stream))); }
void hold(void* event, Stream stream) { check(cudaStreamWaitEvent(native(stream), static_cast<cudaEvent_t>(event))); }
void wait(void* event) { check(cudaEventSynchronize(static_cast<cudaEvent_t>(event))); }

bool passed(void* event) {
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (status == cudaErrorNotReady) return false;
  check(status);
  return true;
}

}  // namespace megalith::cuda
