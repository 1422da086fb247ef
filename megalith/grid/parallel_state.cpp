#include "megalith/grid/parallel_state.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/grid/checks.h"

namespace megalith::grid {
namespace {

int index_in(const std::vector<int>& ranks, int rank) {  // ranks ascend
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

void ParallelState::initialize(const ResolvedSizes& sizes, int rank) {
  if (data_) {
    throw ConfigError(
        str("E_ALREADY_INITIALIZED: the parallel state of rank ", data_->rank, " exists already; destroy() it first"));
  }
  Data fresh{.catalog = GroupCatalog(sizes), .rank = rank};
  for (Membership& membership : fresh.catalog.memberships(rank)) {
    fresh.kinds[static_cast<std::size_t>(membership.kind)].ranks = std::move(membership.ranks);
  }
  if (sizes.vpp) fresh.vpp_rank = 0;
  data_ = std::move(fresh);
}

void ParallelState::destroy() {
  require_initialized();
  data_.reset();
}

void ParallelState::require_initialized() const {
  if (!data_) throw ConfigError("E_NOT_INITIALIZED: the parallel state is used before initialize() or after destroy()");
}

const ParallelState::Data& ParallelState::data() const {
  require_initialized();
  return *data_;
}

ParallelState::Data& ParallelState::data() {
  require_initialized();
  return *data_;
}

bool ParallelState::is_member(GroupKind kind) const { return !state(kind).ranks.empty(); }

const std::vector<int>& ParallelState::ranks(GroupKind kind) const {
  const std::vector<int>& members = state(kind).ranks;
  if (members.empty()) {
    throw ConfigError(str("E_NOT_MEMBER: rank ", global_rank(), " is in no ", name_of(kind), " group"));
  }
  return members;
}

int ParallelState::size(GroupKind kind) const {
  if (const auto& size = state(kind).size_override) return *size;
  return static_cast<int>(ranks(kind).size());
}

int ParallelState::rank(GroupKind kind) const {
  if (const auto& rank = state(kind).rank_override) return *rank;
  return index_in(ranks(kind), global_rank());
}

int ParallelState::src_rank(GroupKind kind) const { return ranks(kind).front(); }

void ParallelState::override_size(GroupKind kind, std::optional<int> size) {
  if (size) require_size(str("size override of ", name_of(kind)), *size);
  state(kind).size_override = size;
}

void ParallelState::override_rank(GroupKind kind, std::optional<int> rank) {
  if (rank && *rank < 0) {
    throw ConfigError(str("[grid] rank override of ", name_of(kind), " = ", *rank, ": must be at least 0"));
  }
  state(kind).rank_override = rank;
}

int ParallelState::pp_first() const { return ranks(GroupKind::pp).front(); }
int ParallelState::pp_last() const { return ranks(GroupKind::pp).back(); }
int ParallelState::pp_next() const { return pp_neighbour(1); }
int ParallelState::pp_prev() const { return pp_neighbour(-1); }

int ParallelState::pp_neighbour(int step) const {
  const std::vector<int>& stages = ranks(GroupKind::pp);
  const int p = static_cast<int>(stages.size());
  return stages[static_cast<std::size_t>((index_in(stages, global_rank()) + step + p) % p)];
}

std::optional<int> ParallelState::vpp_size() const { return catalog().sizes().vpp; }
std::optional<int> ParallelState::vpp_rank() const { return data().vpp_rank; }

void ParallelState::set_vpp_rank(int chunk) {
  const std::optional<int> chunks = vpp_size();
  if (!chunks)
    throw ConfigError(str("[grid] vpp rank = ", chunk, ": this pipeline has no virtual stages (vpp is unset)"));
  require_below("vpp rank", chunk, *chunks);
  data().vpp_rank = chunk;
}

bool ParallelState::is_first_stage(VirtualStage which) const {
  return rank(GroupKind::pp) == 0 && (which == VirtualStage::ignored || vpp_rank().value_or(0) == 0);
}

bool ParallelState::is_last_stage(VirtualStage which) const {
  return rank(GroupKind::pp) == size(GroupKind::pp) - 1 &&
         (which == VirtualStage::ignored || vpp_rank().value_or(0) == vpp_size().value_or(1) - 1);
}

bool ParallelState::in_embedding_group(VirtualStage which) const {
  if (!is_member(GroupKind::embd)) return false;
  if (which == VirtualStage::ignored) return true;
  const std::vector<int>& holders = ranks(GroupKind::embd);
  if (global_rank() == holders.front()) return is_first_stage();
  if (global_rank() == holders.back()) return is_last_stage();
  return true;
}

bool ParallelState::in_position_embedding_group() const { return is_member(GroupKind::pos_embd); }

std::vector<int> ParallelState::embedding_ranks() const {
  return catalog().embedding_ranks(GroupKind::embd, global_rank());
}

std::vector<int> ParallelState::position_embedding_ranks() const {
  return catalog().embedding_ranks(GroupKind::pos_embd, global_rank());
}

std::optional<int> ParallelState::split_rank() const { return catalog().sizes().split_rank; }

bool ParallelState::stage_before_split(std::optional<int> stage) const {
  if (size(GroupKind::pp) == 1 || !split_rank()) return true;
  return stage.value_or(rank(GroupKind::pp)) < *split_rank();
}

bool ParallelState::stage_after_split(std::optional<int> stage) const {
  if (size(GroupKind::pp) == 1 || !split_rank()) return true;
  return stage.value_or(rank(GroupKind::pp)) >= *split_rank();
}

bool ParallelState::stage_at_split() const {
  const int stage = rank(GroupKind::pp);
  return stage_before_split(stage) && stage_after_split(stage + 1);
}

}  // namespace megalith::grid
