#include "megalith/comm/mpi/shared_rows.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace megalith::comm {
namespace {

std::shared_ptr<std::byte> zeros(Index bytes) {
  const auto memory = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
  return {memory, memory->data()};
}

/// The members of a group, one after the other in each step, and their matrices.
class Members {
 public:
  Members(int members, Index rows, Index row_bytes)
      : sizes_{members, rows}, rows_(rows), row_bytes_(row_bytes), memory_(zeros(sizes_.bytes())) {
    for (int member = 0; member < members; ++member) {
      ends_.emplace_back(memory_, sizes_, member);
      matrices_.emplace_back(static_cast<std::size_t>(rows * row_bytes));
      for (std::size_t i = 0; i < matrices_.back().size(); ++i)
        matrices_.back()[i] = static_cast<std::byte>((static_cast<std::size_t>(member) * 37 + i * 11) % 251);
    }
  }
  /// Every member reads the rows at its places, in blocks, and finds what they are. Returns the bytes of a block.
  Index expect_rows(const std::vector<std::vector<RowPlace>>& places) {
    for (std::size_t member = 0; member < ends_.size(); ++member) ends_[member].want(places[member], rows_);
    for (SharedRows& end : ends_) end.plan(row_bytes_);
    const Index block = ends_[0].block_bytes();
    for (Index begin = 0; begin < row_bytes_; begin += block) {
      const Index length = std::min(block, row_bytes_ - begin);
      for (std::size_t member = 0; member < ends_.size(); ++member)
        ends_[member].give(matrices_[member].data(), begin, length);
      for (std::size_t member = 0; member < ends_.size(); ++member) {
        EXPECT_EQ(ends_[member].block_bytes(), block);
        for (const RowPlace& place : places[member]) {
          if (place.member == kNoMember || place.member == static_cast<int>(member)) continue;
          const std::byte* const row =
              matrices_[static_cast<std::size_t>(place.member)].data() + place.row * row_bytes_;
          EXPECT_EQ(std::memcmp(ends_[member].block_of(place), row + begin, static_cast<std::size_t>(length)), 0)
              << "member " << member << ", row " << place.row << " of member " << place.member << " from " << begin;
        }
      }
    }
    return block;
  }
  const SharedRows& end(int member) const { return ends_[static_cast<std::size_t>(member)]; }

 private:
  SharedRows::Sizes sizes_;
  Index rows_, row_bytes_;
  std::shared_ptr<std::byte> memory_;
  std::vector<SharedRows> ends_;
  std::vector<std::vector<std::byte>> matrices_;
};

TEST(SharedRows, GivesEachRowThatSomeMemberWants) {
  Members members(3, 200, 100);
  EXPECT_EQ(
      members.expect_rows({{{1, 0}, {1, 199}, {2, 63}, {kNoMember, -1}, {0, 5}}, {{2, 64}, {2, 63}, {0, 128}}, {}}),
      100);
  EXPECT_TRUE(members.end(2).any());
  EXPECT_EQ(members.expect_rows({{}, {{1, 3}}, {{kNoMember, 0}}}), 100) << "own rows need no window";
  EXPECT_FALSE(members.end(0).any());
  members.expect_rows({{{1, 7}}, {{0, 7}, {2, 0}}, {{0, 199}}});
}

TEST(SharedRows, GivesBlocksOfColumnsWhereRowsDoNotFit) {
  Members wide(2, 3, SharedRows::kWindowBytes + 8);
  EXPECT_EQ(wide.expect_rows({{{1, 2}}, {}}), SharedRows::kWindowBytes);
  EXPECT_EQ(wide.expect_rows({{{1, 2}, {1, 0}, {1, 1}}, {{0, 1}}}), SharedRows::kWindowBytes / 3 / 64 * 64);
  // So many rows that a window has room for 64 bytes of each.
  const Index rows = SharedRows::kWindowBytes / 64 + 70;
  Members many(2, rows, 200);
  std::vector<RowPlace> all;
  for (Index row = 0; row < rows; ++row) all.push_back({1, static_cast<std::int32_t>(row)});
  EXPECT_EQ(many.expect_rows({all, {{0, 1}}}), 64);
}

/// A member may begin the next call while another one still reads.
TEST(SharedRows, KeepsWhatAMemberMayStillRead) {
  const SharedRows::Sizes sizes{2, 10};
  const std::shared_ptr<std::byte> memory = zeros(sizes.bytes());
  SharedRows fast(memory, sizes, 0), slow(memory, sizes, 1);
  const std::vector<std::byte> matrix(10 * 8, std::byte{1}), later(10 * 8, std::byte{2});
  const std::vector<RowPlace> of_fast = {{0, 4}};
  fast.want({}, 10);
  slow.want(of_fast, 10);
  fast.plan(8);
  fast.give(matrix.data(), 0, 8);
  fast.want(std::vector<RowPlace>{{1, 9}}, 10);  // of the next call
  slow.plan(8);
  slow.give(matrix.data(), 0, 8);
  fast.give(later.data(), 0, 8);
  EXPECT_FALSE(slow.block_bytes() == 0);
  EXPECT_EQ(std::memcmp(slow.block_of(of_fast[0]), matrix.data(), 8), 0);
}

}  // namespace
}  // namespace megalith::comm
