#include "megalith/grid/group_catalog.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/grid/checks.h"

namespace megalith::grid {
namespace {

enum class Grid { dense, expert };

struct KindInfo {
  std::string_view name;
  Grid grid;
  std::string_view token;  // the axes that a group spans
};

// By kind. embd and pos-embd are made of the pipeline groups.
constexpr std::array<KindInfo, kGroupKinds.size()> kKinds{{
    {"dp", Grid::dense, "dp"},
    {"dp-cp", Grid::dense, "dp-cp"},
    {"cp", Grid::dense, "cp"},
    {"mp", Grid::dense, "tp-pp"},
    {"tp", Grid::dense, "tp"},
    {"pp", Grid::dense, "pp"},
    {"embd", Grid::dense, "pp"},
    {"pos-embd", Grid::dense, "pp"},
    {"tp-dp-cp", Grid::dense, "tp-dp-cp"},
    {"tp-dp", Grid::dense, "tp-dp"},
    {"tp-cp", Grid::dense, "tp-cp"},
    {"ep", Grid::expert, "ep"},
    {"etp", Grid::expert, "tp"},
    {"etp-ep", Grid::expert, "tp-ep"},
    {"etp-ep-pp", Grid::expert, "tp-ep-pp"},
    {"edp", Grid::expert, "dp"},
}};

bool is_embedding(GroupKind kind) { return kind == GroupKind::embd || kind == GroupKind::pos_embd; }

/// The stages that hold a copy of the embedding, ascending.
std::vector<int> embedding_stages(GroupKind kind, const ResolvedSizes& sizes) {
  std::vector<int> stages{0};
  if (sizes.split_rank) stages.push_back(*sizes.split_rank);
  if (kind == GroupKind::embd && stages.back() != sizes.pp - 1) stages.push_back(sizes.pp - 1);
  return stages;
}

}  // namespace

std::string_view name_of(GroupKind kind) { return kKinds[static_cast<std::size_t>(kind)].name; }

GroupKind parse_group_kind(std::string_view name) {
  std::array<std::string_view, kGroupKinds.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (kKinds[i].name == name) return kGroupKinds[i];
    names[i] = kKinds[i].name;
  }
  const std::string_view near = nearest(name, names);
  std::string all;
  for (const std::string_view known : names) all += str(all.empty() ? "" : ", ", known);
  throw ConfigError(str("[grid] group kind = '", name, "': must be one of ", all,
                        near.empty() ? "" : str("; did you mean '", near, "'?")));
}

GroupCatalog::GroupCatalog(const ResolvedSizes& sizes)
    : sizes_(sizes), dense_(dense_grid(sizes)), expert_(expert_grid(sizes)) {
  for (const GroupKind kind : kGroupKinds) {
    const KindInfo& info = kKinds[static_cast<std::size_t>(kind)];
    const RankGenerator& grid = info.grid == Grid::dense ? dense_ : expert_;
    entries_.push_back(
        {grid.groups(info.token), is_embedding(kind) ? embedding_stages(kind, sizes) : std::vector<int>()});
  }
}

std::vector<int> GroupCatalog::Entry::offsets() const {
  if (stages.empty()) return groups.offsets();
  std::vector<int> kept;
  for (const int stage : stages) kept.push_back(groups.offset(stage));
  return kept;
}

int GroupCatalog::group_size(GroupKind kind) const {
  const Entry& e = entry(kind);
  return e.stages.empty() ? e.groups.group_size() : static_cast<int>(e.stages.size());
}

GroupList GroupCatalog::groups(GroupKind kind) const {
  const Entry& e = entry(kind);
  return e.groups.groups_of(e.offsets());
}

std::vector<int> GroupCatalog::members(GroupKind kind, int group) const {
  const Entry& e = entry(kind);
  require_below(str(name_of(kind), " group"), group, e.groups.num_groups());
  std::vector<int> ranks = e.offsets();
  const int first = e.groups.first(group);
  for (int& rank : ranks) rank += first;
  return ranks;
}

std::optional<int> GroupCatalog::group_of(GroupKind kind, int rank) const {
  require_below("rank", rank, sizes_.world_size);
  const Entry& e = entry(kind);
  if (!e.stages.empty() && !std::binary_search(e.stages.begin(), e.stages.end(), e.groups.index_of(rank))) {
    return std::nullopt;
  }
  return e.groups.group_of(rank);
}

std::vector<Membership> GroupCatalog::memberships(int rank) const {
  std::vector<Membership> all;
  for (const GroupKind kind : kGroupKinds) {
    const std::optional<int> group = group_of(kind, rank);
    all.push_back({kind, name_of(kind), group ? members(kind, *group) : std::vector<int>()});
  }
  return all;
}

std::vector<int> GroupCatalog::embedding_ranks(GroupKind kind, int rank) const {
  if (!is_embedding(kind)) {
    throw ConfigError(str("[grid] embedding kind = ", name_of(kind), ": must be embd or pos-embd"));
  }
  require_below("rank", rank, sizes_.world_size);
  return members(kind, entry(kind).groups.group_of(rank));
}

int GroupCatalog::groups_crossing_nodes(GroupKind kind, int ranks_per_node) const {
  require_size("ranks_per_node", ranks_per_node);
  const Entry& e = entry(kind);
  const int last_offset = e.groups.offset(e.stages.empty() ? e.groups.group_size() - 1 : e.stages.back());
  int crossing = 0;
  for (int g = 0; g < e.groups.num_groups(); ++g) {
    const int first = e.groups.first(g);  // members ascend: a group crosses when its ends sit on different nodes
    crossing += first / ranks_per_node != (first + last_offset) / ranks_per_node ? 1 : 0;
  }
  return crossing;
}

std::vector<std::string> placement_warnings(const GroupCatalog& catalog, int ranks_per_node) {
  std::vector<std::string> warnings;
  const auto warn = [&](GroupKind kind, const char* groups, const char* axis, int size) {
    const int crossing = catalog.groups_crossing_nodes(kind, ranks_per_node);
    if (crossing == 0) return;
    warnings.push_back(str(crossing, " of ", catalog.num_groups(kind), ' ', groups, " span more than one node: with ",
                           axis, ' ', size, " and ", ranks_per_node, " ranks per node, choose ",
                           axis == std::string_view("tp") ? "a " : "an ", axis, " that divides ", ranks_per_node,
                           " and put ", axis,
                           axis == std::string_view("tp") ? " first in the order" : " before dp and pp in the order"));
  };
  warn(GroupKind::tp, "tensor parallel groups", "tp", catalog.sizes().tp);
  warn(GroupKind::ep, "expert parallel groups", "ep", catalog.sizes().ep);
  return warnings;
}

}  // namespace megalith::grid
