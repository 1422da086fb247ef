#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tensor/tensor.h"

namespace megalith {

inline constexpr Index kAlignment = 256;  ///< that of every planned address: a CUDA segment, four cache lines

/// The memory of a device: its own, or host memory that it reads and writes directly (page-locked for a GPU).
enum class Side : std::uint8_t { device, host };

/// Owned memory, aligned to kAlignment. Throws IoError if there is no more.
class Buffer {
 public:
  Buffer() = default;
  /// The memory of a device is always zeroed.
  explicit Buffer(Index bytes, Device device = Device::cpu, Side side = Side::device,
                  Contents contents = Contents::zeros);
  Buffer(Buffer&&) = default;
  Buffer& operator=(Buffer&&) = default;
  std::byte* data() const { return data_.get(); }
  Index bytes() const { return bytes_; }
  /// A view of the memory from `offset`. Throws InternalError if it does not fit.
  Tensor view(const Shape& shape, DType dtype, Index offset = 0) const;

 private:
  std::shared_ptr<std::byte> data_;
  Index bytes_ = 0;
};

/// Whether `bytes` bytes from `begin` on all lie in `memory`.
bool lies_in(std::span<const std::byte> memory, const void* begin, Index bytes);

/// Consecutive tensors of one piece of memory, each aligned. Without memory: tensors without addresses.
class Carver {
 public:
  explicit Carver(std::byte* memory, Index offset = 0) : memory_(memory), offset_(offset) {}
  Tensor next(const Shape& shape, DType dtype) {
    std::byte* const begin = memory_ == nullptr ? nullptr : memory_ + offset_;
    offset_ += round_up(bytes_of(shape, dtype), kAlignment);
    return {begin, shape, dtype};
  }
  /// Where the next one begins: the bytes of those so far, from offset 0 on.
  Index offset() const { return offset_; }

 private:
  std::byte* memory_;
  Index offset_;
};

/// Bytes by owner ("parameters", "activations", ...): what `megalith plan` prints and a run takes.
using BytesByOwner = std::map<std::string, Index, std::less<>>;
Index total(const BytesByOwner& bytes);
/// "parameters 1.20 GiB, gradients 1.20 GiB"
std::string owners_text(const BytesByOwner& bytes);

/// Takes memory and books it under its owner.
class MemoryLedger {
 public:
  explicit MemoryLedger(Device device) : device_(device) {}
  Buffer take(std::string_view owner, Index bytes);
  /// One allocation for two owners. The second's memory follows the first's.
  Buffer take(std::string_view first, Index first_bytes, std::string_view second, Index second_bytes);
  /// Books memory that something else takes.
  void note(std::string_view owner, Index bytes);
  const BytesByOwner& by_owner() const { return by_owner_; }
  /// All memory taken so far, as long as its Buffers live. An allocation for two owners is one span: a tensor may lie
  /// across their border.
  const std::vector<std::span<const std::byte>>& memory() const { return memory_; }
  /// The same memory, owner by owner.
  struct Block {
    std::string owner;
    std::span<std::byte> memory;
  };
  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  Device device_;
  BytesByOwner by_owner_;
  std::vector<std::span<const std::byte>> memory_;
  std::vector<Block> blocks_;
};

}  // namespace megalith
