#pragma once
#include "megalith/pipeline/schedule.h"
#include "megalith/runtime/exec.h"

namespace megalith::pipeline {

/// The interface that the executor drives: the chunks of one rank. A slot holds the step state and the saved
/// activations of one microbatch, from its forward to the end of its backward.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Fills the StepState of the slot (and the tokens, if the chunk reads them) before the chunk's forward.
  virtual void set_step_state(Exec& ex, int chunk, int microbatch, int slot) = 0;
  /// input [T, H]: from the previous global stage, stays until backward is done; undefined on the first. output [T, H]:
  /// is written; undefined on the last.
  virtual void forward(Exec& ex, int chunk, int slot, const Tensor& input, const Tensor& output) = 0;
  /// output_grad [T, H]: undefined on the last global stage. input_grad [T, H]: is written; undefined on the first.
  /// During the last backward of a chunk in a step, gradients that are final are sent to be summed over the ranks that
  /// share parameters.
  virtual void backward(Exec& ex, int chunk, int slot, const Tensor& output_grad, const Tensor& input_grad,
                        const BackwardTurn& turn) = 0;
  /// Once per step, if the schedule has it, before the chunk's first forward: starts to gather the chunk's parameters
  /// from the ranks that have updated them. That forward waits for them.
  virtual void gather_params(Exec& ex, int chunk) = 0;
  /// Once per step, after the last backward: sums the remaining gradients over the ranks that share parameters. Readers
  /// of the gradients wait for the sums.
  virtual void reduce_grads(Exec& ex) = 0;
};

}  // namespace megalith::pipeline
