#include "megalith/base/error.h"
#include "megalith/comm/peer/rows_alone.h"

namespace megalith::comm {

RowsAlone::RowsAlone(int members) : members_(members) {
  throw BackendError(
      "rows of a GPU's own memory are read by kernels of the transport between GPUs, which this program was built "
      "without: install libnccl-dev beside the CUDA toolkit and build again (MEGALITH_NCCL=ON prints what is missing)");
}
void RowsAlone::gather_rows(Stream, const GatherRows&, int) const {}
void RowsAlone::gather_sum_rows(Stream, const GatherSumRows&, int) const {}

}  // namespace megalith::comm
