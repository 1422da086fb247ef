#pragma once
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "megalith/nn/moe/clone_transport.h"
#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/experts.h"
#include "megalith/nn/moe/host_numbers.h"

namespace megalith::nn {

class Echo;

/// The clones of a pass of one layer and microbatch in flight. Its transfers are in flight from one stage to another.
class EchoPass final : public ExpertClones {
 public:
  EchoPass(const Echo& echo, Index ranks, Index slots);

  Tensor weights(Exec& ex, ExpertMatrix matrix) override;
  Tensor grads(Exec& ex, ExpertMatrix matrix) override;
  void grads_written(Exec& ex, ExpertMatrix matrix) override;
  void begin_rounds(Exec& ex, Rounds rounds) override;
  void end_rounds(Exec& ex) override;
  void take_host_memory(Device device);
  const ops::EchoPlan& plan() const { return plan_; }

 private:
  friend class Echo;
  struct Slots {
    Tensor weights, grads;  ///< [S, N, K]; grads in f32 (f64)
    CloneTransfer arriving, leaving;
    bool arrives = false, leaves = false;
  };
  Slots& of(ExpertMatrix matrix) { return slots_[static_cast<std::size_t>(matrix)]; }

  const Echo* echo_;
  ops::EchoPlan plan_;
  Tensor columns_;  ///< [R, n, K], of the choices of all ranks
  PlannedClones clones_;
  HostNumbers src_on_host_;  ///< [R S]
  Tensor exposed_;           ///< MoeTotals::exposed of the layer; undefined: not measured
  std::array<Slots, 2> slots_;
  std::optional<Rounds> rounds_;  ///< under way
};

/// Clones of busy experts in slots of other ranks (docs/echo.md), for one layer. Every rank plans by itself from the
/// choices of all ranks; then pairs go to columns, which are the experts of a rank and its slots. A plan holds for one
/// microbatch. What is computed does not change but for the order of the sums in the gradients of cloned experts.
/// Steps of a pass: plan, start_weights; Experts asks EchoPass for matrices. Backward: start_weights_again, then
/// finish_grads. The host reads nothing, but for EchoBackend::host_sized the plan's clones in
/// start_weights: all else, and a graph that ends before start_weights, can be captured.
/// Communication, per pass: an all-gather of choices, which the dispatcher then need not gather, and the clones'
/// weights (CloneTransport); backward has the gradients, and with EchoWeights::redispatch the weights again. Memory:
/// slots of weights for each microbatch in flight, or for one layer (redispatch); of gradients for one layer. Source:
/// Megatron-LM's ECHO (its issue 2368).
class Echo {
 public:
  /// The owner of slots' weights, in plans of memory.
  static constexpr const char* kSlotsOwner = "echo slots";

  /// `experts` must live as long.
  Echo(const MoeSpec& spec, const ExpertParallel& groups, const Experts& experts);
  std::unique_ptr<EchoPass> make_pass() const;

  /// The columns of all ranks, as dispatchers take them for experts.
  Index num_columns() const { return num_experts_ + group_.size() * config_.slots; }
  /// Plans for the choices [n, K] of this rank. Training passes add to MoeTotals::echo. If the ranks' plans differ and
  /// are compared, no row moves, and MoeTotals::plans has the difference.
  RoutedPairs plan(Exec& ex, const Microbatch& microbatch, const Tensor& choices, EchoPass& pass) const;
  /// For a pass that recomputes what `first` had: the same plan, whatever the router chooses now.
  RoutedPairs repeat(const EchoPass& first, EchoPass& again) const;

  void start_weights(Exec& ex, EchoPass& pass) const;
  /// For backward, where they are not kept.
  void start_weights_again(Exec& ex, EchoPass& pass) const;
  /// The gradients of all experts of this rank are complete.
  void finish_grads(Exec& ex, EchoPass& pass) const;

 private:
  friend class EchoPass;
  RoutedPairs choices_of(const EchoPass& pass) const;
  void add_totals(Exec& ex, const Microbatch& microbatch, const ops::EchoStages& stages, const EchoPass& pass) const;
  /// The steps between comparisons of plans; 0: none.
  Index compared_every(const Exec& ex, const Microbatch& microbatch) const;
  void compare_plans(Exec& ex, const Microbatch& microbatch, const Tensor& choices, EchoPass& pass) const;
  /// Runs start(), which starts a transfer, and counts the time that it takes this stream.
  template <class Start>
  void start_measured(Exec& ex, const EchoPass& pass, Start&& start) const;
  void set_host_sizes(Exec& ex, EchoPass& pass) const;
  void start_weights(Exec& ex, ExpertMatrix matrix, EchoPass& pass) const;
  void finish_weights(Exec& ex, ExpertMatrix matrix, EchoPass& pass) const;
  void finish_grads(Exec& ex, ExpertMatrix matrix, EchoPass& pass) const;

  EchoConfig config_;
  comm::Group group_;
  const Experts& experts_;
  Index num_experts_, layer_;
  bool counts_;  ///< of the ranks with the same plan one adds to totals
  std::unique_ptr<CloneTransport> transport_;
};

/// "[echo] group etp-ep, chunk 0, microbatch 1, layer 3: the plan of clones differs on ranks 2 (...)". `difference` has
/// the numbers of MoeTotals::plans, the first of which is not 0. Names the world ranks whose plan is not that of most.
std::string describe_plan_difference(const comm::Group& group, std::span<const std::int64_t> difference,
                                     int microbatch);

}  // namespace megalith::nn
