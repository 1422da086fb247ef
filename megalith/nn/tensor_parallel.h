#pragma once
#include <array>

#include "megalith/comm/group.h"
#include "megalith/grid/placement.h"
#include "megalith/nn/microbatch.h"

namespace megalith::nn {

/// Which token rows of a microbatch a rank holds outside the tensor-parallel regions: all of them (off), or a share
/// (on).
enum class SequenceParallel : std::uint8_t { off, on };

/// Communication of a pass that is in flight: one message per block of contiguous rows, or the rows of experts and
/// their weights.
class [[nodiscard]] InFlight {
 public:
  /// At most kMaxMessages.
  void add(comm::Pending message) { messages_.at(count_++) = std::move(message); }
  /// As comm::Pending::wait.
  void wait(Exec& ex);

 private:
  static constexpr std::size_t kMaxMessages = 2;
  static_assert(kMaxMessages >= kMaxSubBatches);
  std::array<comm::Pending, kMaxMessages> messages_;
  std::size_t count_ = 0;
};

/// Moves token rows to and from the regions whose layers are split over a group. A column-parallel layer begins a
/// region, a row-parallel one ends it. The lookup in the token table and the head are one region each. Outside are
/// norms, residual sums, their dropouts and the messages between stages. Every rank computes them on
///  - SequenceParallel::off: all n rows. A region begins without communication and ends with an all-reduce.
///  - SequenceParallel::on: n/tp rows, so activations outside take 1/tp of the memory. A region begins with an
///    all-gather and ends with a reduce-scatter; together they send as much as an all-reduce.
/// The backward pass is the mirror image: it gathers the gradient of a region's output and reduces the gradient of its
/// input.
///
/// With sequence parallelism a microbatch of n rows is cut into S blocks of equal length, the sub-microbatches of its
/// forward passes, and each block into tp shares. Rank r holds rows [r n/(S tp), (r + 1) n/(S tp)) of every block, one
/// share after the other. So the rows of one sub-microbatch are gathered from its own shares. A backward pass over the
/// whole microbatch has S blocks. Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
class TensorParallel {
 public:
  /// Over one rank sequence parallelism is off. Throws InternalError unless there are 1 or 2 sub-microbatches.
  TensorParallel(comm::Group group, SequenceParallel sequence_parallel, int sub_batches);

  const comm::Group& group() const { return group_; }
  SequenceParallel sequence_parallel() const { return sequence_parallel_; }
  /// Whether a region begins with a gather.
  bool is_sequence_parallel() const { return sequence_parallel_ == SequenceParallel::on; }
  int sub_batches() const { return sub_batches_; }
  /// The placement of a parameter that is used outside the regions. All ranks of the group hold it, and with sequence
  /// parallelism each rank uses it for its own rows.
  grid::Placement outside_placement() const;
  /// The rows that this rank holds outside, of `tokens` rows. Throws ConfigError if the shares would not be equal.
  Index rows_outside(Index tokens) const;

  struct InRegion {
    Tensor x;  ///< [n, F]
    InFlight messages;
  };
  /// x [n/tp, F] -> [n, F] in new memory; x itself without sequence parallelism. x has the rows of the given
  /// sub-microbatch. Wait for the messages before the result is read.
  [[nodiscard]] InRegion to_region(Exec& ex, const Tensor& x, const SubBatch& sub_batch,
                                   comm::Where where = comm::Where::current()) const;
  /// Memory for the sums [n, F], of which this rank keeps the rows `out` [n/tp, F]: `out` itself without sequence
  /// parallelism.
  Tensor region_sums(Exec& ex, const Tensor& out) const;
  /// Overwrites `out` with this rank's rows of the sum of all ranks' `sums`. Wait before `out` is read.
  InFlight from_region(Exec& ex, const Tensor& sums, const Tensor& out, const SubBatch& sub_batch,
                       comm::Where where = comm::Where::current()) const;

  /// Calls f(block, dropout) for each block of contiguous rows that a tensor outside has of the sub-microbatch.
  /// block.of(a tensor of the whole microbatch) are the rows. `dropout` draws the site's random numbers for them.
  template <class F>
  void for_blocks(const Microbatch& microbatch, const DropoutSite& site, F&& f) const {
    const SubBatch& sub_batch = microbatch.sub_batch;
    const int count = num_blocks(sub_batch), all = sub_batch.count * count;
    const Index rows = microbatch.tokens() / all;
    for (SubBatch block{sub_batch.index * count, all}; block.index < (sub_batch.index + 1) * count; ++block.index) {
      ops::Dropout dropout = site.in(microbatch);
      dropout.first_row = block.index * rows + first_share_row(rows);
      f(block, dropout);
    }
  }
  /// The gradient before a dropout outside, from dout [n/tp, H] after it: dout itself without dropout.
  Tensor through_dropout(Exec& ex, const Microbatch& microbatch, const DropoutSite& site, const Tensor& dout) const;

 private:
  /// The number of blocks of rows that a tensor outside has of a sub-microbatch.
  int num_blocks(const SubBatch& sub_batch) const {
    return sequence_parallel_ == SequenceParallel::off ? 1 : sub_batches_ / sub_batch.count;
  }
  /// The first row that this rank holds outside, of `rows` contiguous rows.
  Index first_share_row(Index rows) const {
    return sequence_parallel_ == SequenceParallel::off ? 0 : group_.rank() * (rows / group_.size());
  }

  comm::Group group_;
  SequenceParallel sequence_parallel_;
  int sub_batches_;
};

}  // namespace megalith::nn
