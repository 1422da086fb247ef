#pragma once
#include <array>
#include <optional>

#include "megalith/nn/head.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/row_gemms.h"
#include "megalith/nn/tensor_parallel.h"
#include "megalith/nn/vocab_parallel_cross_entropy.h"

namespace megalith::nn {

/// The end of a language model: final norm (of pre-norm layers), logits against a table (the token table, where they
/// are tied), loss. x [O, H] -> logits [T, V/tp] -> loss [T], with O = T or its share outside a region
/// (TensorParallel). The logits are a region; with sequence parallelism backward gathers its rows again for the table's
/// gradient.
class LmHead final : public Head {
 public:
  static constexpr std::array kLosses{LossSpec{"loss"}};

  LmHead(const VocabShard& vocab, const TensorParallel& tp, std::optional<Norm> norm, Param& table,
         const GemmFormats& formats = {})
      : vocab_(vocab),
        tp_(tp),
        norm_(std::move(norm)),
        table_(table),
        formats_(formats),
        cross_entropy_(vocab, tp.group()) {}

  std::unique_ptr<Head::Saved> make_saved() const override { return std::make_unique<State>(); }
  /// The padding columns hold the products with their zero rows.
  Tensor outputs(Exec& ex, const Tensor& x, Saved& saved) const override;
  Tensor forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                 Saved& saved) const override;
  /// Makes losses, best_ids, hidden.
  void infer_rows(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                  const HeadResults& results) const override;
  void backward(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, Saved& saved,
                const GradWithBias& dx) const override;

 private:
  struct State : Head::Saved {
    Norm::Saved norm;
    VocabParallelCrossEntropy::Saved loss;
    Tensor normed;          ///< [O, H]
    ops::Operand x_turned;  ///< of it, with FP8 weight gradients
  };
  static State& own(Saved& saved) { return static_cast<State&>(saved); }
  void normalize(Exec& ex, const Tensor& x, State& state) const;
  /// Keeps what backward reads in `state`, where the mode has one.
  Tensor logits(Exec& ex, State& state, Mode mode) const;

  VocabShard vocab_;
  TensorParallel tp_;
  std::optional<Norm> norm_;
  Param& table_;  // [V/tp, H]
  GemmFormats formats_;
  VocabParallelCrossEntropy cross_entropy_;
};

}  // namespace megalith::nn
