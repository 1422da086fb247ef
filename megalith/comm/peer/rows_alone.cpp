#include "megalith/comm/peer/rows_alone.h"

#include "megalith/comm/peer/row_kernels.h"

namespace megalith::comm {
namespace {

DeviceBarrier barrier_alone(const Buffer& flags, const Tensor& mine) {
  DeviceBarrier barrier{.members = 1, .rank = 0, .symmetric = mine.raw()};
  barrier.flags[0] = reinterpret_cast<BarrierFlags*>(flags.data());
  return barrier;
}

}  // namespace

RowsAlone::RowsAlone() : barrier_flags_(sizeof(BarrierFlags), Device::cuda) { load_row_kernels(); }

void RowsAlone::gather_rows(Stream stream, const GatherRows& args, int ctas) const {
  gather_rows_symmetric(stream, barrier_alone(barrier_flags_, args.mine), args, ctas);
}

void RowsAlone::gather_sum_rows(Stream stream, const GatherSumRows& args, int ctas) const {
  gather_sum_rows_symmetric(stream, barrier_alone(barrier_flags_, args.mine), args, ctas);
}

}  // namespace megalith::comm
