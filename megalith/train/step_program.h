#pragma once
#include <functional>

#include "megalith/train/run_memory.h"

namespace megalith::train {

/// Whether a rank was asked to end the run after this step.
enum class Stop : std::uint8_t { no, asked };
/// What a rank asks of all when they vote on a step: to end the run, to save.
struct Requests {
  Stop stop = Stop::no;
  bool save = false;
};

/// The ops of a step and of an evaluated batch, in their order. Holds no memory of its own but a buffer on the host,
/// and knows nothing of graphs: a graph may hold passes(), or all but upload(). Every member is collective.
class StepProgram {
 public:
  explicit StepProgram(RunMemory& memory);
  /// Once memory is taken; `ahead`: how many steps may be under way.
  void allocate(int ahead);

  /// Runs every collective once at its sizes, and every pass: what libraries load, choose and connect at their first
  /// use is then done. Changes no state.
  void warm_up_collectives();
  void warm_up_passes();

  /// Forward and backward passes of all microbatches, the sums of gradients over ranks, and their squares.
  void passes();
  /// From the host: what this rank asks for, its sum over the calls that it has made, and its targets with a loss.
  void upload(const Requests& requests);
  /// The totals over all ranks.
  void vote();
  /// The verdict from the totals, and the update of the parameters.
  void update();
  /// Forward passes of a batch without gradients.
  void evaluate();

  /// What the totals say about requests: in the sum over all ranks those to save stand above those to stop.
  static Requests answer(const ops::StepCounts& totals);
  const ops::StepRules& rules() const { return rules_; }

 private:
  /// await(buffer, bucket): before an optimizer reads a bucket.
  template <class Await>
  void sum_squares(Await&& await);
  void update_parameters();
  void sum_totals();

  RunMemory& memory_;
  ops::StepRules rules_;
  Staging staging_;
};

}  // namespace megalith::train
