#include "megalith/train/grid_verify.h"

#include <algorithm>
#include <limits>
#include <set>

#include "megalith/base/error.h"
#include "megalith/train/step_values.h"
#include "megalith/train/verify_runs.h"

namespace megalith::train {
namespace {

/// All steps, up to the first that differs.
VerifyResult compare_steps(const VerifyInputs& inputs, const VerifiedRuns& runs, const VerifyBands& bands) {
  VerifyResult result;
  std::vector<StepValues> values(runs.plans.size());
  std::vector<std::string> non_finite(runs.plans.size());
  const auto compare = [&] {
    ++result.steps;
    if (!non_finite[0].empty() && !non_finite[1].empty()) throw NonFiniteError(non_finite[0]);
    result.losses.push_back(values[0].loss);
    const ComparedValues compared{values[0], values[1], values.size() > 2 ? &values[2] : nullptr};
    result.different = compare_values(compared, result.steps, bands, result.largest);
    for (StepValues& side : values) side.clear();
    inputs.progress(result.steps);
    return result.different.empty() && result.steps < inputs.steps;
  };
  RunsMeeting meeting(runs.ranks(), compare);
  run_all(
      runs,
      [&](comm::World& world, std::size_t side) {
        VerifiedRun run(world, inputs, runs, side);
        do {
          double loss = std::numeric_limits<double>::quiet_NaN(), norm = loss;
          std::string problem;
          try {
            const StepReport report = run.step();
            loss = report.loss;
            norm = report.grad_norm;
          } catch (const NonFiniteError& error) {
            problem = error.what();
          }
          values[side].put(run.engine());
          if (world.rank() == 0) {
            values[side].loss = loss;
            values[side].grad_norm = norm;
            non_finite[side] = problem;
          }
        } while (meeting.arrive());
      },
      [&] {
        meeting.fail();
        if (runs.routing != nullptr) runs.routing->fail();
      });
  return result;
}

/// Widths of the parts of a row that tp cuts one by one.
OpLayouts layouts_of(const model::ModelConfig& model) {
  return {.num_layers = model.num_layers,
          .vocab_size = model.vocab_size,
          .blocks = {{model.num_heads, model.kv_heads(), model.kv_heads()}, {1, 1}}};
}

/// Of a gradient from a sum of what passes gave: rounding in f64, as in less the band of gradients is wider.
constexpr double kSumBand = 1e-9;

using BothValues = std::array<StepValues, 2>;

/// What wrote the first tensor that differs, and what a sum or an update has made of it.
void examine_tensor(const ValueDifference& tensor, std::span<const std::vector<RankOps>> ops, const BothValues& before,
                    const BothValues& after, const VerifyBands& bands, VerifyResult& result) {
  for (std::size_t grid = 0; grid < result.sums.size(); ++grid) {
    std::set<std::string> writers;
    for (const RankOps& rank : ops[grid])
      if (const auto found = rank.last_writers.find(tensor.name); found != rank.last_writers.end())
        writers.insert(found->second.begin(), found->second.end());
    result.last_writers[grid].assign(writers.begin(), writers.end());
    const StepValues::Whole* const whole = after[grid].find(tensor.name);
    if (!tensor.name.starts_with(kGradientOf) || whole == nullptr) continue;
    result.sums[grid] = sum_of_gradient(ops[grid], tensor.name.substr(kGradientOf.size()), whole->values,
                                        std::max(bands.first_gradients, kSumBand));
  }
  if (tensor.replicas_of >= 0) return;  // which of them is looked at is a matter of time
  std::vector<ValueChange> changes;
  for (std::size_t grid = 0; grid < after.size(); ++grid) {
    const StepValues::Whole *const was = before[grid].find(tensor.name), *const is = after[grid].find(tensor.name);
    if (was != nullptr && is != nullptr && !tensor.name.starts_with(kGradientOf)) changes.push_back({*was, *is});
  }
  if (changes.size() == 2) result.changes = ratio_of_changes(changes[0], changes[1], tensor.band);
}

/// The ops of a step, recorded while all runs train again up to it.
void compare_step_ops(const VerifyInputs& inputs, const VerifiedRuns& runs, const VerifyBands& bands, Index step,
                      VerifyResult& result) {
  std::vector<std::vector<RankOps>> ops(runs.plans.size());
  BothValues before, values;
  for (std::size_t side = 0; side < ops.size(); ++side)
    ops[side].resize(static_cast<std::size_t>(runs.plans[side]->grid.world_size));
  run_all(
      runs,
      [&](comm::World& world, std::size_t side) {
        VerifiedRun run(world, inputs, runs, side);
        for (Index done = 1; done < step; ++done) run.step();
        if (side < before.size()) before[side].put(run.engine());
        run.record_step(ops[side][static_cast<std::size_t>(world.rank())]);
        if (side < values.size()) values[side].put(run.engine());
      },
      [&] {
        if (runs.routing != nullptr) runs.routing->fail();
      });
  const ComparedOps compared{ops[0], ops[1],
                             ops.size() > 2 ? std::span<const RankOps>(ops[2]) : std::span<const RankOps>()};
  result.ops = compare_ops(compared, layouts_of(runs.plans[0]->model), step == 1 ? bands.results : bands.later_results);
  if (result.ops->first) {
    for (const std::string& name : result.ops->first->key.parameters) {
      const StepValues::Whole *const of_a = before[0].find(name), *const of_b = before[1].find(name);
      const double by = of_a == nullptr || of_b == nullptr ? 0 : distance_between(*of_a, *of_b);
      if (by > 0) result.parameters.emplace_back(name, by);
    }
  }
  const ValueDifference* const first = result.first_tensor();
  if (first != nullptr) examine_tensor(*first, ops, before, values, bands, result);
}

bool is_16_bit(const config::RunPlan& plan) { return plan.train.precision == "bf16" || plan.train.precision == "fp16"; }

/// Whether ranks of the two grids round different terms of a sum to 16 bits.
bool rounds_otherwise(const config::RunPlan& a, const config::RunPlan& b) {
  return is_16_bit(a) && (a.grid.tp != b.grid.tp || a.grid.etp != b.grid.etp);
}

/// Whether some sums are rounded to 16 bits otherwise: these, or f32 sums of experts' GEMMs, whose order follows from
/// their numbers of rows.
bool may_round_otherwise(const config::RunPlan& a, const config::RunPlan& b) {
  return rounds_otherwise(a, b) || (is_16_bit(a) && a.model.moe.has_experts() && a.grid.ep != b.grid.ep);
}

VerifyBands bands_of_grids(const config::RunPlan& a, const config::RunPlan& b) {
  const std::string& precision = a.train.precision;
  if (precision == "fp64") {
    return {.first_loss = 1e-12,
            .first_norm = 1e-12,
            .first_gradients = 1e-12,
            .losses = 1e-12,
            .norms = 1e-12,
            .gradients = 1e-10,
            .first_moments = 1e-10,
            .state = 1e-10,
            .results = 1e-11,
            .later_results = 1e-11};
  }
  if (precision == "fp32") {
    return {.first_loss = 1e-6,
            .first_norm = 1e-6,
            .first_gradients = 1e-5,
            .losses = 1e-5,
            .norms = 1e-3,
            .first_moments = 4e-5,
            .results = 1e-4,
            .later_results = 1e-4};
  }
  // A moment is a gradient, or its square, times the clip factor.
  const double wider = precision == "bf16" ? 1 : 0.125, step1 = precision == "bf16" ? 1 : 0.1;
  if (rounds_otherwise(a, b)) {
    return {.first_loss = 1e-4 * step1,
            .first_norm = 5e-3 * step1,
            .first_gradients = 4e-2 * wider,
            .losses = 5e-4 * step1,
            .norms = 5e-3 * step1,
            .first_moments = 16e-2 * wider,
            .results = 4e-2 * wider,
            .later_results = 4e-2 * wider};
  }
  return {.first_loss = 1e-12,
          .first_norm = 5e-4,
          .first_gradients = 1e-6,
          .losses = 1e-4,
          .norms = 5e-4,
          .first_moments = 4e-6,
          .results = 1e-6,
          .later_results = 4e-2 * wider};  // copies of masters may round otherwise
}

}  // namespace

const ValueDifference* VerifyResult::first_tensor() const {
  const auto first =
      std::ranges::find_if(different, [](const ValueDifference& value) { return value.shape.rank() > 0; });
  return first == different.end() ? nullptr : &*first;
}

VerifyBands verify_bands(const config::RunPlan& a, const config::RunPlan& b) {
  VerifyBands bands = bands_of_grids(a, b);
  if (a.optimizer.moments == optim::MomentType::bf16 && a.train.precision != "fp64") bands.first_moments = 0;
  return bands;
}

VerifyResult verify_grids(const VerifyInputs& inputs) {
  const config::RunPlan& a = *inputs.plans[0];
  VerifyBands bands = verify_bands(a, *inputs.plans[1]);
  if (a.optimizer.type == optim::OptimizerType::muon)
    bands.first_gradients = bands.gradients = 0;  // it overwrites them
  config::RunPlan second = *inputs.plans[1], wide = a;
  VerifiedRuns runs{.plans = {&a, &second}};
  wide.train.precision = "fp32";  // the loss is scaled as in fp16
  std::optional<SharedRouting> routing, wide_routing;
  if (a.model.moe.has_experts() && a.train.precision != "fp64") {
    second.model.moe.replay = wide.model.moe.replay = "the choices of the first grid";
    runs.routing = &routing.emplace(a, runs.ranks());
  }
  VerifiedRuns with_wide{.plans = {&a, &second, &wide}};
  if (runs.routing != nullptr) with_wide.routing = &wide_routing.emplace(a, with_wide.ranks());
  const bool is_rounded = may_round_otherwise(a, second);
  VerifyResult result = compare_steps(inputs, runs, bands);
  if (is_rounded && !result.agree()) result = compare_steps(inputs, with_wide, bands);
  const Index examined = result.agree() ? inputs.ops_of_step : result.steps;
  if (examined > 0)
    compare_step_ops(inputs, is_rounded || (is_16_bit(a) && examined > 1) ? with_wide : runs, bands, examined, result);
  return result;
}

}  // namespace megalith::train
