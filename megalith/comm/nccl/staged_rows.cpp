#include "megalith/comm/nccl/staged_rows.h"

#include <algorithm>

namespace megalith::comm {

StagedRows::StagedRows(int rank, int members)
    : self_(static_cast<std::size_t>(rank)),
      counts_(static_cast<std::size_t>(members)),
      begins_(counts_.size()),
      given_to_(counts_.size()) {}

void StagedRows::ask(std::span<const RowPlace> places, Index rows) {
  std::ranges::fill(counts_, 0);
  numbers_.resize(std::max(numbers_.size(), counts_.size() * static_cast<std::size_t>(rows)), -1);
  const auto number = [&](const RowPlace& place) -> std::int32_t& {
    return numbers_[static_cast<std::size_t>(place.member * rows + place.row)];
  };
  for (const RowPlace& place : places) {
    if (place.member != kNoMember && number(place) < 0)
      number(place) = counts_[static_cast<std::size_t>(place.member)]++;
  }
  Index end = begins_[self_] = 0;
  end += counts_[self_];
  for (std::size_t member = 0; member < counts_.size(); ++member) {
    if (member == self_) continue;
    begins_[member] = end;
    end += counts_[member];
  }
  asked_.resize(static_cast<std::size_t>(end));
  places_.assign(places.begin(), places.end());
  for (RowPlace& place : places_) {
    if (place.member == kNoMember) continue;
    const Index at = begins_[static_cast<std::size_t>(place.member)] + number(place);
    asked_[static_cast<std::size_t>(at)] = {0, place.row};
    place = {0, static_cast<std::int32_t>(at)};
  }
  for (const RowPlace& place : places) {
    if (place.member != kNoMember) number(place) = -1;
  }
}

void StagedRows::answer(std::span<const std::int32_t> counts_of_all) {
  given_ = 0;
  for (std::size_t member = 0; member < counts_.size(); ++member) {
    const Index count = member == self_ ? 0 : counts_of_all[member * counts_.size() + self_];
    given_to_[member] = {given_, count};
    given_ += count;
  }
}

StagedRange StagedRows::received_from(int member) const {
  const auto at = static_cast<std::size_t>(member);
  return {given_ + begins_[at], at == self_ ? 0 : counts_[at]};
}

}  // namespace megalith::comm
