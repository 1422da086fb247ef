#pragma once
#include <memory>

#include "megalith/nn/linear.h"

namespace megalith::nn {

/// What stands between two additions to the residual stream: attention or an MLP. Its passes run in stages. What a
/// forward stage leaves in flight is waited for before the same part's next stage, so one driver (SublayerStack) runs a
/// part's communication beside another's compute, cuts graphs, and recomputes. Const in forward and backward.
class Sublayer {
 public:
  /// What backward reads, of one microbatch in flight. Backward also keeps here what it has in flight.
  struct Saved {
    virtual ~Saved() = default;
  };
  /// Input and output of a backward pass.
  struct Gradients {
    GradWithBias dy;  ///< [O, H], of the output
    Tensor dx;        ///< [O, H], of the input; overwritten by the middle stages
  };

  virtual ~Sublayer() = default;
  virtual std::unique_ptr<Saved> make_saved() const = 0;

  /// At least 2. The first gathers the rows of x; the last ends with the reduction of the output.
  virtual int num_forward_stages() const = 0;
  /// Of microbatch.sub_batch. x [O, H], the whole microbatch's, is read by the first stage; it stays until backward.
  virtual InFlight forward(Exec& ex, const Microbatch& microbatch, int stage, const Tensor& x, Saved& saved) const = 0;
  /// [O, H], before the bias.
  virtual const Tensor& output(const Saved& saved) const = 0;
  /// [H], added to the output by the seam that follows.
  virtual const Param& out_bias() const = 0;

  /// At least 3. The first starts to gather what backward reads of all rows. The last computes the weight gradient that
  /// hides the next sublayer's first stage; dx is complete before it.
  virtual int num_backward_stages() const = 0;
  virtual void backward(Exec& ex, const Microbatch& microbatch, int stage, const Gradients& grads,
                        Saved& saved) const = 0;
  /// Where the input was not kept: backward reads this one, which has its values. Before the first backward stage.
  virtual void set_input(const Tensor& x, Saved& saved) const = 0;
};

/// A sublayer that is one tensor-parallel region: a column-parallel GEMM, local work, a row-parallel GEMM.
/// Communicates over tp, forward and backward each, one all-reduce of T*H elements; with shared rows (sequence
/// parallelism) an all-gather and a reduce-scatter, and backward one more all-gather, of x.
class TensorParallelSublayer : public Sublayer {
 public:
  struct Saved : Sublayer::Saved {
    ColumnParallelLinear::Saved first;
    RowParallelLinear::Saved last;
    BackwardInRegion entered;  ///< from the first backward stage to the last
  };
  int num_forward_stages() const final { return 3; }
  InFlight forward(Exec& ex, const Microbatch& microbatch, int stage, const Tensor& x,
                   Sublayer::Saved& saved) const final;
  const Tensor& output(const Sublayer::Saved& saved) const final { return static_cast<const Saved&>(saved).last.y; }
  const Param& out_bias() const final { return last_.bias(); }
  int num_backward_stages() const final { return 3; }
  void backward(Exec& ex, const Microbatch& microbatch, int stage, const Gradients& grads,
                Sublayer::Saved& saved) const final;
  void set_input(const Tensor& x, Sublayer::Saved& saved) const final { static_cast<Saved&>(saved).first.x = x; }

 protected:
  TensorParallelSublayer(ColumnParallelLinear first, RowParallelLinear last)
      : first_(std::move(first)), last_(std::move(last)) {}

  /// The first GEMM of microbatch.sub_batch, whose rows have been gathered.
  virtual void first_gemm(Exec& ex, const Microbatch& microbatch, Saved& saved) const = 0;
  /// From its result to last.x, what the last GEMM reads.
  virtual void local_work(Exec& ex, const Microbatch& microbatch, Saved& saved) const = 0;
  /// From the gradient of the output, in saved.entered, to that of the input. All weight gradients but the one that
  /// hides the next sublayer's gather.
  virtual void backward_through(Exec& ex, const Microbatch& microbatch, const Tensor& dx, Saved& saved) const = 0;

  ColumnParallelLinear first_;
  RowParallelLinear last_;
};

}  // namespace megalith::nn
