// How row collectives over NCCL exchange and stage rows. The transport itself: nccl_test.cpp.
#include "megalith/comm/nccl/staged_rows.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/hash.h"

namespace megalith::comm {
namespace {

struct StagedSizes {
  int members = 0;
  Index rows = 0, places = 0;
};

/// Random places of a member, some of kNoMember, many alike. `round` makes them differ.
std::vector<RowPlace> places_for(const StagedSizes& sizes, int member, int round) {
  std::vector<RowPlace> places;
  for (Index i = 0; i < sizes.places * (member % 3); ++i) {
    const std::uint64_t word =
        mix64(mix64(static_cast<std::uint64_t>(member * 100 + round)) + static_cast<std::uint64_t>(i));
    const auto one_of = [](std::uint64_t bits, Index count) {
      return static_cast<std::int32_t>(bits % static_cast<std::uint64_t>(count));
    };
    if (sizes.rows == 0 || word % 7 == 0) {
      places.push_back({kNoMember, -1});
    } else {
      places.push_back({one_of(word >> 8, sizes.members), one_of(word >> 32, sizes.rows)});
    }
  }
  return places;
}

int value_of(int member, std::int32_t row) { return member * 1000000 + row; }

template <class T>
using OfMembers = std::vector<std::vector<T>>;

/// Copies the items of all ranges `from(a, b)` of member a to the ranges `to(b, a)` of member b.
template <class T, class From, class To>
void move_between(OfMembers<T>& staged, const From& from, const To& to) {
  const int members = static_cast<int>(staged.size());
  for (int a = 0; a < members; ++a) {
    for (int b = 0; b < members; ++b) {
      const StagedRange sent = from(a, b), received = to(b, a);
      ASSERT_EQ(sent.count, received.count) << "from " << a << " to " << b;
      ASSERT_TRUE(a != b || sent.count == 0);
      std::copy_n(staged[static_cast<std::size_t>(a)].begin() + sent.begin, sent.count,
                  staged[static_cast<std::size_t>(b)].begin() + received.begin);
    }
  }
}

/// Makes a call of all members in one thread: their requests, their rows, and what their places then hold.
void exchange_rows(std::vector<StagedRows>& plans, const StagedSizes& sizes, int round) {
  const auto at = [&](int member) -> StagedRows& { return plans[static_cast<std::size_t>(member)]; };
  OfMembers<RowPlace> places(plans.size()), requests(plans.size());
  OfMembers<int> rows(plans.size());
  std::vector<std::int32_t> counts;
  for (int member = 0; member < sizes.members; ++member) {
    at(member).ask(places[static_cast<std::size_t>(member)] = places_for(sizes, member, round), sizes.rows);
    counts.insert(counts.end(), at(member).counts().begin(), at(member).counts().end());
  }
  for (int member = 0; member < sizes.members; ++member) {
    const auto i = static_cast<std::size_t>(member);
    at(member).answer(counts);
    requests[i].assign(static_cast<std::size_t>(at(member).staged()), {-1, -1});
    std::ranges::copy(at(member).asked(), requests[i].begin() + at(member).given());
    rows[i].assign(requests[i].size(), -1);
  }
  const auto received = [&](int member, int other) { return at(member).received_from(other); };
  const auto given = [&](int member, int other) { return at(member).given_to(other); };
  move_between(requests, received, given);
  for (int member = 0; member < sizes.members; ++member) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(at(member).packed()); ++i) {
      const RowPlace& request = requests[static_cast<std::size_t>(member)][i];
      ASSERT_EQ(request.member, 0);
      ASSERT_TRUE(request.row >= 0 && request.row < sizes.rows) << request.row;
      rows[static_cast<std::size_t>(member)][i] = value_of(member, request.row);
    }
  }
  move_between(rows, given, received);
  for (int member = 0; member < sizes.members; ++member) {
    const auto m = static_cast<std::size_t>(member);
    const auto found = at(member).places();
    ASSERT_EQ(found.size(), places[m].size());
    std::set<std::pair<int, int>> distinct;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const RowPlace& place = places[m][i];
      if (place.member == kNoMember) {
        ASSERT_EQ(found[i].member, kNoMember);
        continue;
      }
      distinct.insert({place.member, place.row});
      ASSERT_EQ(found[i].member, 0);
      const Index row = at(member).given() + found[i].row;
      ASSERT_TRUE(found[i].row >= 0 && row < at(member).staged());
      ASSERT_EQ(rows[m][static_cast<std::size_t>(row)], value_of(place.member, place.row)) << "place " << i;
    }
    EXPECT_EQ(at(member).staged() - at(member).given(), static_cast<Index>(distinct.size()));
  }
}

/// Each row crosses once, and a plan that is used again has forgotten what it was asked before.
TEST(StagedRows, AreWhereTheListsExpectThem) {
  for (const int members : {2, 3, 8}) {
    for (const StagedSizes& sizes : {StagedSizes{members, 40, 100}, StagedSizes{members, 1, 5},
                                     StagedSizes{members, 0, 3}, StagedSizes{members, 300, 7}}) {
      std::vector<StagedRows> plans;
      for (int member = 0; member < members; ++member) plans.emplace_back(member, members);
      for (int round = 0; round < 3; ++round) exchange_rows(plans, sizes, round);
      exchange_rows(plans, {members, 1000, 30}, 3);
      exchange_rows(plans, {members, 10, 30}, 4);
    }
  }
}

TEST(StagedRows, AreInTheOrderOfTheirFirstMention) {
  StagedRows plan(1, 3);
  plan.ask(std::vector<RowPlace>{{2, 5}, {0, 3}, {1, 9}, {0, 1}, {kNoMember, 4}, {0, 3}, {2, 0}, {1, 9}}, 10);
  EXPECT_EQ(std::vector(plan.counts().begin(), plan.counts().end()), (std::vector<std::int32_t>{2, 1, 2}));
  std::vector<std::int32_t> asked, places;
  for (const RowPlace& place : plan.asked()) asked.push_back(place.row);
  for (const RowPlace& place : plan.places()) places.push_back(place.row);
  EXPECT_EQ(asked, (std::vector<std::int32_t>{9, 3, 1, 5, 0}));
  EXPECT_EQ(places, (std::vector<std::int32_t>{3, 1, 0, 2, 4, 1, 4, 0}));
  plan.answer(std::vector<std::int32_t>{7, 4, 0, 2, 1, 2, 0, 6, 8});
  EXPECT_EQ(plan.given(), 10);
  EXPECT_EQ(plan.packed(), 11);
  EXPECT_EQ(plan.staged(), 15);
  EXPECT_EQ(plan.given_to(0).begin, 0);
  EXPECT_EQ(plan.given_to(0).count, 4);
  EXPECT_EQ(plan.given_to(2).begin, 4);
  EXPECT_EQ(plan.given_to(2).count, 6);
  EXPECT_EQ(plan.received_from(0).begin, 11);
  EXPECT_EQ(plan.received_from(2).begin, 13);
  EXPECT_EQ(plan.received_from(1).count, 0);
}

}  // namespace
}  // namespace megalith::comm
