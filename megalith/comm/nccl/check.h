#pragma once
#include <string_view>

#include <nccl.h>

namespace megalith::comm {

/// Throws BackendError with NCCL's own text for any status except success. `what` begins the text: "[nccl]
/// ncclGetUniqueId".
void check(ncclResult_t status, std::string_view what);

/// Makes several NCCL calls as one, so that none waits for another. `calls` returns the first status that is not
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
