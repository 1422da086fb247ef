#pragma once
#include "megalith/comm/world.h"
#include "megalith/grid/group_catalog.h"

namespace megalith::grid {

/// The groups that one rank of a run communicates in. A layer takes only the group it uses. No group is missing: where
/// a rank belongs to none (embd on a middle stage) it has a group of itself, which communicates nothing. All are
/// between the memories that the ranks compute in; on GPUs only pp carries messages, between neighbouring stages.
struct Mesh {
  ResolvedSizes sizes;
  comm::Group world, tp, pp, dp, embd;

  int tp_rank() const { return tp.rank(); }
  int pp_rank() const { return pp.rank(); }
  int dp_rank() const { return dp.rank(); }
  bool first_stage() const { return pp.rank() == 0; }
  bool last_stage() const { return pp.rank() == pp.size() - 1; }
};

/// Makes the groups in the order of the catalogue, the same on every rank; `transfers`: what carries what is large.
/// Throws ConfigError when the sizes ask for more or fewer ranks than the world has.
Mesh make_mesh(comm::World& world, const ResolvedSizes& sizes, comm::Carrier transfers = comm::Carrier::copy_engines);

/// "rank 5 (tp 1, pp 0, dp 1)": how messages name a place.
std::string describe(const Mesh& mesh);

}  // namespace megalith::grid
