#pragma once
#include "megalith/nn/head_results.h"
#include "megalith/nn/microbatch.h"
#include "megalith/nn/replicated_linear.h"
#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// A choice between classes from the rows of first tokens: numbers = W2 dropout(tanh(W1 x + b1)) + b2. Either each row
/// has the numbers of all classes, or each of several rows in sequence has the number of one class; these have no b2,
/// which would add the same to all. Whole on each rank of `tp`, as ReplicatedLinear. Source: Devlin et al. 2019,
/// arXiv:1810.04805, sections 3.1 and 4.
class PooledClasses {
 public:
  struct Spec {
    std::string pooler = "head.pooler", numbers = "head.order";  ///< names of its layers' parameters
    Index classes = 2;
    Index rows = 1;  ///< of a choice: 1, or as many as classes
    double dropout = 0;
    std::uint32_t dropout_site = 0;  ///< random site

    Index numbers_per_row() const { return classes / rows; }
  };
  struct Saved {
    Tensor x, pooled;  ///< [N, H]: input, tanh
    Tensor dropped;    ///< [N, H]; pooled itself without dropout
    Tensor d_logits;   ///< [N / rows, classes]; after forward the gradient, times the loss scale
  };
  static void declare(std::vector<ParamSpec>& specs, const Spec& spec, const StreamSpec& stream, const comm::Group& tp);
  PooledClasses(const Spec& spec, ParamSet& params, std::uint64_t seed = 0);

  struct Inputs {
    Tensor labels;        ///< [N / rows] i32, -1: no loss
    Tensor state;         ///< u8 [sizeof(StepState)], with the scale of the loss; undefined in an evaluation
    Tensor sums;          ///< [2] f64, to which are added: the losses, the choices whose likeliest class is the label
    Tensor numbers = {};  ///< [N / rows, classes] f64 for f64, else f32: overwritten with the logits, unless undefined
  };
  /// x [N, H]: of the microbatch's sequences in their order.
  void forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Inputs& inputs, Saved& saved) const;
  /// Overwrites dx [N, H]. Adds to the gradients of all parameters.
  void backward(Exec& ex, const Microbatch& microbatch, const Saved& saved, const Tensor& dx) const;
  /// Without dropout, for any rows x [N, H]. Overwrites class_logits [N, classes / rows], label_losses and pooled of
  /// the results, where they are defined; losses only where a choice is a row. inputs.sums [1] f64: work space.
  void infer(Exec& ex, const Tensor& x, const Inputs& inputs, const HeadResults& results) const;

 private:
  Tensor pool(Exec& ex, const Tensor& x) const;
  /// A row is a sequence: its number is that in the global batch.
  ops::Dropout dropout(const Microbatch& microbatch) const;

  Spec spec_;
  std::uint64_t seed_;
  ReplicatedLinear pooler_, numbers_;
};

}  // namespace megalith::nn
