#pragma once
#include <span>
#include <string>
#include <vector>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// Neighbouring groups of rows of a rank: of its experts, then of its clones. Where none of either kind is in it,
/// products run for the first of that kind, which has no rows, and change nothing.
struct ExpertRange {
  Index first = 0, count = 0;
};

enum class ExpertMatrix : std::uint8_t { up, down };

/// Copies of other ranks' experts in one pass (moe/echo.h). They have the groups of rows after those of this rank's
/// experts. Matrices are [S, N, K], a rank's slots.
class ExpertClones {
 public:
  enum class Rounds : std::uint8_t { forward, backward };
  virtual ~ExpertClones() = default;
  /// Waits until they are here.
  virtual Tensor weights(Exec& ex, ExpertMatrix matrix) = 0;
  /// To be overwritten.
  virtual Tensor grads(Exec& ex, ExpertMatrix matrix) = 0;
  /// They are written, as are the gradients of this rank's experts to which those of clones are added.
  virtual void grads_written(Exec& ex, ExpertMatrix matrix) = 0;
  /// Until end_rounds() products of some groups at a time are repeated: all of the above that is an op is here, or
  /// waits for the end.
  virtual void begin_rounds(Exec& ex, Rounds rounds) = 0;
  virtual void end_rounds(Exec& ex) = 0;
};

/// The experts of a rank: E/ep of them, of each the slice of F/etp units. up(x), activation, down, by grouped GEMMs
/// over rows that lie by expert. The weights are global tensors [E, F, 2, H] ([E, F, H] without a gate) and [E, H, F],
/// of which a rank's experts and slices are one box; no biases. They live on the expert grid: gradients are summed over
/// edp. No communication but that of clones: slices are summed where the rows came from. Clones are computed after the
/// rank's own experts, by products of their own, so that these hide the transfer of their weights.
/// A pass keeps `up` only; the activation is computed again from it. With GemmFormat::e4m3 rows that come as numbers,
/// and weights, are rounded before each product (nn/moe/expert_gemms.h), and no product runs before all rows are here.
class Experts {
 public:
  struct Saved {
    ExpertClones* clones = nullptr;  ///< set before the first pass, where there are slots
    ops::GroupRows groups;
    Tensor up;                    ///< [M, 2F/etp], or [M, F/etp] without a gate
    ops::Operand up_grad_turned;  ///< of backward, for add_last_weight_grads() with FP8 weight gradients
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const ExpertParallel& experts);
  /// The forms in which passes with these options read rows.
  static PassForms row_forms(const SublayerOptions& options);
  Experts(const std::string& name, const SublayerOptions& options, ParamSet& params);

  /// The rows `in` -> the results [M, H] of this rank's slices, not weighted. Waits for later rows when the first
  /// product of the groups before them runs.
  Tensor forward(Exec& ex, const ExpertRows& in, Saved& saved, LaterRows& later) const {
    return forward(ex, in, saved, all(in.groups), later);
  }
  /// For the rows of these groups only.
  Tensor forward(Exec& ex, const ExpertRows& in, Saved& saved, const ExpertRange& range) const {
    LaterRows none;
    return forward(ex, in, saved, range, none);
  }
  /// dy: the gradient of the weighted results' sums, unweighted. Adds to the weights' gradients, but for
  /// add_last_weight_grads(). Returns the gradients of the rows `in`, and of this rank's slices those of the weights of
  /// rows. Waits for later rows of dy.rows as forward() does.
  RowGrads backward(Exec& ex, const ExpertRows& in, const RowGrads& dy, ops::Write weight_grads, Saved& saved,
                    LaterRows& later) const;
  /// Those of the first product's weights, which backward() leaves out: the gradients of rows may leave before.
  void add_last_weight_grads(Exec& ex, const ExpertRows& in, ops::Write weight_grads, const Saved& saved) const;
  /// Both for the rows of these groups only. `up` was not kept; saved.groups are those of `in`.
  RowGrads backward_again(Exec& ex, const ExpertRows& in, const RowGrads& dy, ops::Write weight_grads, Saved& saved,
                          const ExpertRange& range) const;
  /// The squares of the weights' gradients, after the last part of them, where the parts have not left them.
  void sum_grad_squares(Exec& ex, ops::Write weight_grads, const Saved& saved) const;

  /// Of this rank's experts and slices: [L, N, K].
  Tensor weights(ExpertMatrix matrix) const;
  Tensor grads(ExpertMatrix matrix) const;

 private:
  static ExpertRange all(const ops::GroupRows& groups) { return {0, groups.count()}; }
  Tensor forward(Exec& ex, const ExpertRows& in, Saved& saved, const ExpertRange& range, LaterRows& later) const;
  /// From saved.up, which its gradient takes the place of.
  RowGrads gradients(Exec& ex, const ExpertRows& in, const RowGrads& dy, ops::Write weight_grads, Saved& saved,
                     const ExpertRange& range, LaterRows& later) const;
  DType dtype() const { return up_.value.dtype(); }
  Index hidden_size() const { return weights(ExpertMatrix::down).dim(1); }
  bool has_fp8_rows() const { return formats_.rows == GemmFormat::e4m3; }
  bool has_fp8_weight_grads() const { return formats_.weight_grad == GemmFormat::e4m3; }
  /// The same with FP8 operands.
  Tensor forward_fp8(Exec& ex, const ExpertRows& in, Saved& saved, const ExpertRange& range) const;
  RowGrads gradients_fp8(Exec& ex, const ExpertRows& in, const RowGrads& dy, ops::Write weight_grads, Saved& saved,
                         const ExpertRange& range) const;
  void first_gemm_fp8(Exec& ex, const ExpertRows& in, const Saved& saved, const ExpertRange& range) const;
  void recompute_first_gemm(Exec& ex, const ExpertRows& in, Saved& saved, const ExpertRange& range) const;
  /// Those of the first product's weights, for the rows of these groups.
  void add_up_weight_grads(Exec& ex, const ExpertRows& in, ops::Write weight_grads, const Saved& saved,
                           const ExpertRange& range, ops::SmMargin sm_margin) const;
  /// The factors of weight gradients, and how those of this rank's experts are written.
  struct RowFactors {
    Tensor dy, x;
    ops::Write write;
    ops::SmMargin sm_margin = ops::SmMargin::none;
    ops::Operand dy_turned = {}, x_turned = {};  ///< read in place of dy and x
  };
  /// run(weights, groups) for those of the rank's experts in `range`, and of the clones on it.
  template <class Run>
  void for_own_and_clones(Exec& ex, ExpertMatrix matrix, const Saved& saved, const ExpertRange& range,
                          const Run& run) const;
  /// The same with run(weights, groups, SM margin): first for the groups before `later`, beside whose products the
  /// other rows arrive.
  template <class Run>
  void for_groups_that_arrive(Exec& ex, ExpertMatrix matrix, const Saved& saved, const ExpertRange& range,
                              LaterRows& later, const Run& run) const;
  void add_weight_grads(Exec& ex, ExpertMatrix matrix, const RowFactors& rows, const Saved& saved,
                        const ExpertRange& range) const;
  const Param& param(ExpertMatrix matrix) const { return matrix == ExpertMatrix::up ? up_ : down_; }

  bool recomputes_first_gemm_;
  GemmFormats formats_;
  Param &up_, &down_;
};

}  // namespace megalith::nn
