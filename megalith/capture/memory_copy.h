#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/runtime/exec.h"
#include "megalith/tensor/memory_names.h"

namespace megalith::capture {

/// A copy of parts of a run's planned memory in host memory. It allows to run the same ops twice from the same memory,
/// from graphs and eagerly, and to compare the bits of the results. Takes host_bytes() of host memory (page-locked for
/// a GPU). Each pass transfers all of it between host and device.
class MemoryCopy {
 public:
  /// Keeps nothing yet. Throws IoError if the host has no more memory.
  MemoryCopy(Device device, std::vector<MemoryLedger::Block> pieces);
  /// The bytes of the parts, and 16 MiB.
  static Index host_bytes(std::span<const MemoryLedger::Block> pieces);

  /// Copies the present contents of memory.
  void keep(Exec& ex);
  /// Exchanges the contents of memory and of the copy.
  void exchange(Exec& ex);

  struct Difference {
    StepOrder order;
    std::string text;  ///< "gradient of layers.3.mlp.up.weight at byte 12 of 720"
  };
  /// The first difference between memory and the copy: of all different data, what a step writes first. `names`() is
  /// called only if there is a difference. It need not name all memory: the rest is named by owner.
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
  /// The first byte of a memory range that differs from the copy.
  std::optional<Index> first_difference_in(Exec& ex, const std::byte* begin, Index bytes);
  /// Contents of memory, valid until the next call.
  std::span<const std::byte> read(Exec& ex, std::span<const std::byte> memory);

  std::vector<MemoryLedger::Block> pieces_;
  Buffer kept_, staged_;
};

}  // namespace megalith::capture
