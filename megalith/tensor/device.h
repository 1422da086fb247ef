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

/// The device on which a run computes. One per run; a run-time value.
enum class Device : std::uint8_t { cpu, cuda };
std::string_view name_of(Device device);
/// Throws BackendError with the fix if this build or this machine cannot compute there.
void require_device(Device device);

/// CTAs of a collective's kernel that runs beside GEMMs, and the SM margin that these GEMMs leave for it. The margin is
/// two SMs per CTA. The clusters of a GEMM take neighbouring SMs, so an SM next to one that a CTA holds is lost, too.
/// Measured with 1.2B, TP 2, batch 8 on H200s: 80.4 ms per step with 12 CTAs and 24 SMs. Others: 8, 16: 82.7; 16, 16:
/// 82.6; 16, 32: 83.4; 24, 48: 85.0.
inline constexpr int kCommunicationThreadBlocks = 12;
inline constexpr int kCommunicationMultiprocessors = 2 * kCommunicationThreadBlocks;

/// An order of execution on a device. On the CPU there is one, the calling thread, and the handle is null. On a GPU it
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

/// A point in the order of a stream. On the CPU a point has been passed when it is recorded.
class Event {
 public:
  Event() = default;
  explicit Event(Device device);
  /// The present point of `stream`.
  void record(Stream stream);
  /// Later work of `stream` starts after the recorded point. Does not block the caller.
  void hold(Stream stream) const;
  // An event that was never recorded counts as passed. Both throw InternalError while the calling thread captures that
  // device's work.
  void wait() const;  ///< returns when the point has been passed
  bool passed() const;

 private:
  std::shared_ptr<void> handle_;
};

/// A point in the order of a stream whose time can be read. Both functions throw InternalError while the calling thread
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

/// The contents of new memory. `undefined` saves one pass over it.
enum class Contents : std::uint8_t { zeros, undefined };

/// Some calls throw InternalError, which names the call site, while the calling thread captures a device's work as a
/// graph. These are taking memory of that device, waiting for it and, outside of ops, copying and filling.
namespace device {

/// The number of GPUs that this process may use. 0 in a build without CUDA and on a machine without a GPU.
int num_gpus();
/// Identifies a GPU, whatever number a process has for it: its UUID. With MIG it is the UUID of the instance in use.
using GpuId = std::array<std::byte, 16>;
/// The id of each of the num_gpus() GPUs, in their order.
std::vector<GpuId> gpu_ids();
/// The id of one of them, and the number that this process has for a GPU: -1 if it may not use it.
GpuId id_of_gpu(int number);
int number_of_gpu(const GpuId& id);
/// What `doctor` prints about a GPU.
struct Gpu {
  std::string name, capability;  ///< "NVIDIA H200", "9.0"
  int multiprocessors = 0;
  Index memory_bytes = 0;
  std::vector<int> reaches;  ///< the other GPUs whose memory it can access directly
};
std::vector<Gpu> gpus();
/// Memory of the calling thread's GPU that is in use by any program, by the driver's count. 0 on the CPU.
Index memory_in_use(Device device);
/// Memory of the calling thread's GPU that is free, by the driver's count. On the CPU, which has no such count, the
/// largest possible value. Throws BackendError in a build without CUDA.
Index memory_left(Device device);
/// The calling thread works on this GPU from here on. `gpus`: the GPUs that threads of this process use, if they are to
/// access each other's memory. From here on those of them that can may access all memory that this thread takes by
/// allocate(), whose pieces then are multiples of 2 MiB in the driver's count. Does nothing on the CPU.
void use(Device device, int index, std::span<const int> gpus = {});
/// The GPUs that may access memory that the calling thread takes from here on, its own among them.
std::span<const int> sharers();

/// Memory, zeroed, aligned to at least 256 bytes; null for 0 bytes. Throws IoError if there is no more. On a GPU,
/// freeing it waits for everything in flight there.
std::shared_ptr<std::byte> allocate(Device device, Index bytes);
/// Host memory that a GPU reads and writes directly (page-locked); plain memory for the CPU. Throws IoError if there is
/// no more.
std::shared_ptr<std::byte> allocate_host(Device device, Index bytes, Contents contents = Contents::zeros);

/// Copies between any two memories, in the order of the stream. The caller does not wait if one of them is from
/// allocate_host.
void copy(Device device, void* to, const void* from, Index bytes, Stream stream);
void fill_bytes(Device device, void* to, int byte, Index bytes, Stream stream);
/// Returns when all work of the stream is complete. Throws BackendError for an error of any earlier kernel.
void synchronize(Device device, Stream stream);

}  // namespace device
}  // namespace megalith
