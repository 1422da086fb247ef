#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/capture/memory_copy.h"
#include "megalith/io/checksum.h"
#include "megalith/runtime/graph_cache.h"

namespace megalith::capture {

/// Looks at what each piece of a step has written, right behind it, when the same pieces run twice, from graphs and
/// eagerly: to name the first result that differs, also where a later microbatch writes to the same memory. Keeps a
/// checksum of each result, and takes host_bytes() of host memory (page-locked for a GPU). Each result goes to the
/// host, which waits for it.
class SegmentWitness {
 public:
  /// Results outside `memory` are not looked at. `num_layers`: of the model. Throws IoError when the host has no more
  /// memory.
  SegmentWitness(Device device, std::vector<MemoryLedger::Block> memory, Index num_layers);
  static constexpr Index host_bytes() { return kStagedBytes; }

  /// The first run begins. What was seen before is forgotten.
  void keep_from_here();
  /// The second run begins: what it leaves is compared with what the first has left.
  void compare_from_here() { compares_ = true; }
  /// A piece has run, by this graph or beside it; ex.call_site() says of which microbatch.
  void see(Exec& ex, const GraphCache::Key& key, const Graph& graph);

  /// The first result that differed, "result of gelu, chunk 0, microbatch 2, layer 5", or "gradient of
  /// layers.5.mlp.up.weight, chunk 0, ..." where `names`(), asked where something differs, has one that it lies in.
  /// Throws InternalError unless both runs had as many results.
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
  std::optional<Result> first_;    // that differed
};

}  // namespace megalith::capture
