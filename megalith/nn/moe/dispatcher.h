#pragma once
#include <memory>
#include <span>

#include "megalith/nn/moe/expert_parallel.h"
#include "megalith/nn/moe/moe_config.h"
#include "megalith/nn/row_gemms.h"
#include "megalith/ops/expert_choices.h"
#include "megalith/ops/row_budget.h"
#include "megalith/ops/row_exchange.h"

namespace megalith::nn {

/// The forms in which experts read rows. A dispatcher that rounds rows where it brings them makes these and no others;
/// other dispatchers make the numbers.
struct RowForms {
  bool numbers = true;    ///< as they are
  bool straight = false;  ///< in E4M3, for products with weights
  bool turned = false;    ///< in E4M3, for weight gradients
};
/// The forms of rows in the forward pass, of their gradients, and of rows that backward gets again.
struct PassForms {
  RowForms forward = {}, grads = {}, again = {};
};

/// Rows in the order of their experts, those of an expert by (source rank, token).
struct ExpertRows {
  Tensor rows;  ///< [M, H], undefined where no product reads the numbers
  ops::GroupRows groups;
  RowOperands operands = {};  ///< of the rows, where the dispatcher makes them (nn/moe/expert_gemms.h)

  Index count() const {  ///< M
    if (rows) return rows.dim(0);
    return operands.straight ? operands.straight.values.dim(0) : operands.turned.values.dim(1);
  }
};

/// Numbers of every row of an expert in backward. To the experts: the gradient dy of its token's sum, and the weight
/// that the row's result has in the sum. From them: the gradients of the row and of this weight.
struct RowGrads {
  Tensor rows;     ///< [M, H], undefined as above
  Tensor weights;  ///< [M, 1] f32 (f64)
  RowOperands operands = {};
};

/// Rows of the groups from `first` on, which may still be on their way. Wait before their first use. 0: all are here.
struct LaterRows {
  Index first = 0;
  InFlight in_flight = {};
};

/// The gradients of permute()'s x and of combine()'s weights.
struct SourceGrads {
  Tensor x;        ///< [n, H]
  Tensor weights;  ///< [n, K] f32 (f64)
};

/// The pairs of token and expert of a pass.
struct RoutedPairs {
  Tensor experts;                      ///< [n, K] i32, of every row; -1: dropped. With clones: columns (moe/echo.h)
  Mode mode = Mode::evaluate;          ///< whose rows they are
  Tensor of_all = {};                  ///< [R, n, K], of the ranks of dispatch; undefined: nobody has gathered them
  Tensor overflow = {}, dropped = {};  ///< of ops::LimitRows; undefined: not counted
};

/// Brings rows to the ranks of their experts and results back. Const: what backward needs is in Saved, one for each
/// layer and microbatch in flight. The steps of a pass, in order: preprocess, permute, dispatch, arrived, return_rows,
/// combine. Backward mirrors them from permute on.
class Dispatcher {
 public:
  struct Saved {
    virtual ~Saved() = default;
    virtual void take_host_memory(Device) {}  ///< Sublayer::Saved
  };
  virtual ~Dispatcher() = default;
  virtual std::unique_ptr<Saved> make_saved() const = 0;

  /// From every row's experts: where rows go and come from.
  virtual void preprocess(Exec& ex, const RoutedPairs& routed, Saved& saved) const = 0;
  /// x [n, H] to rows in the order of their destinations.
  virtual void permute(Exec& ex, const Tensor& x, Saved& saved) const = 0;
  /// Starts to bring those to this rank's experts. Wait before arrived(), and for `later` before the rows of its groups
  /// are used.
  virtual InFlight dispatch(Exec& ex, Saved& saved, LaterRows& later) const = 0;
  /// The rows that dispatch() brought, by expert.
  virtual ExpertRows arrived(Exec& ex, Saved& saved) const = 0;
  /// The experts' results [M, H] back to where their rows came from.
  virtual void return_rows(Exec& ex, const Tensor& rows, Saved& saved) const = 0;
  /// y [n, H] = sum over a row's experts of weights [n, K] times what they returned, in the order of choices, in f32
  /// (f64). Dropped pairs are left out.
  virtual void combine(Exec& ex, const Tensor& weights, const Tensor& y, Saved& saved) const = 0;

  /// dy [n, H] and weights [n, K] of combine() to rows in the order of their destinations. dy is not scaled.
  virtual void combine_backward(Exec& ex, const Tensor& dy, const Tensor& weights, Saved& saved) const = 0;
  /// Those to the rows of this rank's experts. Weights are here, of other rows `later` as above.
  virtual RowGrads return_rows_backward(Exec& ex, Saved& saved, LaterRows& later) const = 0;
  /// dispatch()'s rows, for backward: kept, or brought once more (BackwardRows). x: that of permute().
  virtual ExpertRows dispatched(Exec& ex, const Tensor& x, Saved& saved) const = 0;
  /// The experts' gradients to where their rows came from. Wait for the result before permute_backward(). `sources`:
  /// its results, which a dispatcher may already write.
  virtual InFlight dispatch_backward(Exec& ex, const RowGrads& rows, const SourceGrads& sources,
                                     Saved& saved) const = 0;
  /// Those to the gradients of this rank's slices.
  virtual void permute_backward(Exec& ex, const SourceGrads& sources, Saved& saved) const = 0;
};

// Steps that dispatchers share.

/// The groups whose first rows and numbers of rows lie in `table` [2, G] i32.
ops::GroupRows groups_of(const Tensor& table, Index alignment);
/// Group `group` of a table [2, G] on the host. Returns where the next group begins.
Index set_group(std::span<std::int32_t> table, Index group, Index begin, Index rows, Index alignment);
/// New rows by ops::PermuteRows.
Tensor permuted(Exec& ex, const Tensor& x, const Tensor& pair_of, Index top_k, const Tensor& row_of = {});
/// The weights [n, K] of rows' choices, as rows [M, 1].
Tensor permuted_weights(Exec& ex, const Tensor& weights, const Tensor& pair_of);
/// Gradients of rows and weights back to their tokens: dx [n, H] is the sum over a row's choices, d_weights [n, K] the
/// gradients of their weights.
void sum_grads(Exec& ex, const RowGrads& grads, const Tensor& row_of, const Tensor& dx, const Tensor& d_weights);

/// The experts' rows in backward: those of the forward pass, or brought once more from where they come from.
enum class BackwardRows : std::uint8_t { kept, fetched };

/// The sizes that a dispatcher plans with.
struct DispatchSizes {
  Index num_experts = 0, top_k = 0;
  /// Every expert gets `capacity` rows of each run of `run` rows, filled up with zeros; run 0: as many as chose it.
  Index capacity = 0, run = 0;
  Index alignment = 1;  ///< ops::GroupRows
  BackwardRows backward_rows = BackwardRows::kept;
  RankCapacity rank_capacity = {};  ///< where dispatchers limit rows
  Index first_groups = 0;           ///< experts of a rank whose rows come first; 0: all at once
  PassForms forms = {};             ///< for dispatchers that round rows where they bring them
  bool pads() const { return run > 0; }
  /// Rows that every expert gets of `rows` rows; 0: as many as chose it.
  Index padded(Index rows, Mode mode) const { return pads() && mode == Mode::train ? rows / run * capacity : 0; }
  /// The most rows of a rank, if each brings `pairs` pairs of row and slice; 0: all that may come.
  Index rank_rows(Index pairs, Mode mode) const {
    const bool is_limited = mode == Mode::train && !pads() && !rank_capacity.is_worst_case();
    return is_limited ? ops::rows_of_factor(pairs, rank_capacity.thousandths) : 0;
  }
};

/// Lists of at most `capacity` pulls for a result of `rows` rows.
ops::PullTables make_pulls(Exec& ex, Index capacity, Index rows);
/// All lists of a plan, whose sizes and choices are set.
void make_lists(Exec& ex, ops::PlanExchange& plan);
/// comm::gather_rows by lists.
comm::Pending pull(Exec& ex, const comm::Group& group, const Tensor& mine, const ops::PullTables& pulls,
                   const Tensor& rows);

/// Where the members of a group of dispatch stand.
ops::ExpertRanks expert_ranks(const ExpertParallel& experts, const DispatchSizes& sizes);
/// A choice's weight for each of its slices: weights [n, K] -> [n, K P].
Tensor weights_of_slices(Exec& ex, const Tensor& weights, Index slices);

}  // namespace megalith::nn
