#pragma once
#include <optional>

#include "megalith/comm/world.h"
#include "megalith/grid/group_catalog.h"
#include "megalith/grid/placement.h"

namespace megalith::comm {

/// The groups in which one rank of a run communicates, of both grids. A layer takes only the group that it uses. A
/// group of one rank communicates nothing and costs nothing. A group with the members of another one is that same
/// group, so a dense model makes no more groups than the dense grid has. All groups are between the memories in which
/// the ranks compute. On GPUs only pp carries messages, between neighbouring stages.
struct Mesh {
  grid::ResolvedSizes sizes;
  Group world;
  Group dp;     ///< same share of every sequence, other samples: data is numbered by it
  Group dp_cp;  ///< same parameters: gradients are summed here, and the optimizer is sharded over it
  Group cp;     ///< shares of one sequence
  Group tp, pp;
  Group embd;  ///< the tied word embedding; of this rank alone on a middle stage
  Group ep;    ///< other experts: tokens are exchanged here
  Group etp;   ///< slices of the same experts
  Group etp_ep;
  std::optional<Group> etp_ep_pp;  ///< one copy of all experts; only where the two grids differ
  Group edp;                       ///< same expert parameters: their gradients are summed here

  int tp_rank() const { return tp.rank(); }
  int pp_rank() const { return pp.rank(); }
  int dp_rank() const { return dp.rank(); }
  bool first_stage() const { return pp.rank() == 0; }
  bool last_stage() const { return pp.rank() == pp.size() - 1; }

  /// This rank's coordinates on a grid.
  grid::PerAxis coordinates(grid::GridKind grid) const;
  /// The group that sums the gradients of parameters with this placement: dp_cp or edp.
  const Group& reduction_group(const grid::Placement& placement) const;
  /// The ranks of one model copy that hold the same values of parameters with this placement: tp, embd or etp. Null if
  /// no other rank holds them.
  const Group* replica_group(const grid::Placement& placement) const;
};

/// Makes the groups in the order of the catalogue, the same on every rank. `transfers`: the transport of large calls.
/// Throws ConfigError if the sizes need more or fewer ranks than the world has.
Mesh make_mesh(World& world, const grid::ResolvedSizes& sizes, Transport transfers = Transport::copy_engines);

/// "rank 5 (tp 1, pp 0, dp 1)": the name of a rank in messages.
std::string describe(const Mesh& mesh);

}  // namespace megalith::comm
