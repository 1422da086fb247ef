#pragma once
#include <memory>

#include "megalith/nn/linear.h"

namespace megalith::nn {

/// The part of a layer between two residual sums: attention or an MLP. Its passes run in stages. Communication that a
/// forward stage leaves in flight is waited for before the next stage of the same sub-microbatch. So one driver
/// (SublayerStack) can overlap the communication of one sub-microbatch with the compute of the other, cut graphs, and
/// recompute. Const in forward and backward.
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
    GradWithBias dy;  ///< [O, H], of the output
    Tensor dx;        ///< [O, H], of the input; the middle stages overwrite it
  };

  virtual ~Sublayer() = default;
  virtual std::unique_ptr<Saved> make_saved() const = 0;
  /// For decoding: takes memory for what passes with these results keep of earlier tokens, where that is something.
  virtual void take_cache(const TakeKvCache&, Saved&) const {}

  /// At least 2. The first stage gathers the rows of x. The last one ends with the reduction of the output.
  virtual int num_forward_stages() const = 0;
  /// Of microbatch.sub_batch. The first stage reads x [O, H], of the whole microbatch. x stays until backward.
  virtual InFlight forward(Exec& ex, const Microbatch& microbatch, int stage, const Tensor& x, Saved& saved) const = 0;
  /// [O, H], before the bias.
  virtual const Tensor& output(const Saved& saved) const = 0;
  /// [H], added to the output by the seam that follows; null: none.
  virtual const Param* out_bias() const = 0;

  /// At least 3. The first stage starts to gather what backward reads of all rows. The last one computes the weight
  /// gradient that overlaps with the next sublayer's first stage; dx is complete before it.
  virtual int num_backward_stages() const = 0;
  virtual void backward(Exec& ex, const Microbatch& microbatch, int stage, const Gradients& grads,
                        Saved& saved) const = 0;
  /// For an input that was not kept: backward reads this one, which has the same values. Call it before the first
  /// backward stage.
  virtual void set_input(const Tensor& x, Saved& saved) const = 0;
};

/// A sublayer that is one tensor-parallel region: a column-parallel GEMM, local work, a row-parallel GEMM. Forward and
/// backward each communicate one all-reduce of T*H elements over tp. With sequence parallelism this is an all-gather
/// and a reduce-scatter, and backward has one more all-gather, of x.
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
  const Param* out_bias() const final { return last_.bias(); }
  int num_backward_stages() const final { return 3; }
  void backward(Exec& ex, const Microbatch& microbatch, int stage, const Gradients& grads,
                Sublayer::Saved& saved) const final;
  void set_input(const Tensor& x, Sublayer::Saved& saved) const final { static_cast<Saved&>(saved).first.x = x; }

 protected:
  TensorParallelSublayer(ColumnParallelLinear first, RowParallelLinear last)
      : first_(std::move(first)), last_(std::move(last)) {}

  /// The first GEMM of microbatch.sub_batch, whose rows have been gathered.
  virtual void first_gemm(Exec& ex, const Microbatch& microbatch, Saved& saved) const = 0;
  /// From its output to last.x, the input of the last GEMM.
  virtual void local_work(Exec& ex, const Microbatch& microbatch, Saved& saved) const = 0;
  /// The gradient of the first GEMM's output [T, out/tp].
  struct FirstGrad {
    Tensor dy;
    BiasGrad bias = BiasGrad::to_add;
  };
  /// From the gradient of the output, in flight in saved.entered: the last GEMM and the local work backwards.
  virtual FirstGrad backward_to_first(Exec& ex, const Microbatch& microbatch, Saved& saved) const = 0;
  /// Forward passes of the first GEMM for backward, once all rows of x have arrived: in the sub-microbatches of the
  /// forward pass, as a GEMM of other rows may have other bits.
  void first_gemm_again(Exec& ex, const Microbatch& microbatch, Saved& saved) const;

  ColumnParallelLinear first_;
  RowParallelLinear last_;
};

}  // namespace megalith::nn
