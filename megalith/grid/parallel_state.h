#pragma once
#include <array>
#include <optional>
#include <vector>

#include "megalith/grid/group_catalog.h"

namespace megalith::grid {

/// Whether a stage query looks at the current model chunk: with chunks, only chunk 0 of the first rank holds the first
/// layers and only the last chunk of the last rank the last ones.
enum class VirtualStage { current, ignored };

/// One rank's view of all groups. An object, not a global: ranks may be threads of one process. Not thread-safe: a
/// rank's own thread uses it. Communicates nothing; queries are O(1) unless stated.
///
/// Every query throws ConfigError E_NOT_INITIALIZED before initialize() and after destroy(). Queries of a group throw
/// E_NOT_MEMBER when the rank is in no group of the kind (embd on a middle stage).
class ParallelState {
 public:
  /// O(sum of the group sizes). Throws ConfigError: E_ALREADY_INITIALIZED; a rank outside the world.
  void initialize(const ResolvedSizes& sizes, int rank);
  /// Forgets everything, overrides included; initialize() works again. E_NOT_INITIALIZED when there is nothing to
  /// destroy.
  void destroy();
  bool initialized() const { return data_.has_value(); }

  const GroupCatalog& catalog() const { return data().catalog; }
  int global_rank() const { return data().rank; }
  int world_size() const { return catalog().sizes().world_size; }

  bool is_member(GroupKind kind) const;
  /// Global ranks of the caller's group; of pp: in stage order.
  const std::vector<int>& ranks(GroupKind kind) const;
  int size(GroupKind kind) const;      ///< or the override
  int rank(GroupKind kind) const;      ///< the caller's index in ranks(kind), or the override
  int src_rank(GroupKind kind) const;  ///< global rank of the group's first member: the root of broadcasts

  /// Change what size() and rank() return, and with kind pp the stage queries below: for building one rank's part of a
  /// model elsewhere. Members, neighbours and source ranks stay as they are. Nothing (nullopt) restores.
  /// Throws ConfigError on a size below 1 (E_SIZE_NOT_POSITIVE) or a rank below 0.
  void override_size(GroupKind kind, std::optional<int> size);
  void override_rank(GroupKind kind, std::optional<int> rank);

  // The pipeline: global ranks. Next and previous wrap; only an interleaved schedule sends across the wrap.
  int pp_first() const;
  int pp_last() const;
  int pp_next() const;
  int pp_prev() const;

  std::optional<int> vpp_size() const;  ///< model chunks per rank; unset without --vpp
  std::optional<int> vpp_rank() const;  ///< the current chunk: 0 at first; unset without --vpp
  /// Throws ConfigError when vpp is unset or the chunk is outside [0, vpp).
  void set_vpp_rank(int chunk);

  bool is_first_stage(VirtualStage which = VirtualStage::current) const;
  bool is_last_stage(VirtualStage which = VirtualStage::current) const;

  /// Holds a copy of the word embedding. With VirtualStage::current the first and last stage hold it in their first and
  /// last chunk only.
  bool in_embedding_group(VirtualStage which = VirtualStage::current) const;
  bool in_position_embedding_group() const;
  /// Global ranks that hold a copy, also on stages that hold none. O(1 to 3).
  std::vector<int> embedding_ranks() const;
  std::vector<int> position_embedding_ranks() const;

  // Encoder-decoder pipelines: the split rank is the first decoder stage. `stage` defaults to the caller's.
  // Without a split, or with one stage, a stage counts as before and after.
  std::optional<int> split_rank() const;
  bool stage_before_split(std::optional<int> stage = std::nullopt) const;
  bool stage_after_split(std::optional<int> stage = std::nullopt) const;
  bool stage_at_split() const;  ///< the last encoder stage

 private:
  struct KindState {
    std::vector<int> ranks;  // empty: no member
    std::optional<int> size_override, rank_override;
  };
  struct Data {
    GroupCatalog catalog;
    int rank = 0;
    std::array<KindState, kGroupKinds.size()> kinds{};
    std::optional<int> vpp_rank{};
  };
  void require_initialized() const;
  const Data& data() const;
  Data& data();
  const KindState& state(GroupKind kind) const { return data().kinds[static_cast<std::size_t>(kind)]; }
  KindState& state(GroupKind kind) { return data().kinds[static_cast<std::size_t>(kind)]; }
  int pp_neighbour(int step) const;

  std::optional<Data> data_;
};

}  // namespace megalith::grid
