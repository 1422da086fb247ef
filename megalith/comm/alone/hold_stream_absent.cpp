#include "megalith/base/error.h"
#include "megalith/comm/alone/hold_stream.h"

namespace megalith::comm {

void hold_stream(Stream, double) {
  throw BackendError(
      "a rank alone on a GPU uses kernels of the transport between GPUs, which this program was built without: install "
      "libnccl-dev beside the CUDA toolkit and build again (MEGALITH_NCCL=ON prints what is missing)");
}
void load_hold_kernel() { hold_stream({}, 0); }

}  // namespace megalith::comm
