#pragma once
#include <cstddef>
#include <map>

#include "megalith/base/types.h"

namespace megalith::comm {

/// Gives out parts of a range of addresses, the first that fits. Not thread-safe.
class AddressRange {
 public:
  AddressRange(std::byte* begin, Index bytes) : free_{{begin, bytes}} {}
  /// Null if no part is so large.
  std::byte* take(Index bytes);
  /// Of take(), with the same size.
  void give_back(std::byte* part, Index bytes);

 private:
  std::map<std::byte*, Index> free_;  ///< parts with used ones between them, and their bytes
};

}  // namespace megalith::comm
