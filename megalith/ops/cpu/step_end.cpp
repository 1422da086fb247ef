#include <cstring>

#include "megalith/ops/step_end_kernels.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops::cpu {
namespace {

template <class T>
T load(const Tensor& tensor) {
  T value;
  std::memcpy(&value, tensor.raw(), sizeof value);
  return value;
}
template <class T>
void store(const T& value, const Tensor& tensor) {
  std::memcpy(tensor.raw(), &value, sizeof value);
}

}  // namespace

void step_terms(const StepTerms& args) {
  const StepNumbers numbers = add_up(args.sum_squares.data<double>(), args.sum_squares.numel() / 2,
                                     args.loss_sums.data<double>(), args.loss_sums.numel());
  auto counts = load<StepCounts>(args.counts);
  auto outcome = load<StepOutcome>(args.outcome);
  store(terms_of(numbers, args.loss, counts, outcome), args.totals);
  if (args.overflow) counts.without_rows = static_cast<std::uint64_t>(args.overflow.data<std::int64_t>()[0]);
  if (args.plans) counts.calls += static_cast<std::uint64_t>(args.plans.data<std::int64_t>()[0]);
  store(counts, args.counts);
  store(outcome, args.outcome);
}

void decide_step(const DecideStep& args) {
  auto state = load<OptimizerState>(args.state);
  auto outcome = load<StepOutcome>(args.outcome);
  const StepVerdict verdict =
      decide(args.rules, load<StepTotals>(args.totals), load<StepCounts>(args.counts), state, outcome);
  store(state, args.state);
  store(verdict, args.verdict);
  store(outcome, args.outcome);
}

void scale_step_state(const Tensor& optimizer_state, const Tensor& step_state, ScaledLoss loss) {
  auto state = load<StepState>(step_state);
  state.loss_scale *= step_scale(load<OptimizerState>(optimizer_state), loss);
  store(state, step_state);
}

}  // namespace megalith::ops::cpu
