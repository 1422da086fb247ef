#pragma once
#include <optional>
#include <string>

#include "megalith/grid/rank_generator.h"

namespace megalith::grid {

/// What a recipe may ask for: more ranks and pipeline stages than any job has had. A plan takes time and memory for
/// each, and a typing error must not cost minutes and gigabytes.
inline constexpr int kMaxRanks = 1 << 16, kMaxStages = 1 << 10;

/// The sizes of a job as asked for. Two grids lie over one world: world_size = tp cp dp pp = etp ep edp pp.
struct ParallelSizes {
  int world_size = 1;
  int tp = 1;                       ///< tensor parallel ranks of the dense layers
  int cp = 1;                       ///< context parallel ranks
  int pp = 1;                       ///< pipeline stages, shared by both grids
  int ep = 1;                       ///< expert parallel ranks
  std::optional<int> dp{};          ///< computed; when given it must agree
  std::optional<int> etp{};         ///< tensor parallel ranks of one expert; unset: tp
  std::optional<int> edp{};         ///< computed; when given it must agree
  std::optional<int> vpp{};         ///< model chunks per pipeline rank
  std::optional<int> split_rank{};  ///< first decoder stage of an encoder-decoder pipeline
  std::string order{kDefaultOrder};
};

/// The sizes that run: everything computed and checked.
struct ResolvedSizes {
  int world_size = 1;
  int tp = 1, cp = 1, dp = 1, pp = 1;
  int etp = 1, ep = 1, edp = 1;
  std::optional<int> vpp{}, split_rank{};
  std::string order{kDefaultOrder};  ///< all five axes, lower case

  /// Model chunks per pipeline rank: vpp, or 1.
  int chunks() const { return vpp.value_or(1); }
  bool operator==(const ResolvedSizes&) const = default;
};

/// Throws ConfigError with the first broken rule as "E_CODE: message", in this order: E_SIZE_NOT_POSITIVE,
/// E_WORLD_NOT_DIVISIBLE_DENSE, E_PRODUCT_MISMATCH_DENSE, E_WORLD_NOT_DIVISIBLE_EXPERT, E_PRODUCT_MISMATCH_EXPERT,
/// E_VPP_NEEDS_PP, E_SPLIT_RANK_RANGE, E_ORDER_UNKNOWN_AXIS, E_ORDER_DUPLICATE_AXIS, E_ORDER_MISSING_AXIS,
/// E_PP_GROUPS_DIFFER. No size is ever rounded or clamped.
ResolvedSizes resolve(const ParallelSizes& asked);

/// Attention and every parameter outside the experts: tp, cp, dp, pp.
RankGenerator dense_grid(const ResolvedSizes& sizes);
/// The experts: etp (as axis tp), ep, edp (as axis dp), pp. The same order drives both grids.
RankGenerator expert_grid(const ResolvedSizes& sizes);

/// Whether the groups along etp of the expert grid are those along tp of the dense one. With etp = tp an order with ep
/// before tp can give others.
bool has_same_tensor_groups(const ResolvedSizes& sizes);

}  // namespace megalith::grid
