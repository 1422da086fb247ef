#pragma once
#include <functional>

#include "megalith/train/run_memory.h"

namespace megalith::train {

/// Whether a rank was asked to end the run after this step.
enum class Stop : std::uint8_t { no, asked };
/// What a rank requests of all ranks in the vote of a step: to end the run, to save.
struct Requests {
  Stop stop = Stop::no;
  bool save = false;
};

/// Whether the terms of a step's first loss are known before its passes: where losses have different numbers of terms,
/// no factor on the summed gradients turns these into those of the means.
bool counts_terms_ahead(const config::RunPlan& plan);

/// The ops of a step and of an evaluated batch, in their order. Holds no memory except a buffer on the host, and does
/// not know graphs: a graph may hold passes(), or everything except upload(). Every member is collective.
class StepProgram {
 public:
  explicit StepProgram(RunMemory& memory);
  /// Call it when memory is taken. `ahead`: how many steps may be in flight.
  void allocate(int ahead);

  /// Run every collective once at its size, and every pass: so libraries have loaded, chosen and connected everything
  /// for their first use. Change no state.
  void warm_up_collectives();
  void warm_up_passes();

  /// Forward and backward passes of all microbatches, the sums of gradients over ranks, and their squares.
  void passes();
  /// This rank's terms of the first loss in the next step, for the coming upload() and those after it.
  void set_next_terms(Index terms) { next_terms_ = static_cast<std::uint64_t>(terms); }
  /// From the host: this rank's requests, its sum over the calls that it has made, and its numbers of terms of losses.
  void upload(const Requests& requests);
  /// The totals over all ranks.
  void vote();
  /// The verdict from the totals, and the update of the parameters.
  void update();
  /// Forward passes of a batch without gradients.
  void evaluate();

  /// The requests in the totals. In the sum over all ranks, requests to save are counted above requests to stop.
  static Requests answer(const ops::StepCounts& totals);
  const ops::StepRules& rules() const { return rules_; }

 private:
  /// await(buffer, bucket) is called before an optimizer reads a bucket.
  template <class Await>
  void sum_squares(Await&& await);
  void update_parameters();
  void sum_totals();

  RunMemory& memory_;
  ops::StepRules rules_;
  std::uint64_t next_terms_ = 0;
  Staging staging_;
};

}  // namespace megalith::train
