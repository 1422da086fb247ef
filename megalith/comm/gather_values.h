#pragma once
#include <type_traits>
#include <vector>

#include "megalith/comm/group.h"

namespace megalith::comm {

/// Every member's `own`, in group rank order, where the group is between host memories. Collective: an all_gather of
/// the values' bytes.
template <class T>
std::vector<T> gather_values(const Group& host, T own, Where where = Where::current()) {
  static_assert(std::is_trivially_copyable_v<T>);
  constexpr auto kBytes = static_cast<Index>(sizeof(T));
  std::vector<T> all(static_cast<std::size_t>(host.size()));
  Exec ex;
  all_gather(ex, host, Tensor(&own, {kBytes}, DType::u8), Tensor(all.data(), {kBytes * host.size()}, DType::u8),
             Haste::awaited, where)
      .wait(ex);
  return all;
}

}  // namespace megalith::comm
