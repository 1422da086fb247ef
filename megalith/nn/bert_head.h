#pragma once
#include <array>
#include <optional>
#include <span>

#include "megalith/nn/masked_lm_head.h"
#include "megalith/nn/pooled_classes.h"

namespace megalith::nn {

/// Whether a head also learns how the two segments of a sample stand to each other.
enum class OrderLoss : std::uint8_t { none, two_classes };

/// The heads of a masked language model.
struct BertHeadSpec {
  MaskedLmHead::Spec masked_lm = {.name = "head.mlm"};
  OrderLoss order = OrderLoss::two_classes;
};

/// The end of BERT: final norm (of pre-norm layers), then the loss of masked tokens and perhaps that of the segments'
/// order. The heads are a region: it begins with a gather of all rows, of which only R are read: N for masked tokens,
/// then, for the order, the first of each of B samples (HeadInputs::rows). All ranks of tp compute on the same R rows,
/// so backward puts each rank's own rows of the stream in place without a sum. x [O, H], O = T or its share outside a
/// region (TensorParallel).
class BertHead final : public Head {
 public:
  static std::span<const LossSpec> losses(OrderLoss order);

  static void declare(std::vector<ParamSpec>& specs, const BertHeadSpec& spec, const VocabShard& vocab,
                      const StreamSpec& stream, const comm::Group& tp);
  /// What BertHead shares with other heads: the final norm, if there is one, and the table of the logits.
  struct Parts {
    std::optional<Norm> norm;
    Param& table;
  };
  BertHead(const BertHeadSpec& spec, const VocabShard& vocab, const TensorParallel& tp, ParamSet& params,
           const Parts& parts);

  std::unique_ptr<Head::Saved> make_saved() const override { return std::make_unique<State>(); }
  /// Returns the loss of every target [N].
  Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                 Saved& saved) const override;
  void backward(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, Saved& saved,
                const GradWithBias& dx) const override;
  /// Makes losses, best_ids, hidden.
  void infer_rows(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                  const HeadResults& results) const override;
  /// Makes, of a head for the order, label_losses, class_logits and pooled.
  void infer_samples(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                     const HeadResults& results) const override;

 private:
  struct State : Head::Saved {
    Norm::Saved norm;
    MaskedLmHead::Saved masked_lm;
    PooledClasses::Saved order;
    Tensor normed;  ///< [O, H]
  };
  static State& own(Saved& saved) { return static_cast<State&>(saved); }
  Tensor normalized(Exec& ex, const Tensor& x, Norm::Saved& saved) const {
    return norm_ ? norm_->forward(ex, x, saved) : x;
  }
  Tensor read_rows(Exec& ex, const Tensor& x, const HeadInputs& inputs) const;

  TensorParallel tp_;
  std::optional<Norm> norm_;
  MaskedLmHead masked_lm_;
  std::optional<PooledClasses> order_;
};

}  // namespace megalith::nn
