#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"

namespace megalith {

/// Where a run computes. One per run; a run-time value.
enum class Device : std::uint8_t { cpu, cuda };
std::string_view name_of(Device device);
/// Throws BackendError, naming the way out, when this build or this machine cannot compute there.
void require_device(Device device);

/// Thread blocks of a collective's kernel between GPUs that products run beside, and multiprocessors that these leave
/// free for it: two a block, since a product's clusters take neighbours, and one held by a block is lost with the
/// other. 1.2B, TP 2, batch 8 on H200s, ms a step: 80.4 with 12 and 24; 8, 16: 82.7; 16, 16: 82.6; 16, 32: 83.4; 24,
/// 48: 85.0.
inline constexpr int kCommunicationThreadBlocks = 12;
inline constexpr int kCommunicationMultiprocessors = 2 * kCommunicationThreadBlocks;

/// An order of execution on a device. On the CPU there is one, the calling thread, and the handle is null; on a GPU it
/// is a cudaStream_t.
struct Stream {
  void* handle = nullptr;
};

/// Owns a stream. On the CPU there is nothing to own.
class OwnedStream {
 public:
  OwnedStream() = default;
  explicit OwnedStream(Device device);
  Stream get() const { return {handle_.get()}; }

 private:
  std::shared_ptr<void> handle_;
};

/// A point in a stream's order. On the CPU every point has been passed when it is recorded.
class Event {
 public:
  Event() = default;
  explicit Event(Device device);
  /// The point where `stream` stands now.
  void record(Stream stream);
  /// Later work of `stream` starts after the recorded point. Does not block the caller.
  void hold(Stream stream) const;
  // An event that was never recorded has been passed. Both throw InternalError while the calling thread captures that
  // device's work.
  void wait() const;  ///< returns when the point has been passed
  bool passed() const;

 private:
  std::shared_ptr<void> handle_;
};

/// A point in a stream's order whose time can be read. Both functions throw InternalError while the calling thread
/// captures that device's work.
class TimePoint {
 public:
  explicit TimePoint(Device device);
  void record(Stream stream);
  /// Waits for both points.
  double seconds_since(const TimePoint& earlier) const;

 private:
  double clock_s_ = 0;  // the CPU's
  std::shared_ptr<void> handle_;
};

/// What new memory holds; `undefined` saves a pass over it.
enum class Contents : std::uint8_t { zeros, undefined };

/// While the calling thread captures a device's work as a graph, taking that device's memory, waiting for it and,
/// outside of ops, copying and filling throw InternalError, which names the place in the step.
namespace device {

/// GPUs that this process may use; 0 in a build without CUDA and on a machine without one.
int num_gpus();
/// Which GPU it is, whatever number a process has for it: its UUID, with MIG that of the part in use.
using GpuId = std::array<std::byte, 16>;
/// Of each of the num_gpus(), in their order.
std::vector<GpuId> gpu_ids();
/// What `doctor` says of one.
struct Gpu {
  std::string name, capability;  ///< "NVIDIA H200", "9.0"
  int multiprocessors = 0;
  Index memory_bytes = 0;
  std::vector<int> reaches;  ///< the other GPUs whose memory it can use directly
};
std::vector<Gpu> gpus();
/// Memory of the calling thread's GPU that is in use, whoever took it: by the driver's count. 0 on the CPU.
Index memory_in_use(Device device);
/// Memory of the calling thread's GPU that nobody has taken, by the driver's count; all there may be on the CPU, which
/// has no such count. Throws BackendError in a build without CUDA.
Index memory_left(Device device);
/// The calling thread works on this GPU from here on. `gpus`: those that threads of this process use, if they are to
/// reach each other's memory; those of them that can may touch what this thread takes by allocate() from here on, where
/// it is kMinShared or more at a time. Nothing to do on the CPU.
void use(Device device, int index, std::span<const int> gpus = {});
inline constexpr Index kMinShared = Index{1} << 20;
/// The GPUs that may touch what the calling thread takes from here on, its own among them.
std::span<const int> sharers();

/// Memory, zeroed, aligned to 256 bytes at least; null for 0 bytes. Throws IoError when there is no more. On a GPU,
/// whoever lets go of it waits for what is in flight there.
std::shared_ptr<std::byte> allocate(Device device, Index bytes);
/// Host memory that a GPU reads and writes by itself (page-locked); plain memory for the CPU. Throws IoError when there
/// is no more.
std::shared_ptr<std::byte> allocate_host(Device device, Index bytes, Contents contents = Contents::zeros);

/// Between any two memories, in the stream's order. From or to memory of allocate_host the caller does not wait.
void copy(Device device, void* to, const void* from, Index bytes, Stream stream);
void fill_bytes(Device device, void* to, int byte, Index bytes, Stream stream);
/// Returns when all work of the stream is done. Throws BackendError for an error of any earlier kernel.
void synchronize(Device device, Stream stream);

}  // namespace device
}  // namespace megalith
