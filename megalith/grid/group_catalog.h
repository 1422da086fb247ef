#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/grid/masked_groups.h"
#include "megalith/grid/parallel_config.h"
#include "megalith/grid/rank_generator.h"

namespace megalith::grid {

/// The kinds of groups, in the order in which `megalith groups` prints them and every rank creates them.
/// From the dense grid: dp .. tp_cp; from the expert grid: ep .. edp.
enum class GroupKind {
  dp,         ///< same parameters, different data
  dp_cp,      ///< gradient reduction of all parameters outside the experts: cp replicates weights
  cp,         ///< shares of one sequence
  mp,         ///< one model copy: tp x pp; norms and overflow checks
  tp,         ///< slices of the same layers
  pp,         ///< stages of one pipeline, in stage order; the same groups in both grids
  embd,       ///< copies of the tied word embedding: first, split and last stage of a pipeline
  pos_embd,   ///< owners of the position embedding: first and split stage
  tp_dp_cp,   ///< a whole stage
  tp_dp,      ///< a stage at one share of the sequence
  tp_cp,      ///< all tokens of one model copy's stage
  ep,         ///< different experts: tokens are exchanged here
  etp,        ///< slices of the same experts
  etp_ep,     ///< one copy of a stage's experts
  etp_ep_pp,  ///< one copy of all experts
  edp,        ///< same expert parameters: their gradient reduction
};
inline constexpr std::array<GroupKind, 16> kGroupKinds{
    GroupKind::dp,   GroupKind::dp_cp,    GroupKind::cp,        GroupKind::mp,    GroupKind::tp,    GroupKind::pp,
    GroupKind::embd, GroupKind::pos_embd, GroupKind::tp_dp_cp,  GroupKind::tp_dp, GroupKind::tp_cp, GroupKind::ep,
    GroupKind::etp,  GroupKind::etp_ep,   GroupKind::etp_ep_pp, GroupKind::edp};

/// "tp-dp-cp": the name on the command line, in files and in messages.
std::string_view name_of(GroupKind kind);
/// Throws ConfigError naming the nearest kind.
GroupKind parse_group_kind(std::string_view name);

/// A rank's membership in the groups of one kind.
struct Membership {
  GroupKind kind;
  std::string_view name;
  std::vector<int> ranks;  ///< all members; empty: this rank is in no group of the kind (embd on a middle stage)
};

/// All groups of both grids as pure arithmetic on (sizes, order): no network, nothing stored per rank.
/// Every kind but embd and pos_embd partitions the world; the groups of a kind have one size.
/// Sources: Narayanan et al. 2021, arXiv:2104.04473 (tensor x pipeline x data); Liu et al. 2025, arXiv:2504.14960
/// (folding the expert grid over the dense one).
class GroupCatalog {
 public:
  explicit GroupCatalog(const ResolvedSizes& sizes);

  const ResolvedSizes& sizes() const { return sizes_; }
  const RankGenerator& dense() const { return dense_; }
  const RankGenerator& expert() const { return expert_; }

  int num_groups(GroupKind kind) const { return entry(kind).groups.num_groups(); }
  int group_size(GroupKind kind) const;
  /// Groups by ascending number, members ascending. O(world size).
  GroupList groups(GroupKind kind) const;

  /// Members of one group. O(group size). Throws ConfigError unless group is in [0, num_groups(kind)).
  std::vector<int> members(GroupKind kind, int group) const;
  /// The number of the rank's group, or nothing when it is in none. Throws ConfigError on a rank outside the world.
  std::optional<int> group_of(GroupKind kind, int rank) const;
  /// The rank's groups of all 16 kinds in the order of kGroupKinds, which is the same on every rank: a rank that is in
  /// no group of a kind still has an entry there. O(sum of the group sizes).
  std::vector<Membership> memberships(int rank) const;

  /// The ranks that hold a copy of the word embedding (or, pos_embd, of the position embedding) in the rank's pipeline,
  /// whether or not this rank is one of them.
  std::vector<int> embedding_ranks(GroupKind kind, int rank) const;

  /// How many groups of the kind span more than one node, when node k holds the ranks [k*ranks_per_node, ...).
  /// Throws ConfigError (E_SIZE_NOT_POSITIVE) on ranks_per_node < 1.
  int groups_crossing_nodes(GroupKind kind, int ranks_per_node) const;

 private:
  /// embd and pos_embd keep the members of pp that sit on some stages; the other kinds keep all.
  struct Entry {
    MaskedGroups groups;
    std::vector<int> stages;  // ascending; empty: all
    std::vector<int> offsets() const;
  };
  const Entry& entry(GroupKind kind) const { return entries_[static_cast<std::size_t>(kind)]; }

  ResolvedSizes sizes_;
  RankGenerator dense_, expert_;
  std::vector<Entry> entries_;  // by kind
};

/// Where tensor or expert parallel groups span nodes: legal, but their traffic is the heaviest of all.
std::vector<std::string> placement_warnings(const GroupCatalog& catalog, int ranks_per_node);

}  // namespace megalith::grid
