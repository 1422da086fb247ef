#include "megalith/report/groups_report.h"

#include <array>
#include <charconv>
#include <span>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/grid/advice.h"
#include "megalith/grid/group_catalog.h"
#include "megalith/grid/parallel_state.h"

namespace megalith::apps {
namespace {

using grid::GroupCatalog;
using grid::GroupKind;
using grid::GroupList;

// The order of keys in the JSON report; the text report has the order of grid::kGroupKinds.
constexpr std::array kDenseKeys{GroupKind::dp,    GroupKind::dp_cp, GroupKind::cp,       GroupKind::mp,
                                GroupKind::tp,    GroupKind::pp,    GroupKind::tp_dp_cp, GroupKind::tp_dp,
                                GroupKind::tp_cp, GroupKind::embd,  GroupKind::pos_embd};
constexpr std::array kExpertKeys{GroupKind::ep, GroupKind::etp, GroupKind::etp_ep, GroupKind::etp_ep_pp,
                                 GroupKind::edp};

void append(std::string& out, int number) {
  std::array<char, 12> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out.append(digits.data(), end);
}
void append(std::string& out, std::string_view text) { out += text; }
void append(std::string& out, std::span<const int> ranks) {
  out += '[';
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) out += ", ";
    append(out, ranks[i]);
  }
  out += ']';
}
void append(std::string& out, const GroupList& groups, std::string_view separator) {
  for (int g = 0; g < groups.size(); ++g) {
    if (g > 0) out += separator;
    append(out, groups[g]);
  }
}
template <class... Parts>
void append_all(std::string& out, const Parts&... parts) {
  (append(out, parts), ...);
}

std::string text_report(const GroupCatalog& catalog, std::optional<int> ranks_per_node) {
  const grid::ResolvedSizes& s = catalog.sizes();
  std::string out;
  append_all(out, "world ", s.world_size, "\n");
  append_all(out, "dense tp ", s.tp, " cp ", s.cp, " dp ", s.dp, " pp ", s.pp, "\n");
  append_all(out, "expert etp ", s.etp, " ep ", s.ep, " edp ", s.edp, " pp ", s.pp, "\n");
  append_all(out, "order ", s.order, "\n");
  for (const GroupKind kind : grid::kGroupKinds) {
    append_all(out, name_of(kind), " ", catalog.num_groups(kind), ": ");
    append(out, catalog.groups(kind), " ");
    out += '\n';
  }
  if (!ranks_per_node) return out;
  for (const GroupKind kind : grid::kGroupKinds) {
    append_all(out, "crossing ", name_of(kind), " ", catalog.groups_crossing_nodes(kind, *ranks_per_node), " of ",
               catalog.num_groups(kind), "\n");
  }
  return out;
}

// The JSON is written by hand: every string in it is one of our own names, and a world of 100,000 ranks has 1.7 million
// numbers, which would cost a tree of as many nodes.
void append_json(std::string& out, std::string_view key, const GroupList& groups) {
  append_all(out, "    \"", key, "\": [");
  append(out, groups, ", ");
  out += ']';
}

void append_placement(std::string& out, const GroupCatalog& catalog, int ranks_per_node) {
  append_all(out, ",\n  \"placement\": {\n    \"ranks_per_node\": ", ranks_per_node,
             ",\n    \"groups_crossing_nodes\": {");
  std::string_view separator = "";
  const auto add = [&](GroupKind kind) {
    append_all(out, separator, "\"", name_of(kind), "\": ", catalog.groups_crossing_nodes(kind, ranks_per_node));
    separator = ", ";
  };
  for (const GroupKind kind : kDenseKeys) add(kind);
  for (const GroupKind kind : kExpertKeys) add(kind);
  out += "}\n  }";
}

std::string json_report(const GroupCatalog& catalog, std::optional<int> ranks_per_node) {
  const grid::ResolvedSizes& s = catalog.sizes();
  std::string out;
  append_all(out, "{\n  \"resolved\": {\"tp\": ", s.tp, ", \"cp\": ", s.cp, ", \"dp\": ", s.dp, ", \"pp\": ", s.pp);
  append_all(out, ", \"etp\": ", s.etp, ", \"ep\": ", s.ep, ", \"edp\": ", s.edp, ", \"order\": \"", s.order, "\"},\n");
  out += "  \"dense\": {\n";
  for (const GroupKind kind : kDenseKeys) {
    append_json(out, name_of(kind), catalog.groups(kind));
    out += kind == kDenseKeys.back() ? "\n" : ",\n";
  }
  out += "  },\n  \"expert\": {\n";
  for (const GroupKind kind : kExpertKeys) {
    append_json(out, name_of(kind), catalog.groups(kind));
    out += ",\n";
  }
  append_json(out, "pp", catalog.expert().groups("pp").all());
  out += "\n  }";
  if (ranks_per_node) append_placement(out, catalog, *ranks_per_node);
  out += "\n}\n";
  return out;
}

/// One line about a rank.
struct Field {
  std::string_view key;
  std::string value;  // the same in text and JSON; empty: the rank is in no such group
};

std::string shown(int number) { return std::to_string(number); }
std::string shown(const std::vector<int>& ranks) {
  std::string out;
  append(out, std::span(ranks));
  return out;
}
std::string yes_if(bool holds) { return holds ? "true" : "false"; }

std::vector<Field> rank_fields(const grid::ParallelState& state) {
  using enum GroupKind;
  const auto embedding = [&](GroupKind kind) {
    return state.is_member(kind) ? shown(state.ranks(kind)) : std::string();
  };
  const auto ignored = grid::VirtualStage::ignored;
  std::vector<Field> fields{{"rank", shown(state.global_rank())},
                            {"tp_rank", shown(state.rank(tp))},
                            {"cp_rank", shown(state.rank(cp))},
                            {"dp_rank", shown(state.rank(dp))},
                            {"pp_rank", shown(state.rank(pp))},
                            {"etp_rank", shown(state.rank(etp))},
                            {"ep_rank", shown(state.rank(ep))},
                            {"edp_rank", shown(state.rank(edp))},
                            {"tp_group", shown(state.ranks(tp))},
                            {"cp_group", shown(state.ranks(cp))},
                            {"dp_group", shown(state.ranks(dp))},
                            {"pp_group", shown(state.ranks(pp))},
                            {"mp_group", shown(state.ranks(mp))},
                            {"ep_group", shown(state.ranks(ep))},
                            {"etp_group", shown(state.ranks(etp))},
                            {"edp_group", shown(state.ranks(edp))},
                            {"pp_first", shown(state.pp_first())},
                            {"pp_last", shown(state.pp_last())},
                            {"pp_next", shown(state.pp_next())},
                            {"pp_prev", shown(state.pp_prev())},
                            {"tp_src", shown(state.src_rank(tp))},
                            {"dp_src", shown(state.src_rank(dp))},
                            {"mp_src", shown(state.src_rank(mp))},
                            {"is_first_stage", yes_if(state.is_first_stage(ignored))},
                            {"is_last_stage", yes_if(state.is_last_stage(ignored))},
                            {"embd_group", embedding(embd)},
                            {"pos_embd_group", embedding(pos_embd)}};
  if (state.split_rank()) {
    fields.push_back({"before_split", yes_if(state.stage_before_split())});
    fields.push_back({"after_split", yes_if(state.stage_after_split())});
    fields.push_back({"at_split", yes_if(state.stage_at_split())});
  }
  return fields;
}

grid::ResolvedSizes resolved(const grid::ParallelSizes& asked) {
  try {
    return grid::resolve(asked);
  } catch (const ConfigError& error) {
    throw ConfigError(str(error.what(), grid::advice(asked, error.what())));
  }
}

std::string rank_report(const grid::ParallelState& state, GroupsFormat format) {
  std::string out;
  if (format == GroupsFormat::text) {
    for (const Field& field : rank_fields(state)) {
      append_all(out, field.key, " ", field.value.empty() ? "none" : field.value, "\n");
    }
    return out;
  }
  std::string_view before = "{\n";
  for (const Field& field : rank_fields(state)) {
    append_all(out, before, "  \"", field.key, "\": ", field.value.empty() ? "null" : field.value);
    before = ",\n";
  }
  out += "\n}\n";
  return out;
}

}  // namespace

GroupsReport groups_report(const GroupsRequest& request) {
  const grid::ResolvedSizes sizes = resolved(request.sizes);
  const GroupCatalog catalog(sizes);
  GroupsReport report;
  if (request.ranks_per_node) report.warnings = grid::placement_warnings(catalog, *request.ranks_per_node);
  if (request.rank) {
    grid::ParallelState state;
    state.initialize(sizes, *request.rank);
    report.output = rank_report(state, request.format);
  } else if (request.format == GroupsFormat::json) {
    report.output = json_report(catalog, request.ranks_per_node);
  } else {
    report.output = text_report(catalog, request.ranks_per_node);
  }
  return report;
}

}  // namespace megalith::apps
