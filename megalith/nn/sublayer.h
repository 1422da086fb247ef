#pragma once
#include <memory>
#include <span>

#include "megalith/nn/activation_operands.h"
#include "megalith/nn/linear.h"
#include "megalith/nn/recompute_config.h"
#include "megalith/nn/segments.h"

namespace megalith::nn {

/// The part of a layer between two residual sums: attention or an MLP. Its passes run in stages. One driver
/// (SublayerStack) runs them in the order of make_segments(), so it can overlap the communication of one sub-microbatch
/// with the compute of the other, cut graphs, and recompute. Const in forward and backward.
class Sublayer {
 public:
  /// What backward reads, of one microbatch in flight. Backward also keeps its own communication in flight here.
  struct Saved {
    virtual ~Saved() = default;
    /// Takes the host memory that `device` copies to. Before the first pass: taking it later would wait for the device,
    /// and so for other ranks.
    virtual void take_host_memory(Device) {}
  };
  /// Input and output of a backward pass.
  struct Gradients {
    GradWithBias dy;  ///< [O, H], of the output; read by the first stage
    Tensor dx;        ///< [O, H], of the input; the stages after the first one overwrite it
  };

  virtual ~Sublayer() = default;
  virtual std::unique_ptr<Saved> make_saved() const = 0;
  /// For decoding: takes memory for what passes with these results keep of earlier tokens, where that is something.
  virtual void take_cache(const TakeKvCache&, Saved&) const {}

  /// At least 2. The first stage gathers the rows of x. The last one ends with the reduction of the output.
  virtual std::span<const ForwardStage> forward_stages() const = 0;
  /// For the rows of microbatch.sub_batch. The first stage reads x [O, H], of the whole microbatch. x stays until
  /// backward. Wait for the result before the next stage of the same sub-microbatch.
  virtual InFlight forward(Exec& ex, const Microbatch& microbatch, ForwardStage stage, const Tensor& x,
                           Saved& saved) const = 0;
  /// [O, H], before the bias.
  virtual const Tensor& output(const Saved& saved) const = 0;
  /// [H], added to the output by the seam that follows; null: none.
  virtual const Param* out_bias() const = 0;

  /// As SublayerStages::backward: the first stage starts to gather what backward reads of all rows. make_segments() may
  /// put last_weight_grad off.
  virtual std::span<const BackwardStage> backward_stages() const = 0;
  /// Wait for the result before grads.dx is read.
  virtual InFlight backward(Exec& ex, const Microbatch& microbatch, BackwardStage stage, const Gradients& grads,
                            Saved& saved) const = 0;
  /// `again` is for passes that recompute the results of passes with `first`, which lives as long. What the first pass
  /// decided, and could decide otherwise from recomputed numbers, holds again.
  virtual void set_first(const Saved& /*first*/, Saved& /*again*/) const {}

  /// For an input that was not kept: backward reads this one, which has the same values. Call it before the first
  /// backward stage.
  virtual void set_input(const Tensor& x, Saved& saved) const = 0;
};

/// A sublayer whose results are a `State`. The only place that casts Sublayer::Saved to what it is.
template <class State>
class SublayerOf : public Sublayer {
 public:
  std::unique_ptr<Saved> make_saved() const override { return std::make_unique<State>(); }
  InFlight forward(Exec& ex, const Microbatch& microbatch, ForwardStage stage, const Tensor& x,
                   Saved& saved) const final {
    return forward_stage(ex, microbatch, stage, x, own(saved));
  }
  const Tensor& output(const Saved& saved) const final { return static_cast<const State&>(saved).y; }
  InFlight backward(Exec& ex, const Microbatch& microbatch, BackwardStage stage, const Gradients& grads,
                    Saved& saved) const final {
    return backward_stage(ex, microbatch, stage, grads, own(saved));
  }
  void set_input(const Tensor& x, Saved& saved) const final { restore_input(x, own(saved)); }
  void set_first(const Saved& first, Saved& again) const final {
    link_first(static_cast<const State&>(first), own(again));
  }

 protected:
  static State& own(Saved& saved) { return static_cast<State&>(saved); }
  virtual InFlight forward_stage(Exec& ex, const Microbatch& microbatch, ForwardStage stage, const Tensor& x,
                                 State& saved) const = 0;
  virtual InFlight backward_stage(Exec& ex, const Microbatch& microbatch, BackwardStage stage, const Gradients& grads,
                                  State& saved) const = 0;
  virtual void restore_input(const Tensor& x, State& saved) const = 0;        ///< set_input()
  virtual void link_first(const State& /*first*/, State& /*again*/) const {}  ///< set_first()
};

/// The results that every TensorParallelSublayer has.
struct RegionState : Sublayer::Saved {
  Tensor x;  ///< [O, H], the input
  Tensor y;  ///< [O, H], the output, before the bias
  /// Forward only: each sub-microbatch's rows of x, [T/count, H].
  std::array<Tensor, kMaxSubBatches> in_region;
  BackwardInRegion gathered;  ///< from the first backward stage to the last
  Tensor d_first;             ///< of the first GEMM's output

  // FP8 operands. Turned ones of inputs are kept for backward in place of the inputs.
  std::array<RowOperands, kMaxSubBatches> last_operands;  ///< of the last GEMM's input, by sub-microbatch
  ops::Operand x_turned;                                  ///< of the whole microbatch
  RowOperands d_out_operands, d_first_operands;

  RowOperands& last_operands_of(const SubBatch& sub_batch) {
    return last_operands[static_cast<std::size_t>(sub_batch.index)];
  }
};

/// Which inputs of a sublayer's two GEMMs the forward pass does not keep in FP8.
struct RecomputedInputs {
  bool first = false, last = false;
};

/// Those of an MLP, whose activation follows from its first GEMM.
inline RecomputedInputs recomputed_inputs_of_mlp(const RecomputeConfig& recompute) {
  const bool whole = recompute.has(RecomputeModule::mlp);
  return {.first = whole || recompute.has(RecomputeModule::norms),
          .last = whole || recompute.has(RecomputeModule::gelu)};
}

/// How a pass runs the first GEMM of a region.
struct FirstGemm {
  RowOperands operands = {};  ///< of its input, to be filled
  bool in_backward = false;   ///< its results are recomputed
};

/// A sublayer that is one tensor-parallel region: a column-parallel GEMM, local work, a row-parallel GEMM. Forward and
/// backward each communicate one all-reduce of T*H elements over tp. With sequence parallelism this is an all-gather
/// and a reduce-scatter, and backward has one more all-gather, of x. State: a RegionState and the local results.
template <class State>
class TensorParallelSublayer : public SublayerOf<State> {
 public:
  std::span<const ForwardStage> forward_stages() const final {
    static constexpr ForwardStage kStages[] = {ForwardStage::gather, ForwardStage::first_gemm, ForwardStage::last_gemm};
    return kStages;
  }
  std::span<const BackwardStage> backward_stages() const final {
    static constexpr BackwardStage kStages[] = {BackwardStage::gather, BackwardStage::last_input_grad,
                                                BackwardStage::last_weight_grad, BackwardStage::first_input_grad,
                                                BackwardStage::first_weight_grad};
    return kStages;
  }
  const Param* out_bias() const final { return last_.bias(); }

 protected:
  TensorParallelSublayer(ColumnParallelLinear first, RowParallelLinear last, const RecomputedInputs& recomputed)
      : first_(std::move(first)), last_(std::move(last)), recomputed_(recomputed) {}

  /// The first GEMM. x [T/count, H] has the rows of microbatch.sub_batch.
  virtual void first_gemm(Exec& ex, const Microbatch& microbatch, const Tensor& x, State& saved,
                          const FirstGemm& pass) const = 0;
  /// From its output to last_input().
  virtual void local_work(Exec&, const Microbatch&, State&) const {}
  /// [T, in/tp], the input of the last GEMM. Undefined where only its operands are made.
  virtual const Tensor& last_input(const State& saved) const = 0;
  /// From saved.gathered.d_out, in flight, to the gradient of last_input(). Recomputes that where it was not kept.
  /// Calls last_backward_input().
  virtual void last_input_grad(Exec& ex, const Microbatch& microbatch, State& saved) const = 0;
  /// From that to saved.d_first: the local work backwards.
  virtual void local_work_grad(Exec&, const Microbatch&, State&) const {}
  /// Whether the gradient of the first GEMM's bias is complete before its weight gradient. With FP8 operands the op
  /// that rounds the gradient of its output adds to it.
  virtual BiasGrad first_bias_grad() const { return has_fp8_operands() ? BiasGrad::added : BiasGrad::to_add; }
  /// Forward passes of the first GEMM for backward, once all rows of x have arrived: in the sub-microbatches of the
  /// forward pass, as a GEMM of other rows may have other bits.
  void recompute_first_gemm(Exec& ex, const Microbatch& microbatch, State& saved) const {
    TensorParallel::InRegion& x = saved.gathered.x;
    x.messages.wait(ex);
    Microbatch part = microbatch;
    const int count = first_.sub_batches();
    for (part.sub_batch = {0, count}; part.sub_batch.index < count; ++part.sub_batch.index)
      first_gemm(ex, part, part.sub_batch.of(x.x), saved, {.in_backward = true});
  }
  /// Whether a forward pass makes the turned operand of a GEMM's input: blocks of a part of the rows are not blocks of
  /// the whole matrix.
  static bool keeps_turned(const Microbatch& microbatch, bool recomputed) {
    return !recomputed && microbatch.mode == Mode::train && microbatch.sub_batch.count == 1;
  }
  bool has_fp8_operands() const { return first_.formats().rows == GemmFormat::e4m3; }
  /// The activation of an MLP, where it has them.
  ActivationPass activation_pass(const Microbatch& microbatch, const FirstGemm& pass) const {
    return {.formats = last_.formats(),
            .sub_batch = microbatch.sub_batch,
            .is_read = !pass.in_backward,
            .is_kept = pass.in_backward || (microbatch.mode == Mode::train && !recomputed_.last)};
  }
  /// dx [T, in/tp] = that of last_input(). Waits for saved.gathered.d_out.
  void last_backward_input(Exec& ex, State& saved, const Tensor& dx) const {
    saved.gathered.d_out.messages.wait(ex);
    const Tensor& d_out = saved.gathered.d_out.x;
    saved.d_out_operands = make_row_operands(ex, last_.formats(), d_out.shape(), true);
    last_.backward_input(ex, d_out, dx, saved.d_out_operands);
  }

  ColumnParallelLinear first_;
  RowParallelLinear last_;
  RecomputedInputs recomputed_;

 private:
  InFlight forward_stage(Exec& ex, const Microbatch& microbatch, ForwardStage stage, const Tensor& x,
                         State& saved) const final {
    const SubBatch& sub_batch = microbatch.sub_batch;
    Tensor& in_region = saved.in_region[static_cast<std::size_t>(sub_batch.index)];
    if (stage == ForwardStage::gather) {
      saved.x = x;
      TensorParallel::InRegion rows = first_.to_region(ex, x, sub_batch);
      in_region = rows.x;
      return std::move(rows.messages);
    }
    RowOperands& last_operands = saved.last_operands_of(sub_batch);
    if (stage == ForwardStage::first_gemm) {
      // With sequence parallelism backward gathers x again, and quantises that.
      const bool keeps_x = keeps_turned(microbatch, recomputed_.first || first_.is_sequence_parallel());
      const RowOperands operands = make_row_operands(ex, first_.formats(), in_region.shape(), keeps_x);
      saved.x_turned = operands.turned;
      last_operands = {};
      first_gemm(ex, microbatch, in_region, saved, {.operands = operands});
      return {};
    }
    local_work(ex, microbatch, saved);
    const Tensor& in = last_input(saved);
    if (!last_operands.is_made)
      last_operands =
          make_row_operands(ex, last_.formats(), sub_batch.of(in).shape(), keeps_turned(microbatch, recomputed_.last));
    return last_.forward(ex, in ? sub_batch.of(in) : in, saved.y, sub_batch, last_operands);
  }

  InFlight backward_stage(Exec& ex, const Microbatch& microbatch, BackwardStage stage, const Sublayer::Gradients& grads,
                          State& saved) const final {
    switch (stage) {
      case BackwardStage::gather:
        saved.gathered = {last_.to_region_backward(ex, grads.dy.grad), first_.to_region_backward(ex, saved.x),
                          static_cast<bool>(grads.dy.bias_grad)};
        return {};
      case BackwardStage::last_input_grad:
        last_input_grad(ex, microbatch, saved);
        return {};
      case BackwardStage::last_weight_grad:
        last_.backward_weight(ex, saved.gathered, last_input(saved), microbatch.weight_grads,
                              saved.d_out_operands.turned, saved.last_operands[0].turned);
        return {};
      case BackwardStage::first_input_grad:
        saved.d_first_operands = {};
        local_work_grad(ex, microbatch, saved);
        if (!saved.d_first_operands.is_made) {
          saved.d_first_operands = make_row_operands(ex, first_.formats(), saved.d_first.shape(), true);
          if (has_fp8_operands()) saved.d_first_operands.column_sums = first_.bias_grad();
        }
        return first_.backward_input(ex, saved.d_first, grads.dx, saved.d_first_operands);
      default:  // first_weight_grad
        saved.gathered.x.messages.wait(ex);
        first_.backward_weight(ex, saved.d_first, saved.gathered.x.x, microbatch.weight_grads, first_bias_grad(),
                               saved.d_first_operands.turned, saved.x_turned);
        return {};
    }
  }
  void restore_input(const Tensor& x, State& saved) const final { saved.x = x; }
};

}  // namespace megalith::nn
