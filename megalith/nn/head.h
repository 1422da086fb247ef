#pragma once
#include <initializer_list>
#include <memory>
#include <string_view>

#include "megalith/nn/head_results.h"
#include "megalith/nn/linear.h"

namespace megalith::nn {

/// A loss of a head, which has a row of HeadInputs::loss_sums: the name of its mean in reports, and the weight of that
/// mean in the loss of a step.
struct LossSpec {
  std::string_view name;
  double weight = 1;
  std::string_view terms = {};  ///< name of the number of its terms in reports; empty: they do not have it
};

/// What a head reads besides the stream, and where its losses go. Some heads read only R rows of the T of a microbatch.
struct HeadInputs {
  Tensor targets;      ///< [T] i32, or -1 where a row has no loss; of a masked language model [N], N <= R
  Tensor loss_sums;    ///< [losses] f64
  Tensor rows = {};    ///< [R] i32, rows of the microbatch, each at most once; -1: none
  Tensor row_of = {};  ///< [T] i32, the inverse: where in `rows` a row of the microbatch is; -1: nowhere
  Tensor labels = {};  ///< [B] i32, the class of each sample; -1: it has none. Of tasks see TaskHead
  /// u8 [sizeof(StepState)], whose loss_scale multiplies the gradients of losses of labels. In training.
  Tensor label_state = {};
  /// f64 for f64, else f32: overwritten with what the head of a task chooses by, unless undefined.
  Tensor numbers = {};
};

/// The end of a model: from the stream x [O, H] to losses, O = T or its share outside a region (TensorParallel). Const
/// in forward and backward.
class Head {
 public:
  /// What backward reads, of one microbatch in flight.
  struct Saved {
    virtual ~Saved() = default;
  };

  virtual ~Head() = default;
  virtual std::unique_ptr<Saved> make_saved() const = 0;
  /// This rank's logits [T, V/tp] of a language model. Throws InternalError for other heads.
  virtual Tensor outputs(Exec& ex, const Tensor& x, Saved& saved) const;
  /// The loss of every target [T] or [N], 0 where it has none. Adds the sums to inputs.loss_sums.
  virtual Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                         Saved& saved) const = 0;
  /// Inference on rows of the stream, which all lie on this rank: x [R, H] -> the results about rows that are defined,
  /// which are overwritten. Reads inputs.targets [R]; adds to inputs.loss_sums, which then mean nothing. Throws
  /// InternalError for results that the head does not make.
  virtual void infer_rows(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                          const HeadResults& results) const;
  /// The same about samples, from the first row of each: x [B, H]. Reads inputs.labels [B].
  virtual void infer_samples(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                             const HeadResults& results) const;
  /// Overwrites dx [O, H] and adds to its bias_grad. Adds to the gradients of the head's parameters.
  virtual void backward(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, Saved& saved,
                        const GradWithBias& dx) const = 0;

 protected:
  /// Throws InternalError if another result about rows, or about samples, is asked for than those made.
  static void require_made(const HeadResults& results, ResultOf of, std::initializer_list<Result> made);
};

/// Overwrites d_stream [O, H] with this rank's own rows of d_rows [R, H], each at its row of the microbatch; other rows
/// are 0. All ranks of tp have the same d_rows.
void put_rows_back(Exec& ex, const TensorParallel& tp, const Microbatch& microbatch, const HeadInputs& inputs,
                   const Tensor& d_rows, const Tensor& d_stream);

}  // namespace megalith::nn
