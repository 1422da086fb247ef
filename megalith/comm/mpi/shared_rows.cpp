#include "megalith/comm/mpi/shared_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace megalith::comm {
namespace {

constexpr Index kWordBits = 64;
constexpr Index kMinBlock = 64;  ///< bytes of a row: a line of the cache, whole elements of every dtype
constexpr Index kPage = 4096;

}  // namespace

Index SharedRows::Sizes::window_bytes() const { return round_up(std::max(kWindowBytes, kMinBlock * max_rows), kPage); }

Index SharedRows::Sizes::marks_bytes() const {
  return round_up(2 * members * members * words() * Index{sizeof(std::uint64_t)}, kPage);
}

SharedRows::SharedRows(std::shared_ptr<std::byte> memory, const Sizes& sizes, int rank)
    : memory_(std::move(memory)), sizes_(sizes), rank_(rank), given_(static_cast<std::size_t>(sizes.members)) {
  for (Given& given : given_) {
    given.words.reserve(static_cast<std::size_t>(sizes.words()));
    given.before.reserve(static_cast<std::size_t>(sizes.words()));
  }
  rows_.reserve(static_cast<std::size_t>(sizes.max_rows));
}

std::span<std::uint64_t> SharedRows::marks(int reader, int owner) const {
  const auto parity = static_cast<Index>(calls_ % 2);
  const Index at = ((parity * sizes_.members + reader) * sizes_.members + owner) * sizes_.words();
  return {reinterpret_cast<std::uint64_t*>(memory_.get()) + at, static_cast<std::size_t>(words_)};
}

std::byte* SharedRows::window(int member) const {
  const auto parity = static_cast<Index>(blocks_ % 2);
  return memory_.get() + sizes_.marks_bytes() + (2 * member + parity) * sizes_.window_bytes();
}

void SharedRows::want(std::span<const RowPlace> places, Index rows) {
  ++calls_;
  words_ = ceil_div(rows, kWordBits);
  for (int owner = 0; owner < sizes_.members; ++owner) std::ranges::fill(marks(rank_, owner), 0);
  for (const RowPlace& place : places) {
    if (place.member == rank_ || place.member == kNoMember) continue;
    marks(rank_, place.member)[static_cast<std::size_t>(place.row / kWordBits)] |= std::uint64_t{1}
                                                                                   << (place.row % kWordBits);
  }
}

void SharedRows::plan(Index row_bytes) {
  max_given_ = 0;
  for (int owner = 0; owner < sizes_.members; ++owner) {
    Given& given = given_[static_cast<std::size_t>(owner)];
    given.words.assign(static_cast<std::size_t>(words_), 0);
    for (int reader = 0; reader < sizes_.members; ++reader) {
      const std::span<const std::uint64_t> wanted = marks(reader, owner);
      for (std::size_t word = 0; word < wanted.size(); ++word) given.words[word] |= wanted[word];
    }
    given.before.clear();
    std::int32_t count = 0;
    for (const std::uint64_t word : given.words) {
      given.before.push_back(count);
      count += std::popcount(word);
    }
    max_given_ = std::max(max_given_, Index{count});
  }
  rows_.clear();
  const std::vector<std::uint64_t>& own = given_[static_cast<std::size_t>(rank_)].words;
  for (std::size_t word = 0; word < own.size(); ++word) {
    for (std::uint64_t left = own[word]; left != 0; left &= left - 1)
      rows_.push_back(static_cast<std::int32_t>(static_cast<Index>(word) * kWordBits + std::countr_zero(left)));
  }
  row_bytes_ = row_bytes;
  const Index fitting = sizes_.window_bytes() / std::max<Index>(1, max_given_) / kMinBlock * kMinBlock;
  block_bytes_ = std::min(row_bytes, fitting);
}

void SharedRows::give(const std::byte* matrix, Index begin, Index bytes) {
  ++blocks_;
  given_bytes_ = bytes;
  std::byte* to = window(rank_);
  for (const std::int32_t row : rows_) {
    std::memcpy(to, matrix + row * row_bytes_ + begin, static_cast<std::size_t>(bytes));
    to += bytes;
  }
}

const std::byte* SharedRows::block_of(const RowPlace& place) const {
  const Given& given = given_[static_cast<std::size_t>(place.member)];
  const auto word = static_cast<std::size_t>(place.row / kWordBits);
  const std::uint64_t below = given.words[word] & ((std::uint64_t{1} << (place.row % kWordBits)) - 1);
  return window(place.member) + (given.before[word] + std::popcount(below)) * given_bytes_;
}

}  // namespace megalith::comm
