#include "megalith/grid/group_catalog.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tests/grid/grid_testing.h"

namespace megalith::grid {
namespace {

bool partitions_the_world(GroupKind kind) { return kind != GroupKind::embd && kind != GroupKind::pos_embd; }

std::vector<int> group_containing(const GroupCatalog& catalog, GroupKind kind, int rank) {
  const auto group = catalog.group_of(kind, rank);
  return group ? catalog.members(kind, *group) : std::vector<int>();
}

/// Legal sizes, a new draw for every seed.
class RandomSizes : public testing::TestWithParam<std::uint64_t> {
 protected:
  RandomSizes() {
    std::mt19937_64 random(GetParam());
    do {
      asked_ = random_sizes(random);
      try {
        catalog_.emplace(resolve(asked_));
      } catch (const ConfigError&) {  // the pipeline groups of the two grids differ: draw again
      }
    } while (!catalog_);
  }
  const GroupCatalog& catalog() const { return *catalog_; }
  std::string where() const { return str("seed ", GetParam(), ": ", describe(asked_)); }
  std::string_view first_axis() const { return std::string_view(asked_.order).substr(0, 2); }
  std::string_view last_axis() const { return std::string_view(asked_.order).substr(asked_.order.size() - 2); }

 private:
  ParallelSizes asked_;
  std::optional<GroupCatalog> catalog_;
};

TEST_P(RandomSizes, KindsPartitionTheWorld) {
  const int n = catalog().sizes().world_size;
  for (const GroupKind kind : kGroupKinds) {
    const GroupList groups = catalog().groups(kind);
    ASSERT_EQ(groups.size(), catalog().num_groups(kind)) << where() << ' ' << name_of(kind);
    ASSERT_EQ(groups.group_size(), catalog().group_size(kind)) << where() << ' ' << name_of(kind);
    std::vector<int> sorted = groups.ranks();
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end()) << where() << ' ' << name_of(kind);
    ASSERT_TRUE(sorted.front() >= 0 && sorted.back() < n) << where() << ' ' << name_of(kind);
    if (partitions_the_world(kind)) {
      ASSERT_EQ(sorted.size(), static_cast<std::size_t>(n)) << where() << ' ' << name_of(kind);
    }
    for (int g = 0; g < groups.size(); ++g) {
      ASSERT_TRUE(std::is_sorted(groups[g].begin(), groups[g].end())) << where() << ' ' << name_of(kind);
      ASSERT_TRUE(g == 0 || groups[g - 1].front() < groups[g].front()) << where() << ' ' << name_of(kind);
    }
  }
}

TEST_P(RandomSizes, OneRanksGroupEqualsTheListOfAll) {
  for (const GroupKind kind : kGroupKinds) {
    const GroupList groups = catalog().groups(kind);
    std::vector<std::vector<int>> of_rank(static_cast<std::size_t>(catalog().sizes().world_size));
    for (int g = 0; g < groups.size(); ++g) {
      for (const int rank : groups[g]) of_rank[static_cast<std::size_t>(rank)] = {groups[g].begin(), groups[g].end()};
    }
    for (int rank = 0; rank < catalog().sizes().world_size; ++rank) {
      ASSERT_EQ(group_containing(catalog(), kind, rank), of_rank[static_cast<std::size_t>(rank)])
          << where() << ' ' << name_of(kind) << " rank " << rank;
      const Membership membership = catalog().memberships(rank)[static_cast<std::size_t>(kind)];
      ASSERT_EQ(membership.ranks, of_rank[static_cast<std::size_t>(rank)]) << where() << ' ' << name_of(kind);
      ASSERT_EQ(membership.kind, kind);
      ASSERT_EQ(membership.name, name_of(kind));
    }
  }
}

TEST_P(RandomSizes, PairsOfKindsMeetInOneRank) {
  using enum GroupKind;
  const std::pair<GroupKind, GroupKind> pairs[] = {{tp, pp}, {tp, dp}, {dp, pp}, {ep, edp}, {etp, ep}};
  for (int rank = 0; rank < catalog().sizes().world_size; ++rank) {
    for (const auto& [one, other] : pairs) {
      const std::vector<int> a = group_containing(catalog(), one, rank);
      const std::vector<int> b = group_containing(catalog(), other, rank);
      std::vector<int> both;
      std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
      ASSERT_EQ(both, std::vector<int>{rank}) << where() << ' ' << name_of(one) << ' ' << name_of(other);
    }
  }
}

TEST_P(RandomSizes, FirstAxisIsAdjacentAndLastAxisFarthest) {
  const int n = catalog().sizes().world_size;
  const int stage_width = n / catalog().sizes().pp;
  for (int rank = 0; rank < n; ++rank) {
    if (first_axis() == "tp") {
      const std::vector<int> tp = group_containing(catalog(), GroupKind::tp, rank);
      ASSERT_EQ(tp.back() - tp.front(), catalog().sizes().tp - 1) << where();
    }
    if (last_axis() == "pp") {
      const std::vector<int> pp = group_containing(catalog(), GroupKind::pp, rank);
      for (std::size_t stage = 0; stage < pp.size(); ++stage) {
        ASSERT_EQ(pp[stage] / stage_width, static_cast<int>(stage)) << where();
        ASSERT_EQ(pp[stage] - pp[0], static_cast<int>(stage) * stage_width) << where();
      }
    }
  }
}

TEST_P(RandomSizes, AModelCopyHoldsOneRankOfEveryDataGroup) {
  // With cp a model copy at one share of the sequence meets every dp-cp group once; without cp these are the dp groups.
  std::vector<GroupKind> kinds{GroupKind::dp_cp};
  if (catalog().sizes().cp == 1) kinds.push_back(GroupKind::dp);
  const GroupList copies = catalog().groups(GroupKind::mp);
  for (const GroupKind kind : kinds) {
    for (int g = 0; g < copies.size(); ++g) {
      std::set<int> data_groups;
      for (const int rank : copies[g]) data_groups.insert(*catalog().group_of(kind, rank));
      ASSERT_EQ(data_groups.size(), copies[g].size()) << where() << ' ' << name_of(kind);
      ASSERT_EQ(static_cast<int>(data_groups.size()), catalog().num_groups(kind)) << where() << ' ' << name_of(kind);
    }
  }
}

TEST_P(RandomSizes, EmbeddingGroupsAreStagesOfTheirPipeline) {
  const ResolvedSizes& sizes = catalog().sizes();
  for (int rank = 0; rank < sizes.world_size; ++rank) {
    const std::vector<int> pp = group_containing(catalog(), GroupKind::pp, rank);
    std::set<int> embd{pp.front(), pp.back()};
    std::set<int> pos_embd{pp.front()};
    if (sizes.split_rank) {
      embd.insert(pp[static_cast<std::size_t>(*sizes.split_rank)]);
      pos_embd.insert(pp[static_cast<std::size_t>(*sizes.split_rank)]);
    }
    const auto check = [&](GroupKind kind, const std::set<int>& want) {
      const std::vector<int> holders(want.begin(), want.end());
      EXPECT_EQ(catalog().embedding_ranks(kind, rank), holders) << where();
      EXPECT_EQ(group_containing(catalog(), kind, rank), want.contains(rank) ? holders : std::vector<int>()) << where();
    };
    check(GroupKind::embd, embd);
    check(GroupKind::pos_embd, pos_embd);
  }
}

TEST_P(RandomSizes, ExpertGroupsStayInTheirStage) {
  EXPECT_EQ(catalog().dense().groups("pp").all(), catalog().expert().groups("pp").all()) << where();
  for (const GroupKind kind : {GroupKind::ep, GroupKind::etp, GroupKind::edp, GroupKind::etp_ep}) {
    const GroupList groups = catalog().groups(kind);
    for (int g = 0; g < groups.size(); ++g) {
      std::set<int> stages;
      for (const int rank : groups[g]) stages.insert(catalog().dense().coordinates(rank).pp);
      ASSERT_EQ(stages.size(), 1u) << where() << ' ' << name_of(kind);
    }
  }
}

TEST_P(RandomSizes, CrossingNodesEqualsACountOverMembers) {
  for (const int ranks_per_node : {1, 2, 3, 8, 1000}) {
    for (const GroupKind kind : kGroupKinds) {
      const GroupList groups = catalog().groups(kind);
      int crossing = 0;
      for (int g = 0; g < groups.size(); ++g) {
        std::set<int> nodes;
        for (const int rank : groups[g]) nodes.insert(rank / ranks_per_node);
        crossing += nodes.size() > 1 ? 1 : 0;
      }
      ASSERT_EQ(catalog().groups_crossing_nodes(kind, ranks_per_node), crossing)
          << where() << ' ' << name_of(kind) << ", " << ranks_per_node << " ranks per node";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSizes, testing::Range<std::uint64_t>(1, 61));

TEST(GroupCatalog, WithoutExpertParallelismTheExpertGridFollowsTheDenseOne) {
  const GroupCatalog catalog(resolve({.world_size = 48, .tp = 2, .cp = 3, .pp = 2}));
  EXPECT_EQ(catalog.groups(GroupKind::edp), catalog.groups(GroupKind::dp_cp));
  EXPECT_EQ(catalog.groups(GroupKind::etp), catalog.groups(GroupKind::tp));
}

TEST(GroupCatalog, SplitAtTheLastStageIsNotHeldTwice) {
  const GroupCatalog catalog(resolve({.world_size = 4, .pp = 4, .split_rank = 3}));
  EXPECT_EQ(as_vectors(catalog.groups(GroupKind::embd)), (Groups{{0, 3}}));
  EXPECT_EQ(as_vectors(catalog.groups(GroupKind::pos_embd)), (Groups{{0, 3}}));
}

TEST(GroupCatalog, MembershipsKeepTheirPlaceOnEveryRank) {
  const GroupCatalog catalog(resolve({.world_size = 8, .tp = 2, .pp = 4}));
  const std::vector<Membership> middle = catalog.memberships(2);
  ASSERT_EQ(middle.size(), kGroupKinds.size());
  for (std::size_t i = 0; i < middle.size(); ++i) EXPECT_EQ(middle[i].kind, kGroupKinds[i]);
  EXPECT_EQ(middle[static_cast<std::size_t>(GroupKind::embd)].name, "embd");
  EXPECT_TRUE(middle[static_cast<std::size_t>(GroupKind::embd)].ranks.empty());
  EXPECT_EQ(middle[static_cast<std::size_t>(GroupKind::pp)].ranks, (std::vector<int>{0, 2, 4, 6}));
}

TEST(GroupCatalog, NamesReadBack) {
  for (const GroupKind kind : kGroupKinds) EXPECT_EQ(parse_group_kind(name_of(kind)), kind);
  const std::string error = config_error([] { parse_group_kind("tp-dpp"); });
  EXPECT_NE(error.find("group kind = 'tp-dpp'"), std::string::npos) << error;
  EXPECT_NE(error.find("did you mean 'tp-dp'?"), std::string::npos) << error;
}

TEST(GroupCatalog, ErrorsNameTheRange) {
  const GroupCatalog catalog(resolve({.world_size = 8, .tp = 2}));
  EXPECT_EQ(config_error([&] { catalog.group_of(GroupKind::tp, 8); }), "[grid] rank = 8: must be in 0..7");
  EXPECT_EQ(config_error([&] { catalog.memberships(-1); }), "[grid] rank = -1: must be in 0..7");
  EXPECT_EQ(config_error([&] { catalog.members(GroupKind::tp, 4); }), "[grid] tp group = 4: must be in 0..3");
  EXPECT_EQ(config_error([&] { catalog.embedding_ranks(GroupKind::tp, 0); }),
            "[grid] embedding kind = tp: must be embd or pos-embd");
  EXPECT_EQ(config_error([&] { catalog.groups_crossing_nodes(GroupKind::tp, 0); }),
            "E_SIZE_NOT_POSITIVE: ranks_per_node=0: every size must be at least 1");
}

TEST(GroupCatalog, WarnsWhenTensorGroupsCrossNodes) {
  const GroupCatalog catalog(resolve({.world_size = 16, .tp = 8}));
  EXPECT_EQ(placement_warnings(catalog, 8), std::vector<std::string>());
  EXPECT_EQ(placement_warnings(catalog, 4),
            std::vector<std::string>{"2 of 2 tensor parallel groups span more than one node: with tp 8 and 4 ranks per "
                                     "node, choose "
                                     "a tp that divides 4 and put tp first in the order"});
}

TEST(GroupCatalog, WarnsWhenExpertGroupsCrossNodes) {
  const GroupCatalog catalog(resolve({.world_size = 16, .ep = 8}));
  EXPECT_EQ(placement_warnings(catalog, 8), std::vector<std::string>());
  EXPECT_EQ(placement_warnings(catalog, 4),
            std::vector<std::string>{"2 of 2 expert parallel groups span more than one node: with "
                                     "ep 8 and 4 ranks per node, choose an ep that divides 4 and put ep before dp and "
                                     "pp in the order"});
}

// The largest world that an int can number: nothing may be stored per rank.
TEST(GroupCatalog, OneRankOfAHugeWorld) {
  const GroupCatalog catalog(resolve({.world_size = 1 << 30, .tp = 8, .pp = 16, .ep = 64, .etp = 1}));
  const int rank = (1 << 30) - 1;
  EXPECT_EQ(catalog.num_groups(GroupKind::tp), 1 << 27);
  EXPECT_EQ(group_containing(catalog, GroupKind::tp, rank).front(), rank - 7);
  EXPECT_EQ(group_containing(catalog, GroupKind::pp, rank).front(), (1 << 26) - 1);
  EXPECT_EQ(group_containing(catalog, GroupKind::ep, rank).front(), rank - 63);
  EXPECT_EQ(catalog.group_of(GroupKind::embd, rank), (1 << 26) - 1);
}

}  // namespace
}  // namespace megalith::grid
