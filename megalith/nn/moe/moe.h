#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/echo.h"
#include "megalith/nn/moe/expert_rounds.h"
#include "megalith/nn/moe/host_copies.h"
#include "megalith/nn/moe/router.h"
#include "megalith/nn/moe/shared_experts.h"

namespace megalith::nn {

/// The facts from which an MoE layer derives where passes of this mode copy sizes to the host. Evaluations do not pad.
/// `captured_end`: SublayerStages.
DispatchFacts facts_of_copies(const MoeSpec& spec, const ExpertParallel& experts, Mode mode,
                              std::optional<ForwardStage> captured_end);

/// The results of Moe.
struct MoeState : Sublayer::Saved {
  Tensor x;       ///< [O, H], as router.x: recomputed for backward where it was not kept
  Tensor routed;  ///< [n, H], of the forward pass: the rows that this rank brings. A graph of an earlier stage skips
                  ///< the host code that would set it again
  Router::Saved router;
  std::unique_ptr<Dispatcher::Saved> dispatcher;
  ExpertRounds::Saved rounds;       ///< of passes in rounds
  std::unique_ptr<EchoPass> echo;   ///< with ECHO
  const MoeState* first = nullptr;  ///< the results that this one recomputes
  ExpertRows rows;                  ///< of this rank's experts
  LaterRows later;                  ///< of `rows`, between the stages dispatch and experts
  Experts::Saved experts;
  SharedExperts::Saved shared;
  Tensor y, dy;           ///< [O, H]
  RowGrads d_rows;        ///< of the rows of this rank's experts
  SourceGrads d_sources;  ///< of the rows that this rank brings

  void take_host_memory(Device device) override {
    dispatcher->take_host_memory(device);
    rounds.take_host_memory(device);
    if (echo) echo->take_host_memory(device);
  }
};

/// A mixture of experts: y = sum over the K chosen experts of weight * expert(x), plus the shared experts. x, y [O, H].
/// Its stages are steps that can be called alone. Forward: gather (of the shared experts), route, preprocess,
/// dispatch (with the shared experts beside it), experts, combine. Backward mirrors them. Communication and memory:
/// those of its parts; where tensor-parallel ranks have shares of rows outside sequence parallelism, one all-gather of
/// T H elements each way; where they have slices of all rows, one all-reduce. Source: Shazeer et al. 2017,
/// arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961.
class Moe final : public SublayerOf<MoeState> {
 public:
  /// The owner of rows that experts keep for backward, in plans of memory.
  static constexpr const char* kRowsOwner = "expert rows";

  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const LayerGroups& groups);
  Moe(const std::string& name, const MoeSpec& spec, const SublayerOptions& options, const LayerGroups& groups,
      ParamSet& params);

  std::unique_ptr<Sublayer::Saved> make_saved() const override;
  std::span<const ForwardStage> forward_stages() const override;
  const Param* out_bias() const override { return nullptr; }
  std::span<const BackwardStage> backward_stages() const override;

 private:
  InFlight forward_stage(Exec& ex, const Microbatch& microbatch, ForwardStage stage, const Tensor& x,
                         MoeState& saved) const override;
  InFlight backward_stage(Exec& ex, const Microbatch& microbatch, BackwardStage stage, const Gradients& grads,
                          MoeState& saved) const override;
  void restore_input(const Tensor& x, MoeState& saved) const override;
  void link_first(const MoeState& first, MoeState& again) const override { again.first = &first; }

  const ExpertParallel& groups() const { return *groups_.experts; }
  /// The pairs of token and expert, and which experts compute them, or which clones of them.
  RoutedPairs routed_pairs(Exec& ex, const Microbatch& microbatch, MoeState& saved) const;
  void combine(Exec& ex, const Microbatch& microbatch, MoeState& saved) const;
  bool in_rounds(const Microbatch& microbatch) const {
    return rounds_ && microbatch.exchange == RowExchange::in_rounds;
  }
  /// This rank's results `part` [n, H] -> `whole` [O, H], where ranks have shares or slices.
  void complete(Exec& ex, const Tensor& part, const Tensor& whole) const;
  void dispatch(Exec& ex, const Microbatch& microbatch, MoeState& saved) const;
  void experts_backward(Exec& ex, const Microbatch& microbatch, MoeState& saved) const;
  void dispatch_backward(Exec& ex, const Microbatch& microbatch, const Tensor& dx, MoeState& saved) const;
  void preprocess_backward(Exec& ex, const Microbatch& microbatch, const Tensor& dx, MoeState& saved) const;
  void route_backward(Exec& ex, const Microbatch& microbatch, const Tensor& dx, MoeState& saved) const;

  LayerGroups groups_;
  Router router_;
  std::optional<ExpertRounds> rounds_;  ///< where ranks have room for fewer rows than can come
  Experts experts_;
  std::optional<Echo> echo_;  ///< where ranks share the experts, and have slots
  /// The stage that waits for the gradients of clones: the last. Where graphs hold the last stages the one before them,
  /// as the transfers start outside of these graphs.
  BackwardStage clone_grads_end_ = BackwardStage::route;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::optional<SharedExperts> shared_;
  /// Where the shared experts compute: beside the transfer of rows, or where a graph holds the first stages in it.
  std::optional<ForwardStage> shared_stage_;
  RowOverflow overflow_;
};

}  // namespace megalith::nn
