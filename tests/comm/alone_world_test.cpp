// A rank without the others: what its calls give, and how long they take.
#include "megalith/comm/alone/alone_world.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/comm/gather_values.h"

namespace megalith::comm {
namespace {

using ::testing::ElementsAre;
using Numbers = std::vector<float>;

/// Rank 2 of 4.
class AloneRankTest : public ::testing::Test {
 protected:
  static Tensor of(Numbers& numbers) { return {numbers.data(), {static_cast<Index>(numbers.size())}, DType::f32}; }
  const Group& all() const { return world->all(); }

  std::unique_ptr<World> world = alone_world(2, 4, Device::cpu);
  Exec ex;
};

TEST_F(AloneRankTest, KnowsItsPlace) {
  EXPECT_EQ(world->rank(), 2);
  EXPECT_EQ(world->size(), 4);
  EXPECT_EQ(world->transport(), "alone");
  EXPECT_FALSE(world->has_all_ranks());
  EXPECT_TRUE(dry_world(2, 4)->has_all_ranks());
  EXPECT_TRUE(all().channel().reads_rows());
  EXPECT_THROW(alone_world(4, 4, Device::cpu), InternalError);
}

TEST_F(AloneRankTest, SumsKeepItsTerms) {
  Numbers numbers = {1, 2, 3, 4, 5, 6, 7, 8}, part(2);
  all_reduce(ex, all(), of(numbers), Reduce::sum).wait(ex);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  reduce_scatter(ex, all(), of(numbers), of(part), Reduce::sum).wait(ex);
  EXPECT_THAT(part, ElementsAre(5, 6));
}

TEST_F(AloneRankTest, GathersGiveItsDataFromEveryMember) {
  Numbers mine = {1, 2, 3}, whole(12);
  all_gather(ex, all(), of(mine), of(whole)).wait(ex);
  EXPECT_THAT(whole, ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3));
  EXPECT_THAT(gather_values(all(), 7), ElementsAre(7, 7, 7, 7));
}

TEST_F(AloneRankTest, AGatherInPlaceReadsItsOwnPart) {
  Numbers whole = {0, 0, 0, 0, 5, 6, 0, 0};
  all_gather(ex, all(), of(whole).rows(4, 2), of(whole)).wait(ex);
  EXPECT_THAT(whole, ElementsAre(5, 6, 5, 6, 5, 6, 5, 6));
}

// Each other rank sends it what it sends itself; rows that the counts announce beyond that are zeros.
TEST_F(AloneRankTest, AnAllToAllGivesWhatItSendsItself) {
  Numbers in = {1, 2, 3, 4, 5}, out(9, -1);
  const std::array<Index, 4> sent{1, 1, 2, 1}, received{2, 2, 2, 3};
  all_to_all(ex, all(), of(in), sent, of(out), received).wait(ex);
  EXPECT_THAT(out, ElementsAre(3, 4, 3, 4, 3, 4, 3, 4, 0));
}

TEST_F(AloneRankTest, RowsOfAllMembersAreItsOwn) {
  Numbers mine = {1, 10, 2, 20}, out(8, -1);
  std::array<std::int32_t, 2> counts{3, 4};
  std::array<std::int32_t, 6> sources{0, 1, 3, 1, 2, 0};
  std::array<std::int32_t, 4> begin{0, 1, 2, 3}, wants{0, 1, 2, 3};
  const auto list = [](auto& numbers, const Shape& shape) { return Tensor(numbers.data(), shape, DType::i32); };
  const RowPulls pulls{.counts = list(counts, {2}),
                       .sources = list(sources, {3, 2}),
                       .begin = list(begin, {4}),
                       .wants = list(wants, {4})};
  gather_rows(ex, all(), of(mine).reshaped({2, 2}), pulls, of(out).reshaped({4, 2})).wait(ex);
  EXPECT_THAT(out, ElementsAre(2, 20, 2, 20, 1, 10, 0, 0));
  std::array<std::int32_t, 2> sums_begin{0, 3};
  std::array<std::int32_t, 6> places{0, 0, kNoMember, 0, 3, 1};
  Numbers sum(2);
  const RowSums sums{.begin = list(sums_begin, {2}), .places = list(places, {3, 2}), .weights = {}};
  gather_sum_rows(ex, all(), of(mine).reshaped({2, 2}), sums, of(sum).reshaped({1, 2}), Write::overwrite).wait(ex);
  EXPECT_THAT(sum, ElementsAre(3, 30));
}

// GEMMs of zeros take less power than those of a run.
TEST_F(AloneRankTest, ReceivesNumbersOfModerateSizeAgainAndAgain) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    std::vector<std::byte> first(2048), second(2048);
    for (std::vector<std::byte>* memory : {&first, &second}) {
      const Tensor tensor(memory->data(), {2048 / size_of(dtype)}, dtype);
      recv(ex, all(), tensor, 1).wait(ex);
      send(ex, all(), tensor, 3).wait(ex);
    }
    EXPECT_EQ(first, second);
    EXPECT_NE(first, std::vector<std::byte>(2048));
  }
  Numbers numbers(1000);
  recv(ex, all(), of(numbers), 1).wait(ex);
  int negative = 0;
  for (const float number : numbers) {
    EXPECT_GE(std::abs(number), 0.125F);
    EXPECT_LT(std::abs(number), 0.5F);
    negative += number < 0 ? 1 : 0;
  }
  EXPECT_GT(negative, 400);
  EXPECT_LT(negative, 600);
}

TEST_F(AloneRankTest, AMessageMayBeLargerThanWhatIsMadeUp) {
  Numbers numbers((Index{5} << 20) / 4);  // 5 MiB
  recv(ex, all(), of(numbers), 1).wait(ex);
  EXPECT_EQ(numbers[0], numbers[std::size_t{1} << 20]) << "it begins again after 4 MiB";
  EXPECT_NE(numbers.back(), 0);
}

TEST_F(AloneRankTest, AgreesWithItself) {
  Numbers numbers(4);
  all_reduce(ex, all(), of(numbers), Reduce::sum).wait(ex);
  EXPECT_EQ(world->agreement_term(), 0U);
}

TEST_F(AloneRankTest, CallsTakeTheTimeOfTheirBytes) {
  world = alone_world(2, 4, Device::cpu, {.bytes_per_s = 1e6});
  Numbers numbers(10000), part(2500);
  const double begin = monotonic_s();
  all_reduce(ex, all(), of(numbers), Reduce::sum).wait(ex);  // 2 * 3/4 of 40,000 bytes
  const double reduced = monotonic_s();
  all_gather(ex, all(), of(part), of(numbers)).wait(ex);  // 3/4
  const double gathered = monotonic_s();
  EXPECT_GE(reduced - begin, 0.06);
  EXPECT_GE(gathered - reduced, 0.03);
}

}  // namespace
}  // namespace megalith::comm
