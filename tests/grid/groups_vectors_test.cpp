#include "tests/grid/groups_vectors.h"

#include <set>

#include <gtest/gtest.h>

#include "megalith/grid/group_catalog.h"
#include "megalith/grid/layer_assignment.h"
#include "megalith/grid/parallel_state.h"

#include "tests/grid/grid_testing.h"

namespace megalith::grid {
namespace {

using nlohmann::ordered_json;

TEST(GroupVectors, SizesOfEveryExample) {
  for (const ordered_json& example : group_vectors().at("examples")) {
    SCOPED_TRACE(example.at("id").dump());
    const ResolvedSizes sizes = resolve(sizes_from(example.at("args")));
    const ordered_json got = {{"tp", sizes.tp},   {"cp", sizes.cp}, {"dp", sizes.dp},   {"pp", sizes.pp},
                              {"etp", sizes.etp}, {"ep", sizes.ep}, {"edp", sizes.edp}, {"order", sizes.order}};
    EXPECT_EQ(got.dump(), example.at("resolved").dump());
    EXPECT_EQ(sizes.world_size, example.at("args").at("world_size").get<int>());
  }
}

TEST(GroupVectors, GroupsOfEveryExample) {
  for (const ordered_json& example : group_vectors().at("examples")) {
    const GroupCatalog catalog(resolve(sizes_from(example.at("args"))));
    for (const auto& [name, groups] : example.at("dense").items()) {
      EXPECT_EQ(as_vectors(catalog.groups(parse_group_kind(name))), groups.get<Groups>())
          << example.at("id") << ' ' << name;
    }
    const ordered_json expert = example.value("expert", ordered_json::object());
    for (const auto& [name, groups] : expert.items()) {
      const GroupList got = name == "pp" ? catalog.expert().groups("pp").all() : catalog.groups(parse_group_kind(name));
      EXPECT_EQ(as_vectors(got), groups.get<Groups>()) << example.at("id") << ' ' << name;
    }
  }
}

TEST(GroupVectors, PlacementOfEveryExample) {
  for (const ordered_json& example : group_vectors().at("examples")) {
    const GroupCatalog catalog(resolve(sizes_from(example.at("args"))));
    const ordered_json& placement = example.at("placement");
    for (const auto& [name, count] : placement.at("groups_crossing_nodes").items()) {
      EXPECT_EQ(catalog.groups_crossing_nodes(parse_group_kind(name), placement.at("ranks_per_node")), count.get<int>())
          << example.at("id") << ' ' << name;
    }
  }
}

/// What the state has of its rank, under the names of the vectors.
ordered_json describe_rank(const ParallelState& state) {
  ordered_json got{{"rank", state.global_rank()}};
  for (const char* kind : {"tp", "cp", "dp", "pp", "etp", "ep", "edp"}) {
    got[std::string(kind) + "_rank"] = state.rank(parse_group_kind(kind));
  }
  for (const char* kind : {"tp", "cp", "dp", "pp", "mp", "ep", "etp", "edp"}) {
    got[std::string(kind) + "_group"] = state.ranks(parse_group_kind(kind));
  }
  got["pp_first"] = state.pp_first();
  got["pp_last"] = state.pp_last();
  got["pp_next"] = state.pp_next();
  got["pp_prev"] = state.pp_prev();
  for (const char* kind : {"tp", "dp", "mp"}) got[std::string(kind) + "_src"] = state.src_rank(parse_group_kind(kind));
  got["is_first_stage"] = state.is_first_stage();
  got["is_last_stage"] = state.is_last_stage();
  got["embd_group"] = state.in_embedding_group() ? ordered_json(state.ranks(GroupKind::embd)) : ordered_json();
  got["pos_embd_group"] =
      state.in_position_embedding_group() ? ordered_json(state.ranks(GroupKind::pos_embd)) : ordered_json();
  if (state.split_rank()) {
    got["before_split"] = state.stage_before_split();
    got["after_split"] = state.stage_after_split();
    got["at_split"] = state.stage_at_split();
  }
  return got;
}

TEST(GroupVectors, EveryRankOfEveryExample) {
  int checked = 0;
  for (const ordered_json& example : group_vectors().at("examples")) {
    const ResolvedSizes sizes = resolve(sizes_from(example.at("args")));
    for (const ordered_json& want : example.value("per_rank", ordered_json::array())) {
      ParallelState state;
      state.initialize(sizes, want.at("rank"));
      EXPECT_EQ(describe_rank(state).dump(), want.dump()) << example.at("id");
      ++checked;
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(GroupVectors, Counts) {
  for (const ordered_json& row : group_vectors().at("counts")) {
    SCOPED_TRACE(row.dump());
    const GroupCatalog catalog(resolve(sizes_from(row.at("args"))));
    EXPECT_EQ(catalog.sizes().dp, row.at("resolved").at("dp").get<int>());
    EXPECT_EQ(catalog.sizes().etp, row.at("resolved").at("etp").get<int>());
    EXPECT_EQ(catalog.sizes().edp, row.at("resolved").at("edp").get<int>());
    for (const auto& [name, count_and_size] : row.at("groups_count_and_size").items()) {
      const GroupKind kind = parse_group_kind(name);
      EXPECT_EQ(catalog.num_groups(kind), count_and_size.at(0).get<int>()) << name;
      EXPECT_EQ(catalog.group_size(kind), count_and_size.at(1).get<int>()) << name;
      EXPECT_EQ(catalog.groups(kind).size(), count_and_size.at(0).get<int>()) << name;
    }
  }
}

/// The coordinate that the tables call "etp", "edp", "tp", ...
Axis axis_named(std::string name) {
  if (name.front() == 'e' && name != "ep") name.erase(0, 1);
  for (const Axis axis : kAxes) {
    if (name_of(axis) == name) return axis;
  }
  throw std::runtime_error("unknown coordinate in groups.json: " + name);
}

TEST(GroupVectors, GroupIndexTables) {
  ParallelSizes asked{.world_size = 16, .tp = 4, .pp = 2, .ep = 4};
  asked.etp = 1;
  const GroupCatalog catalog(resolve(asked));
  for (const ordered_json& table : group_vectors().at("group_index")) {
    SCOPED_TRACE(table.dump());
    const RankGenerator& grid = table.at("grid") == "dense" ? catalog.dense() : catalog.expert();
    const std::string token(name_of(axis_named(table.at("group"))));
    const MaskedGroups groups = grid.groups(token);
    const auto names = table.at("coordinates").get<std::vector<std::string>>();
    for (const auto& row : table.at("rows").get<std::vector<std::vector<int>>>()) {
      PerAxis coordinates;
      int by_strides = 0;
      for (std::size_t i = 0; i < names.size(); ++i) {
        coordinates[axis_named(names[i])] = row[i];
        by_strides += row[i] * table.at("strides").at(i).get<int>();
      }
      Axis along = axis_named(table.at("group"));
      for (int j = 0; j < grid.sizes()[along]; ++j) {  // wherever along the group: the same index
        coordinates[along] = j;
        EXPECT_EQ(groups.group_of(grid.rank(coordinates)), row.back());
      }
      EXPECT_EQ(by_strides, row.back());
    }
  }
}

TEST(GroupVectors, MaskedGroups) {
  for (const ordered_json& row : group_vectors().at("masked_groups")) {
    std::vector<MaskedAxis> axes;
    for (std::size_t i = 0; i < row.at("shape").size(); ++i)
      axes.push_back({row.at("shape").at(i), row.at("mask").at(i)});
    const MaskedGroups groups(axes);
    EXPECT_EQ(groups.world_size(), row.at("world").get<int>()) << row.dump();
    EXPECT_EQ(as_vectors(groups.all()), row.at("groups").get<Groups>()) << row.dump();
  }
}

void make_call(const ordered_json& row) {
  const ordered_json& args = row.at("args");
  if (row.at("call") == "resolve") {
    resolve(sizes_from(args));
  } else if (row.at("call") == "get_ranks") {
    dense_grid(resolve(sizes_from(args))).groups(args.at("token").get<std::string>());
  } else if (row.at("call") == "generator") {
    const PerAxis sizes{
        .tp = args.at("tp"), .cp = args.at("cp"), .ep = args.at("ep"), .dp = args.at("dp"), .pp = args.at("pp")};
    RankGenerator(sizes, args.at("order").get<std::string>());
  } else {
    throw std::runtime_error("unknown call in groups.json");
  }
}

TEST(GroupVectors, Errors) {
  for (const ordered_json& row : group_vectors().at("errors")) {
    EXPECT_EQ(config_error([&] { make_call(row); }),
              row.at("code").get<std::string>() + ": " + row.at("message").get<std::string>());
  }
}

TEST(GroupVectors, LayerAssignment) {
  for (const ordered_json& row : group_vectors().at("layer_assignment")) {
    ASSERT_EQ(row.at("numbering").get<std::string>(), "1-based");
    const int chunks = row.at("vpp").is_null() ? 1 : row.at("vpp").get<int>();
    const auto got = LayerAssignment::even(row.at("layers"), row.at("pp"), chunks);
    ordered_json by_rank = ordered_json::array();
    for (int rank = 0; rank < got.pp(); ++rank) {
      ordered_json by_chunk = ordered_json::array();
      for (int chunk = 0; chunk < chunks; ++chunk) {
        ordered_json layers = ordered_json::array();
        for (Index layer = got.at(rank, chunk).begin; layer < got.at(rank, chunk).end; ++layer)
          layers.push_back(layer + 1);
        by_chunk.push_back(layers);
      }
      by_rank.push_back(by_chunk);
    }
    EXPECT_EQ(by_rank.dump(), row.at("chunks_by_pp_rank").dump());
  }
}

// What formulas in circulation give, against what is right.
TEST(GroupVectors, Errata) {
  ParallelSizes asked{.world_size = 16, .tp = 4, .pp = 2, .ep = 4};
  asked.etp = 1;
  const GroupCatalog moe(resolve(asked));
  const RankGenerator& expert = moe.expert();
  std::vector<int> ranks, with_wrong_stride;
  for (int pp = 0; pp < 2; ++pp) {
    for (int edp = 0; edp < 2; ++edp) {
      for (int ep = 0; ep < 4; ++ep) {
        ranks.push_back(expert.rank({.tp = 0, .cp = 0, .ep = ep, .dp = edp, .pp = pp}));
        const int stride_etp_edp = expert.strides().tp * expert.sizes().tp * expert.sizes().dp;
        with_wrong_stride.push_back(ep * expert.strides().ep + edp * stride_etp_edp + pp * expert.strides().pp);
      }
    }
  }
  const ordered_json& errata = group_vectors().at("errata");
  EXPECT_EQ(ranks, errata.at(0).at("right_formula_ranks").get<std::vector<int>>());
  EXPECT_EQ(with_wrong_stride, errata.at(0).at("printed_formula_ranks_for_etp1_ep4_edp2_pp2").get<std::vector<int>>());
  EXPECT_EQ(std::set<int>(ranks.begin(), ranks.end()).size(), 16u);

  const std::vector<int> ep_group_3 = moe.members(GroupKind::ep, 3);
  EXPECT_EQ(ep_group_3, errata.at(1).at("right").get<std::vector<int>>());
  EXPECT_NE(ep_group_3, errata.at(1).at("printed_expression_value").get<std::vector<int>>());

  const GroupCatalog dense(resolve({.world_size = 16, .tp = 2, .pp = 4}));
  EXPECT_EQ(as_vectors(dense.groups(GroupKind::tp_dp_cp)), errata.at(2).at("right").get<Groups>());
}

}  // namespace
}  // namespace megalith::grid
