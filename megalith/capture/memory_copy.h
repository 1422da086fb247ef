#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/runtime/exec.h"
#include "megalith/tensor/memory_names.h"

namespace megalith::capture {

/// Pieces of a run's planned memory once more, in host memory: to run the same ops twice from there, from graphs and
/// eagerly, and to see whether both leave the same bits. Takes host_bytes() of host memory (page-locked for a GPU);
/// each pass over them costs their way between host and device.
class MemoryCopy {
 public:
  /// Keeps nothing yet. Throws IoError when the host has no more memory.
  MemoryCopy(Device device, std::vector<MemoryLedger::Block> pieces);
  /// The bytes of the pieces, and 16 MiB.
  static Index host_bytes(std::span<const MemoryLedger::Block> pieces);

  /// Keeps what is in memory now.
  void keep(Exec& ex);
  /// What was kept is in memory again, and what was in memory is kept.
  void exchange(Exec& ex);

  struct Difference {
    StepOrder order;
    std::string text;  ///< "gradient of layers.3.mlp.up.weight at byte 12 of 720"
  };
  /// What differs between memory and what is kept: of all that does, what a step writes first. `names`() is asked where
  /// something differs; what it names need not be all memory: the rest is found by owner.
  template <class Names>
  std::optional<Difference> first_difference(Exec& ex, Names&& names) {
    if (equals(ex)) return std::nullopt;
    return first_of(ex, names());
  }

 private:
  static constexpr Index kStagedBytes = Index{16} << 20;

  /// Calls use(memory, kept) for blocks of at most kStagedBytes.
  template <class Use>
  void for_blocks(Use&& use);
  bool equals(Exec& ex);
  std::optional<Difference> first_of(Exec& ex, MemoryNames names);
  /// The first byte of a stretch of memory that is not as kept.
  std::optional<Index> first_difference_in(Exec& ex, const std::byte* begin, Index bytes);
  /// Contents of memory, until the next call.
  std::span<const std::byte> read(Exec& ex, std::span<const std::byte> memory);

  std::vector<MemoryLedger::Block> pieces_;
  Buffer kept_, staged_;
};

}  // namespace megalith::capture
