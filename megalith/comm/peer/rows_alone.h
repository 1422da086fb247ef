#pragma once
#include "megalith/comm/row_lists.h"
#include "megalith/tensor/device.h"
#include "megalith/tensor/memory.h"

namespace megalith::comm {

/// The kernels of row collectives (row_kernels.h) without other members: places are those of member 0, whose matrix
/// `mine` is on the same GPU. Calls run one after the other. The constructor loads kernels. Throws BackendError in a
/// program without NCCL.
class RowsAlone {
 public:
  RowsAlone();
  /// `ctas`: of a kernel.
  void gather_rows(Stream stream, const GatherRows& args, int ctas) const;
  void gather_sum_rows(Stream stream, const GatherSumRows& args, int ctas) const;

 private:
  Buffer barrier_flags_;
};

}  // namespace megalith::comm
