#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/experts.h"
#include "megalith/nn/moe/router.h"
#include "megalith/nn/moe/shared_experts.h"

namespace megalith::nn {

/// A mixture of experts: y = sum over the K chosen experts of weight * expert(x), plus the shared experts. x, y [O, H].
/// Its forward stages are steps that can be called alone: shared experts begin, route, preprocess, dispatch, experts,
/// combine. Communication and memory: those of its parts; where tensor-parallel ranks have shares of rows outside
/// sequence parallelism, one all-gather of T H elements each way; where they have slices of all rows, one all-reduce.
/// Source: Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961.
class Moe final : public Sublayer {
 public:
  enum Stage : int { kBegin, kRoute, kPreprocess, kDispatch, kExperts, kCombine, kNumStages };

  struct Saved : Sublayer::Saved {
    Tensor x;  ///< [O, H]
    Router::Saved router;
    Tensor kept_experts;  ///< [n, K] i32: -1 where a pair was dropped
    std::unique_ptr<Dispatcher::Saved> dispatcher;
    Experts::Saved experts;
    SharedExperts::Saved shared;
    Tensor y, dy;  ///< [O, H]

    void take_host_memory(Device device) override { dispatcher->take_host_memory(device); }
  };

  /// The owner of rows that experts keep for backward, in plans of memory.
  static constexpr const char* kRowsOwner = "expert rows";

  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const LayerGroups& groups);
  Moe(const std::string& name, const MoeSpec& spec, const SublayerOptions& options, const LayerGroups& groups,
      ParamSet& params);

  std::unique_ptr<Sublayer::Saved> make_saved() const override;
  int num_forward_stages() const override { return kNumStages; }
  InFlight forward(Exec& ex, const Microbatch& microbatch, int stage, const Tensor& x,
                   Sublayer::Saved& saved) const override;
  const Tensor& output(const Sublayer::Saved& saved) const override { return static_cast<const Saved&>(saved).y; }
  const Param* out_bias() const override { return nullptr; }
  int num_backward_stages() const override { return 3; }
  void backward(Exec& ex, const Microbatch& microbatch, int stage, const Gradients& grads,
                Sublayer::Saved& saved) const override;
  void set_input(const Tensor& x, Sublayer::Saved& saved) const override;

 private:
  const ExpertParallel& groups() const { return *groups_.experts; }
  void route(Exec& ex, const Microbatch& microbatch, Saved& kept) const;
  void drop(Exec& ex, const Microbatch& microbatch, Saved& kept) const;
  void combine(Exec& ex, Saved& kept) const;
  /// This rank's results `part` [n, H] -> `whole` [O, H], where ranks have shares or slices.
  void complete(Exec& ex, const Tensor& part, const Tensor& whole) const;
  void backward_routed(Exec& ex, const Microbatch& microbatch, const Tensor& dx, Saved& kept) const;

  MoeConfig config_;
  Index capacity_run_, layer_;
  LayerGroups groups_;
  Router router_;
  std::unique_ptr<Dispatcher> dispatcher_;
  Experts experts_;
  std::optional<SharedExperts> shared_;
};

}  // namespace megalith::nn
