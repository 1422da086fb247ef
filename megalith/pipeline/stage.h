#pragma once
#include "megalith/pipeline/schedule.h"
#include "megalith/runtime/exec.h"

namespace megalith::pipeline {

/// What the executor drives: the chunks that one rank holds. A slot is the place of one microbatch's step state and
/// saved activations, from its forward to the end of its backward.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Fills the slot's StepState (and the tokens, where the chunk reads them) before the chunk's forward.
  virtual void set_step_state(Exec& ex, int chunk, int microbatch, int slot) = 0;
  /// input [T, H]: from the previous global stage, stays until backward is done; undefined on the first.
  /// output [T, H]: to be written; undefined on the last.
  virtual void forward(Exec& ex, int chunk, int slot, const Tensor& input, const Tensor& output) = 0;
  /// output_grad [T, H]: undefined on the last global stage. input_grad [T, H]: to be written; undefined on the first.
  /// With the chunk's last backward of a step, gradients that are final go to be summed over the ranks that share
  /// parameters.
  virtual void backward(Exec& ex, int chunk, int slot, const Tensor& output_grad, const Tensor& input_grad,
                        const BackwardTurn& turn) = 0;
  /// Once a step, where the schedule has it, before the chunk's first forward: starts to bring the chunk's parameters
  /// from the ranks that have updated them. That forward waits for them.
  virtual void gather_params(Exec& ex, int chunk) = 0;
  /// Once a step, after the last backward: what has not gone of the gradients goes to be summed over the ranks that
  /// share parameters. Whoever reads them waits.
  virtual void reduce_grads(Exec& ex) = 0;
};

}  // namespace megalith::pipeline
