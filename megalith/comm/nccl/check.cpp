#include "megalith/comm/nccl/check.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::comm {

void check(ncclResult_t status, std::string_view what) {
  if (status == ncclSuccess) return;
  const std::string_view detail = ncclGetLastError(nullptr);
  throw BackendError(str(what, ": ", ncclGetErrorString(status), detail.empty() ? "" : ": ", detail));
}

}  // namespace megalith::comm
