#pragma once
#include "megalith/comm/row_lists.h"
#include "megalith/tensor/device.h"

namespace megalith::comm {

/// The kernels of row collectives (row_kernels.h) without other members: `mine`, on the same GPU, is the matrix of each
/// of them. The constructor loads kernels. Throws BackendError in a program without NCCL.
class RowsAlone {
 public:
  /// `members`: of places in lists, at most kMaxSummed.
  explicit RowsAlone(int members = 1);
  /// `ctas`: of a kernel.
  void gather_rows(Stream stream, const GatherRows& args, int ctas) const;
  void gather_sum_rows(Stream stream, const GatherSumRows& args, int ctas) const;

 private:
  int members_;
};

}  // namespace megalith::comm
