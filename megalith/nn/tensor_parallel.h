#pragma once
#include <array>

#include "megalith/comm/group.h"
#include "megalith/grid/placement.h"
#include "megalith/nn/microbatch.h"

namespace megalith::nn {

/// What a rank holds of a microbatch's token rows outside the tensor-parallel regions: all of them, or a share
/// (sequence parallelism).
enum class Rows : std::uint8_t { whole, shared };

/// Communication of a pass that is in flight: a message for each run of rows.
class [[nodiscard]] InFlight {
 public:
  void add(comm::Pending message) { messages_[count_++] = std::move(message); }
  /// As comm::Pending::wait.
  void wait(Exec& ex);

 private:
  std::array<comm::Pending, kMostParts> messages_;
  std::size_t count_ = 0;
};

/// How token rows enter and leave the regions whose layers are split over a group. A column-parallel layer begins a
/// region, a row-parallel one ends it; the token table's lookup and the head are one each. Outside are norms, residual
/// sums, their dropouts and the messages between stages, computed on every rank on
///  - Rows::whole: all n rows. They enter as they are and leave through an all-reduce.
///  - Rows::shared: n/tp rows, so that activations outside take 1/tp of the memory. They enter through an all-gather
///    and leave through a reduce-scatter: together what an all-reduce sends.
/// What a backward pass sends is the mirror image: the gradient of what left enters, that of what entered leaves.
///
/// A shared microbatch is cut into `parts` runs of equal length (the Parts of its forward passes), and each run into tp
/// shares: rank r holds rows [r n/(parts tp), (r + 1) n/(parts tp)) of every run, one share behind the other. So the
/// rows of one Part are gathered from its own shares. Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
class TensorParallel {
 public:
  /// Over one rank rows are whole. Throws InternalError unless parts is 1 or 2.
  TensorParallel(comm::Group group, Rows rows, int parts);

  const comm::Group& group() const { return group_; }
  Rows rows() const { return rows_; }
  /// Whether rows enter regions by messages.
  bool shares_rows() const { return rows_ == Rows::shared; }
  int parts() const { return parts_; }
  /// Of a parameter that is used outside the regions: all of the group's ranks hold it, and under sequence parallelism
  /// each meets rows of its own.
  grid::Placement outside_placement() const;
  /// Of `tokens` rows, those that this rank holds outside. Throws ConfigError where shares would be unequal.
  Index rows_outside(Index tokens) const;

  struct Entered {
    Tensor x;  ///< [n, F]
    InFlight messages;
  };
  /// x [n/tp, F] -> [n, F] in new memory; x itself where rows are whole. `part`: the one whose rows x has. Wait for the
  /// messages before the result is read.
  [[nodiscard]] Entered enter(Exec& ex, const Tensor& x, const Part& part,
                              comm::Where where = comm::Where::current()) const;
  /// Memory for the sums [n, F] of which the rows `out` [n/tp, F] will stay: `out` itself where rows are whole.
  Tensor before_leaving(Exec& ex, const Tensor& out) const;
  /// Overwrites `out` with this rank's rows of the sum of all ranks' `sums`. Wait before `out` is read.
  InFlight leave(Exec& ex, const Tensor& sums, const Tensor& out, const Part& part,
                 comm::Where where = comm::Where::current()) const;

  /// Calls f(run, dropout) for each run of neighbouring rows that tensors outside have of microbatch.part: run.of(a
  /// tensor of the whole microbatch) are the rows, `dropout` draws the site's numbers for them.
  template <class F>
  void for_runs(const Microbatch& microbatch, const DropoutSite& site, F&& f) const {
    const Part& part = microbatch.part;
    const int count = runs(part), all = part.count * count;
    const Index rows = microbatch.tokens() / all;
    for (Part run{part.index * count, all}; run.index < (part.index + 1) * count; ++run.index) {
      ops::Dropout dropout = site.in(microbatch);
      dropout.first_row = run.index * rows + first_share_row(rows);
      f(run, dropout);
    }
  }
  /// The gradient before a dropout outside, from dout [n/tp, H] after it: dout itself where nothing is dropped.
  Tensor through_dropout(Exec& ex, const Microbatch& microbatch, const DropoutSite& site, const Tensor& dout) const;

 private:
  /// Runs of rows that a tensor outside has of a part.
  int runs(const Part& part) const { return rows_ == Rows::whole ? 1 : parts_ / part.count; }
  /// Of `rows` that follow each other, the first that this rank holds outside.
  Index first_share_row(Index rows) const { return rows_ == Rows::whole ? 0 : group_.rank() * (rows / group_.size()); }

  comm::Group group_;
  Rows rows_;
  int parts_;
};

}  // namespace megalith::nn
