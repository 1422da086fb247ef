#pragma once
#include <memory>
#include <span>
#include <vector>

#include "megalith/tensor/device.h"

/// The CUDA side of tensor/device.h: see there.
namespace megalith::cuda {

int num_gpus();
std::vector<device::GpuId> gpu_ids();
std::vector<device::Gpu> gpus();
void require_gpu();
void use(int index, std::span<const int> gpus);
std::span<const int> sharers();
Index memory_in_use();
Index memory_left();
std::shared_ptr<std::byte> allocate(Index bytes);
std::shared_ptr<std::byte> allocate_host(Index bytes);  ///< contents undefined
void copy(void* to, const void* from, Index bytes, Stream stream);
void fill_bytes(void* to, int byte, Index bytes, Stream stream);
void synchronize(Stream stream);
/// High: runs before other work, because other ranks wait for it. Throws ConfigError when the calling thread, a rank,
/// has as many streams as its GPU has hardware queues.
enum class StreamPriority { usual, high };
std::shared_ptr<void> make_stream(StreamPriority priority = StreamPriority::usual);
std::shared_ptr<void> make_event();
void record(void* event, Stream stream);
void hold(void* event, Stream stream);
void wait(void* event);
bool passed(void* event);
std::shared_ptr<void> make_timed_event();
double seconds_between(void* earlier, void* later);
/// From here on the work of `stream`, and of streams that wait for it, is captured. Only this thread may not wait for
/// the GPU meanwhile.
void begin_capture(Stream stream);
/// Loads the kernels that end_capture() may put into a graph. Call it before other ranks are waited for.
void load_capture_kernels();
struct CapturedNodes {
  std::shared_ptr<void> handle;
  Index count = 0;
};
CapturedNodes end_capture(Stream stream);
/// A graph of the nodes, uploaded. launch() launches it.
std::shared_ptr<void> instantiate(const CapturedNodes& nodes, Stream stream);
void abandon_capture(Stream stream) noexcept;
void launch(void* graph, Stream stream);
/// A named range on this thread, for NVIDIA's profilers.
void push_range(const char* name);
void pop_range();

}  // namespace megalith::cuda
