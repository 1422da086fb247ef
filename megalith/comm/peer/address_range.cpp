#include "megalith/comm/peer/address_range.h"

#include <algorithm>
#include <iterator>

namespace megalith::comm {

std::byte* AddressRange::take(Index bytes) {
  const auto found = std::ranges::find_if(free_, [&](const auto& part) { return part.second >= bytes; });
  if (found == free_.end()) return nullptr;
  const auto [begin, size] = *found;
  free_.erase(found);
  if (size > bytes) free_[begin + bytes] = size - bytes;
  return begin;
}

void AddressRange::give_back(std::byte* part, Index bytes) {
  auto here = free_.emplace(part, bytes).first;
  if (const auto next = std::next(here); next != free_.end() && part + bytes == next->first) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here == free_.begin()) return;
  const auto before = std::prev(here);
  if (before->first + before->second != part) return;
  before->second += here->second;
  free_.erase(here);
}

}  // namespace megalith::comm
