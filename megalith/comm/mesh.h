#pragma once
#include <optional>

#include "megalith/comm/world.h"
#include "megalith/grid/group_catalog.h"
#include "megalith/grid/placement.h"

namespace megalith::comm {

/// The groups that one rank of a run communicates in, those of both grids. A layer takes only the group it uses. A
/// group of one rank communicates nothing and costs nothing; a group with the members of another is that group, so that
/// a dense model makes no more groups than the dense grid has. All are between the memories that the ranks compute in;
/// on GPUs only pp carries messages, between neighbouring stages.
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
  grid::PerAxis place(grid::GridKind grid) const;
  /// The group over which the gradients of such parameters are summed: dp_cp or edp.
  const Group& reduction_group(const grid::Placement& placement) const;
  /// The group of all ranks of one model copy that hold such a parameter's values: tp, embd, etp; null where no other
  /// rank does.
  const Group* replica_group(const grid::Placement& placement) const;
};

/// Makes the groups in the order of the catalogue, the same on every rank; `transfers`: what carries what is large.
/// Throws ConfigError when the sizes ask for more or fewer ranks than the world has.
Mesh make_mesh(World& world, const grid::ResolvedSizes& sizes, Transport transfers = Transport::copy_engines);

/// "rank 5 (tp 1, pp 0, dp 1)": how messages name a rank.
std::string describe(const Mesh& mesh);

}  // namespace megalith::comm
