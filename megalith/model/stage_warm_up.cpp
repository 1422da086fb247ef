// What a stage runs before the first step, so that a GPU has loaded all that steps need.
#include <algorithm>

#include "megalith/model/stage.h"
#include "megalith/ops/elementwise.h"

namespace megalith::model {

void Stage::warm_up(Exec& ex, const Tensor& optimizer_state) {
  class AnyTokens final : public BatchSource {
   public:
    void fill(Index, Index, const Batch& batch) const override {
      for (const BatchInput& input : kBatchInputs) std::ranges::fill(batch.*input.host, 0);
    }
  };
  const AnyTokens source;
  const Tensor input = ex.tensor(boundary_shape(), config_.policy.compute),
               output = ex.tensor(boundary_shape(), config_.policy.compute);
  // A step's second microbatch adds to the weights' gradients where the first overwrites them.
  const int train_passes = std::min(2, num_microbatches(config_, mesh_));
  const auto run = [&](nn::Mode mode) {
    load(ex, mode, source, 0, {}, optimizer_state);
    begin(ex);
    for (int chunk = 0; chunk < config_.chunks; ++chunk) {
      const Tensor before = memory_.input_of(chunk, input), after = memory_.output_of(chunk, output);
      for (int pass = 0; pass < (mode == nn::Mode::train ? train_passes : 1); ++pass) {
        ops::fill(ex, input, 0.5);
        set_step_state(ex, chunk, 0, 0);
        forward(ex, chunk, 0, before, after);
        if (mode == nn::Mode::train)
          backward(ex, chunk, 0, after, before,
                   {.is_first = pass == 0, .is_last = pass + 1 == num_microbatches(config_, mesh_)});
      }
    }
    if (mode == nn::Mode::train) {
      reduce_grads(ex);
      await_all_grads(ex);
    }
  };
  memory_.warm_up(ex, [&] {
    for (const nn::Mode mode : {nn::Mode::train, nn::Mode::evaluate}) run(mode);
    if (!may_run_in_rounds()) return;
    set_exchange(nn::RowExchange::in_rounds);
    run(nn::Mode::train);
    set_exchange(nn::RowExchange::at_once);
  });
  ex.synchronize();
  ex.release();
}

void Stage::warm_up_collectives(Exec& ex) {
  reduce_grads(ex);
  await_all_grads(ex);
  gather_all_params(ex);
  const Tensor rows = ex.tensor(boundary_shape(), config_.policy.compute);
  ops::fill(ex, rows, 0);
  const nn::TensorParallel& tp = memory_.tp();
  nn::TensorParallel::InRegion in_region = tp.to_region(ex, rows, nn::kWholeMicrobatch);
  in_region.messages.wait(ex);
  tp.from_region(ex, in_region.x, rows, nn::kWholeMicrobatch).wait(ex);
  ex.synchronize();
  ex.release();
}

}  // namespace megalith::model
