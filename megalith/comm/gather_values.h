#pragma once
#include <span>
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
             Priority::awaited, where)
      .wait(ex);
  return all;
}

/// The same for several values of each member, equally many of all. The call is not counted, and its call site is not
/// compared. It is for calls that all transports make alike however they start, and for programs of different builds.
template <class T>
std::vector<T> gather_unbooked(const Group& host, std::span<const T> own) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (host.size() == 1) return {own.begin(), own.end()};  // its channel carries nothing
  std::vector<T> all(own.size() * static_cast<std::size_t>(host.size()));
  Call call;
  call.op = Op::all_gather;
  call.count = static_cast<Index>(own.size_bytes());
  call.file = "start";
  host.channel().all_gather(call, own.data(), all.data(), {});
  return all;
}

}  // namespace megalith::comm
