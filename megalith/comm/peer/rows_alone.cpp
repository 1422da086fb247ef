#include "megalith/comm/peer/rows_alone.h"

#include "megalith/comm/peer/row_kernels.h"

namespace megalith::comm {
namespace {

DeviceBarrier barrier_alone(int members, const Tensor& mine) {
  return {.members = members, .rank = 0, .symmetric = mine.raw(), .is_alone = true};
}

}  // namespace

RowsAlone::RowsAlone(int members) : members_(members) { load_row_kernels(); }

void RowsAlone::gather_rows(Stream stream, const GatherRows& args, int ctas) const {
  gather_rows_symmetric(stream, barrier_alone(members_, args.mine), args, ctas);
}

void RowsAlone::gather_sum_rows(Stream stream, const GatherSumRows& args, int ctas) const {
  gather_sum_rows_symmetric(stream, barrier_alone(members_, args.mine), args, ctas);
}

}  // namespace megalith::comm
