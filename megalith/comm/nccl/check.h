#pragma once
#include <string_view>

#include <nccl.h>

namespace megalith::comm {

/// Throws BackendError with NCCL's own text for anything but success. `what` begins it: "[nccl] ncclGetUniqueId".
void check(ncclResult_t status, std::string_view what);

/// Makes several NCCL calls as one, none of which waits for another: `calls` returns the first status that is no
/// success.
template <class Calls>
ncclResult_t grouped(Calls&& calls) {
  const ncclResult_t started = ncclGroupStart();
  if (started != ncclSuccess) return started;
  const ncclResult_t called = calls();
  const ncclResult_t ended = ncclGroupEnd();
  return called != ncclSuccess ? called : ended;
}

}  // namespace megalith::comm
