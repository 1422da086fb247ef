#pragma once
#include <array>

#include "megalith/comm/group.h"
#include "megalith/grid/placement.h"
#include "megalith/nn/microbatch.h"

namespace megalith::nn {

/// What a rank holds of a microbatch's token rows outside the tensor-parallel regions: all of them, or a share
/// (sequence parallelism).
enum class SequenceParallel : std::uint8_t { off, on };

/// Communication of a pass that is in flight: a message for each run of rows.
class [[nodiscard]] InFlight {
 public:
  void add(comm::Pending message) { messages_[count_++] = std::move(message); }
  /// As comm::Pending::wait.
  void wait(Exec& ex);

 private:
  std::array<comm::Pending, kMaxSubBatches> messages_;
  std::size_t count_ = 0;
};

/// Moves token rows to and from tensor-parallel regions, whose layers are split over a group. A column-parallel layer
/// begins a region, a row-parallel one ends it; the lookup in the token table and the head are a region each. Norms,
/// residual sums, their dropouts and the messages between stages lie outside. Every rank computes them on
///  - SequenceParallel::off: all n rows. A region reads them as they are and ends with an all-reduce.
///  - SequenceParallel::on: n/tp rows, so that activations outside take 1/tp of the memory. A region begins with an
///    all-gather and ends with a reduce-scatter: together they send what an all-reduce sends.
/// Backward mirrors this: the gradient of a region's result goes to the region, that of its input comes from it.
///
/// With sequence parallelism every sub-microbatch is cut into tp shares of its own: of n rows in s sub-microbatches,
/// rank r holds rows [r n/(s tp), (r + 1) n/(s tp)) of each, one share behind the other. Source: Korthikanti et al.
/// 2022, arXiv:2205.05198, section 4.2.2.
class TensorParallel {
 public:
  /// Over one rank sequence parallelism is off. Throws InternalError unless sub_batches is 1 or 2.
  TensorParallel(comm::Group group, SequenceParallel sequence_parallel, int sub_batches);

  const comm::Group& group() const { return group_; }
  SequenceParallel sequence_parallel() const { return sequence_parallel_; }
  /// Whether an all-gather brings rows to a region.
  bool is_sequence_parallel() const { return sequence_parallel_ == SequenceParallel::on; }
  int sub_batches() const { return sub_batches_; }
  /// Of a parameter that is used outside the regions: all of the group's ranks hold it, and under sequence parallelism
  /// each meets rows of its own.
  grid::Placement outside_placement() const;
  /// Of `tokens` rows, those that this rank holds outside. Throws ConfigError where shares would be unequal.
  Index rows_outside(Index tokens) const;

  struct InRegion {
    Tensor x;  ///< [n, F]
    InFlight messages;
  };
  /// x [n/tp, F] -> [n, F] in new memory; x itself without sequence parallelism. `sub_batch`: whose rows x has. Wait
  /// for the messages before the result is read.
  [[nodiscard]] InRegion to_region(Exec& ex, const Tensor& x, const SubBatch& sub_batch,
                                   comm::Where where = comm::Where::current()) const;
  /// Memory for the sums [n, F] of a region, of which the rows `out` [n/tp, F] will stay: `out` itself without sequence
  /// parallelism.
  Tensor region_sums(Exec& ex, const Tensor& out) const;
  /// Overwrites `out` with this rank's rows of the sum of all ranks' `sums`. Wait before `out` is read.
  InFlight from_region(Exec& ex, const Tensor& sums, const Tensor& out, const SubBatch& sub_batch,
                       comm::Where where = comm::Where::current()) const;

  /// Calls f(run, dropout) for each run of neighbouring rows that tensors outside have of microbatch.sub_batch:
  /// run.of(a tensor of the whole microbatch) are the rows, `dropout` draws the site's numbers for them.
  template <class F>
  void for_runs(const Microbatch& microbatch, const DropoutSite& site, F&& f) const {
    const SubBatch& sub_batch = microbatch.sub_batch;
    const int count = runs(sub_batch), all = sub_batch.count * count;
    const Index rows = microbatch.tokens() / all;
    for (SubBatch run{sub_batch.index * count, all}; run.index < (sub_batch.index + 1) * count; ++run.index) {
      ops::Dropout dropout = site.in(microbatch);
      dropout.first_row = run.index * rows + first_share_row(rows);
      f(run, dropout);
    }
  }
  /// The gradient before a dropout outside, from dout [n/tp, H] after it: dout itself where nothing is dropped.
  Tensor through_dropout(Exec& ex, const Microbatch& microbatch, const DropoutSite& site, const Tensor& dout) const;

 private:
  /// Runs of rows that a tensor outside has of a sub-microbatch.
  int runs(const SubBatch& sub_batch) const {
    return sequence_parallel_ == SequenceParallel::off ? 1 : sub_batches_ / sub_batch.count;
  }
  /// Of `rows` that follow each other, the first that this rank holds outside.
  Index first_share_row(Index rows) const {
    return sequence_parallel_ == SequenceParallel::off ? 0 : group_.rank() * (rows / group_.size());
  }

  comm::Group group_;
  SequenceParallel sequence_parallel_;
  int sub_batches_;
};

}  // namespace megalith::nn
