#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/config/run_plan.h"
#include "megalith/nn/moe/moe.h"
#include "megalith/runtime/memory_plan.h"
#include "megalith/runtime/step_state.h"

#include "apps/bench/clone_times.h"
#include "apps/bench/expert_loads.h"

namespace megalith::apps {

/// Bytes that a layer takes of a rank, besides parameters: kept for backward, and for the ops of a pass.
struct LayerBytes {
  Index kept = 0, scratch = 0;
};

/// The parts of a layer of experts that are timed, in the order of a forward pass. Backward has them in reverse.
inline constexpr std::array<std::string_view, 5> kMoeParts = {"router", "preprocess", "dispatch", "experts", "combine"};

/// With clones of experts, of these: the ops of a plan, and of where pairs go by it, which are a part of preprocess;
/// the transfers of weights to slots, and of gradients home, beside the other parts.
inline constexpr std::array<std::string_view, 4> kCloneParts = {"planner", "rewriting", "weights", "gradients"};

enum class LayerPass : std::uint8_t { forward, backward };

/// Times of one step, the greatest over the ranks.
struct LayerTimes {
  struct Part {
    double seconds = 0;
    double communication_s = 0;  ///< of it, in calls between ranks and waits for them; of another run of the same step
  };
  /// By LayerPass and part.
  std::array<std::array<Part, kMoeParts.size()>, 2> parts{};
  std::array<double, 2> whole_s{};  ///< all parts, and what is between them
  struct ClonePart {
    double seconds = 0;    ///< of ops; of transfers, each from when its data is ready
    double exposed_s = 0;  ///< of it, while nothing else of the layer runs
  };
  std::array<std::array<ClonePart, kCloneParts.size()>, 2> clones{};  ///< by LayerPass and part; without clones all 0
  double max_over_mean = 0;  ///< pairs of the most loaded rank with clones; 0 without
  Index lacking_rows = 0;    ///< pairs for which their rank had no room: they were left out
};

/// One rank's layer of experts, which runs forward and backward under a given load. The rows themselves make the
/// router choose the experts of the load: logits are the first E numbers of a row, as the router's weight is the unit
/// matrix, and those of the wanted experts are the greatest.
class LayerBench {
 public:
  /// The plan's first MoE layer. Collective.
  LayerBench(comm::World& world, const config::RunPlan& plan, const ExpertLoad& load);

  /// Collective. Throws InternalError if the router has not chosen what the load is.
  LayerTimes step(Index step);
  /// What GPUs need before they are timed. Collective.
  void warm_up();
  LayerBytes bytes() const { return {memory_plan_.saved_bytes, memory_plan_.scratch_bytes}; }

 private:
  /// Runs both passes and calls done(pass, stage) after each of their stages.
  template <class Done>
  void run(Exec& ex, nn::Sublayer::Saved& saved, Done&& done) const;
  template <class Done>
  void pass_forward(Exec& ex, nn::Sublayer::Saved& saved, Done&& done) const;
  template <class Done>
  void pass_backward(Exec& ex, nn::Sublayer::Saved& saved, Done&& done) const;
  MemoryPlan planned() const;
  void initialise();
  void put_rows(Index step);
  void run_timed(LayerTimes& times);
  void run_traced(LayerTimes& times);
  void expect_load(Index step);
  nn::LayerGroups layer_groups();
  bool has_clones() const { return plan_.model.moe.echo.slots > 0 && plan_.grid.ep > 1; }
  void add_clone_times(LayerTimes& times) const;
  void read_totals(LayerTimes& times);
  /// The greatest of each number over the ranks.
  void greatest(std::vector<double>& values) const;
  nn::Microbatch microbatch() const;

  comm::World& world_;
  const config::RunPlan& plan_;
  const ExpertLoad& load_;
  comm::Mesh mesh_;
  CloneTimes clone_times_;
  std::size_t forward_calls_ = 0, weight_calls_ = 0;  ///< of clone_times_: of the forward pass, and up to gradients
  nn::LayerGroups groups_;
  Exec ex_;
  MemoryLedger ledger_;
  std::optional<ParamSet> params_;
  std::optional<nn::Moe> moe_;
  std::unique_ptr<nn::Sublayer::Saved> saved_;
  nn::MoeStep moe_step_;
  Tensor totals_, step_state_, x_, dy_, dx_;
  std::vector<float> noise_;          // [T, H]
  std::vector<std::byte> host_rows_;  // x, until the device has it
  MemoryPlan memory_plan_;
  Buffer kept_, scratch_;
};

}  // namespace megalith::apps
