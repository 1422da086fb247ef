#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/capture/memory_copy.h"
#include "megalith/io/checksum.h"
#include "megalith/runtime/graph_cache.h"

namespace megalith::capture {

/// Checks the results of each segment of a step right after it, when the same segments run twice, from graphs and
/// eagerly. It names the first result that differs, even if a later microbatch overwrites the same memory. Keeps a
/// checksum of each result. Takes host_bytes() of host memory (page-locked for a GPU). Each result is copied to the
/// host, which waits for it.
class SegmentWitness {
 public:
  /// Results outside `memory` are not checked. `num_layers`: of the model. Throws IoError if the host has no more
  /// memory.
  SegmentWitness(Device device, std::vector<MemoryLedger::Block> memory, Index num_layers);
  static constexpr Index host_bytes() { return kStagedBytes; }

  /// The first run begins. Earlier results are dropped.
  void keep_from_here();
  /// The second run begins. Its results are compared with those of the first.
  void compare_from_here() { compares_ = true; }
  /// A segment has run, from this graph or compared with it. The call site of ex has the microbatch.
  void see(Exec& ex, const GraphCache::Key& key, const Graph& graph);

  /// The first result that differed: "result of gelu, chunk 0, microbatch 2, layer 5", or "gradient of
  /// layers.5.mlp.up.weight, chunk 0, ..." if `names`(), called only if there is a difference, has one that contains
  /// it. Throws InternalError unless both runs had the same number of results.
  template <class Names>
  std::optional<MemoryCopy::Difference> first_difference(Names&& names) const {
    require_same_count();
    if (!first_) return std::nullopt;
    return named(names());
  }

 private:
  static constexpr Index kStagedBytes = Index{16} << 20;
  struct Result {
    Tensor tensor;
    StepOrder order;
    std::string text, place;  ///< "result of gelu", ", chunk 0, microbatch 2, layer 5"
  };

  bool is_compared(const Tensor& tensor) const;
  io::Hash128 checksum_of(Exec& ex, const Tensor& tensor) const;
  Result result(const CallSite& place, const GraphCache::Key& key, const Graph::Touched& op, Index op_index,
                const Tensor& tensor) const;
  void require_same_count() const;
  MemoryCopy::Difference named(const MemoryNames& names) const;

  std::vector<MemoryLedger::Block> memory_;
  Index num_layers_;
  Buffer staged_;
  bool compares_ = false;
  std::vector<io::Hash128> kept_;  // of the first run
  std::size_t compared_ = 0;       // of the second
  std::optional<Result> first_;    // with a difference
};

}  // namespace megalith::capture
