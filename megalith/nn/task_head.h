#pragma once
#include <optional>
#include <span>

#include "megalith/nn/head.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/pooled_classes.h"
#include "megalith/nn/task_form.h"
#include "megalith/nn/tensor_parallel.h"

namespace megalith::nn {

/// The end of a model that is fine-tuned: final norm (of pre-norm layers), then
/// - classes: the numbers of all classes from the first token of a sequence (PooledClasses),
/// - choices: one number of each sequence, likewise; those of a sample's sequences are its classes,
/// - spans: two numbers of each token, z = x W^T, W [2, H]. The first tokens of answers are a choice between the tokens
///   of a sequence without its padding, by the first number; last tokens by the second. A bias would add the same to
///   all tokens, and so change nothing.
/// The head is a region: it begins with a gather of all rows. All ranks of tp compute on the same rows, so backward
/// puts each rank's own rows of the stream in place without a sum.
///
/// HeadInputs: classes and choices read `rows`, the first row of each sequence, and labels [samples]; spans read labels
/// [2 B], the places of all first tokens, then of all last ones. A sample without a loss has labels -1.
/// The first loss is the mean cross entropy over labels, the second the share of labels that are the likeliest.
/// Source: Devlin et al. 2019, arXiv:1810.04805, section 4.
class TaskHead final : public Head {
 public:
  static std::span<const LossSpec> losses();
  static void declare(std::vector<ParamSpec>& specs, const TaskHeadSpec& spec, const StreamSpec& stream,
                      const comm::Group& tp);
  TaskHead(const TaskHeadSpec& spec, const TensorParallel& tp, ParamSet& params, std::optional<Norm> norm,
           std::uint64_t seed);

  std::unique_ptr<Head::Saved> make_saved() const override { return std::make_unique<State>(); }
  /// Returns no losses of targets: an undefined tensor.
  Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                 Saved& saved) const override;
  /// Makes row_logits [R, 2] if the task has spans. Throws InternalError for other tasks.
  void infer_rows(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                  const HeadResults& results) const override;
  /// Makes class_logits: [B, classes], or [sequences, 1] for choices. Classes also have label_losses.
  void infer_samples(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                     const HeadResults& results) const override;
  void backward(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, Saved& saved,
                const GradWithBias& dx) const override;

 private:
  struct State : Head::Saved {
    Norm::Saved norm;
    PooledClasses::Saved pooled;
    Tensor rows;     ///< [T, H], of spans
    Tensor d_spans;  ///< [2, T]; after forward the gradient, times the loss scale
  };
  static State& own(Saved& saved) { return static_cast<State&>(saved); }
  Tensor normalized(Exec& ex, const Tensor& x) const;
  void forward_spans(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, State& state) const;
  void backward_spans(Exec& ex, const Microbatch& microbatch, const State& state, const Tensor& d_normed) const;
  void backward_pooled(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, const State& state,
                       const Tensor& d_normed) const;

  TensorParallel tp_;
  std::optional<Norm> norm_;
  std::optional<PooledClasses> pooled_;
  Param* spans_ = nullptr;  // [2, H]
};

}  // namespace megalith::nn
