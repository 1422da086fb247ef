#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tensor/tensor.h"

namespace megalith {

inline constexpr Index kAlignment = 256;  ///< of every planned address: a CUDA segment, four cache lines

/// Which memory of a device: its own, or host memory that it reads and writes by itself (page-locked for a GPU).
enum class Side : std::uint8_t { device, host };

/// Owned memory, aligned to kAlignment. Throws IoError when there is no more.
class Buffer {
 public:
  Buffer() = default;
  /// Memory of a device is zeroed in any case.
  explicit Buffer(Index bytes, Device device = Device::cpu, Side side = Side::device,
                  Contents contents = Contents::zeros);
  Buffer(Buffer&&) = default;
  Buffer& operator=(Buffer&&) = default;
  std::byte* data() const { return data_.get(); }
  Index bytes() const { return bytes_; }
  /// A view of the memory from `offset`. Throws InternalError when it does not fit.
  Tensor view(const Shape& shape, DType dtype, Index offset = 0) const;

 private:
  std::shared_ptr<std::byte> data_;
  Index bytes_ = 0;
};

/// Whether so many bytes from `begin` on are all in `memory`.
bool lies_in(std::span<const std::byte> memory, const void* begin, Index bytes);

/// Bytes by owner ("parameters", "activations", ...): what `megalith plan` prints and what a run takes.
using BytesByOwner = std::map<std::string, Index, std::less<>>;
Index total(const BytesByOwner& bytes);
/// "parameters 1.20 GiB, gradients 1.20 GiB"
std::string owners_text(const BytesByOwner& bytes);

/// Takes memory and books it under its owner.
class MemoryLedger {
 public:
  explicit MemoryLedger(Device device) : device_(device) {}
  Buffer take(std::string_view owner, Index bytes);
  /// Two owners' memory in one piece, the second's behind the first's.
  Buffer take(std::string_view first, Index first_bytes, std::string_view second, Index second_bytes);
  /// Books what somebody else takes.
  void note(std::string_view owner, Index bytes);
  const BytesByOwner& by_owner() const { return by_owner_; }
  /// Everything taken so far, for as long as its Buffers live. Two owners' memory in one piece is one stretch: a tensor
  /// may lie across their border.
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
