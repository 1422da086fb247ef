#pragma once
#include <vector>

#include "megalith/comm/peer/kernels.h"
#include "megalith/comm/peer/mailbox_transport.h"
#include "megalith/comm/row_lists.h"

namespace megalith::comm {

/// Carries collectives by kernels that access the tensors of all members as symmetric memory: one member's end. The
/// flags of the device barrier lie in the mailboxes.
class SymmetricTransport {
 public:
  /// The maximal number of CTAs of a member's kernel. With it the kernels of all members fit on their GPUs at the same
  /// time, even if members share one. 0 if the GPU of some member may not access memory that another member takes: then
  /// there is no such transport. Of members with mailboxes. Collective over `host`.
  static int max_ctas(const Group& host);

  /// `mailboxes` must outlive this. `max_ctas`: max_ctas(host), or less.
  SymmetricTransport(const Group& host, const MailboxTransport& mailboxes, int max_ctas)
      : host_(host), mailboxes_(mailboxes), max_ctas_(max_ctas) {}

  /// Channel::multiprocessors() for these kernels. Measured with 1.2B, batch 8 on H200s, from a graph, in ms per step
  /// with 6, 8, 12, 16 of them:
  ///   TP 2 75.1, 72.4, 78.2, -; a rank's share of TP 4 between two GPUs (docs/measurements/several-gpus.md) 45.5,
  ///   44.5, 48.0, 49.3.
  static constexpr int kMultiprocessors = 8;

  void all_reduce(const Call& call, void* data, Stream stream) const;
  void reduce_scatter(const Call& call, const void* in, void* out, Stream stream) const;
  void all_gather(const Call& call, const void* in, void* out, Stream stream) const;
  /// Row collectives, of max_ctas CTAs. Beside the weight gradients of experts, on two H200s, a step of 12 layers x
  /// 2048 with 64 experts takes 129.0, 126.6, 125.9, 126.3 ms with 8, 16, 24, 33 of them
  /// (docs/measurements/several-gpus.md). Every member's `mine` must be memory that the others' GPUs reach, as other
  /// symmetric memory.
  void gather_rows(const GatherRows& args, Stream stream) const;
  void gather_sum_rows(const GatherSumRows& args, Stream stream) const;
  /// A gather by a kernel without a device barrier, between two barriers of the mailboxes. Collective over the hosts.
  void all_gather_in_barriers(const Call& call, const void* in, void* out, Stream stream) const;

 private:
  DeviceBarrier barrier_of(void* memory) const;
  /// The own part: `count` elements from byte `offset` of the symmetric memory.
  SymmetricPart part(const Call& call, void* memory, Index offset, Index count) const;

  Group host_;
  const MailboxTransport& mailboxes_;
  int max_ctas_;
};

}  // namespace megalith::comm
