#pragma once
#include <cmath>
#include <cstdint>

#include "megalith/ops/adamw.h"
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// The end of a step is decided in the memory that holds its numbers, so on a GPU no host waits for them. The rules are
// constexpr functions of plain structs, the same code on both devices. Structs in device memory have no padding,
// because its bytes would differ from run to run.

/// How the learning rate depends on the number of updates.
enum class DecayCurve : std::uint8_t { constant, linear, cosine, wsd, inverse_sqrt };
struct LearningRate {
  double lr = 1e-3, min_lr = 0;
  /// The rate rises up to update `warmup_steps`, stays up to `decay_begin`, and falls up to `decay_end`.
  std::int64_t warmup_steps = 0, decay_begin = 0, decay_end = 0;
  DecayCurve decay = DecayCurve::cosine;

  /// The rate of the i-th update, i counted from 1. During the warm-up of W updates it is lr i/W. Then it is lr up to
  /// decay_begin, goes to min_lr at decay_end (`cosine`: half a cosine; `linear` and `wsd`: a line), and stays there.
  /// `constant` stays at lr. `inverse_sqrt` is lr sqrt(W/i), but at least min_lr. Sources: Shoeybi et al. 2019,
  /// arXiv:1909.08053, section 4; of `wsd` Hu et al. 2024, arXiv:2404.06395, section 4; of `inverse_sqrt` Vaswani et
  /// al. 2017, arXiv:1706.03762, section 5.3.
  constexpr double of(std::int64_t update) const {
    const auto i = static_cast<double>(update);
    const auto warmup = static_cast<double>(warmup_steps), begin = static_cast<double>(decay_begin),
               end = static_cast<double>(decay_end);
    if (update <= warmup_steps && warmup_steps > 0) return lr * i / warmup;
    if (decay == DecayCurve::constant) return lr;
    if (decay == DecayCurve::inverse_sqrt) {
      const double rate = lr * std::sqrt(warmup / i);
      return rate > min_lr ? rate : min_lr;
    }
    if (update >= decay_end) return min_lr;
    if (update <= decay_begin) return lr;
    const double progress = (i - begin) / (end - begin);
    constexpr double kPi = 3.14159265358979323846;
    const double left = decay == DecayCurve::cosine ? 0.5 * (1 + std::cos(kPi * progress)) : 1 - progress;
    return min_lr + (lr - min_lr) * left;
  }
};

/// Dynamic loss scaling. An overflow skips its step and halves the scale, but not below `smallest`. `growth_interval`
/// consecutive steps without one double it. `initial` 0: no scaling, and NonFinite states what a step does that is not
/// finite. Source: Micikevicius et al. 2018, arXiv:1710.03740.
struct LossScaling {
  double initial = 0, smallest = 1;
  std::int64_t growth_interval = 1000;

  constexpr bool is_on() const { return initial > 0; }
};

/// What a step does whose numbers are not finite, without loss scaling. `stop`: nothing changes any more. `skip`: the
/// step changes nothing, and the next one goes on.
enum class NonFinite : std::uint8_t { stop, skip };
/// What a step does whose loss or gradient norm is a spike. `skip`: it changes nothing.
enum class OnSpike : std::uint8_t { report, skip };

/// A spike is a loss, or a norm of gradients, above so many times its mean over the last `window` steps. Each step
/// moves the mean by 1 / window of the difference, a spike as if it were at the limit: so a mean follows numbers that
/// stay high. The first `window` steps have no spikes; until then it is the plain mean. Nothing is a spike above a mean
/// of 0, which would stay 0.
struct SpikeRules {
  double loss = 0, norm = 0;  ///< how many times; 0: off
  std::int64_t window = 100;
  OnSpike on_spike = OnSpike::report;

  constexpr bool is_on() const { return loss > 0 || norm > 0; }
  constexpr bool skips() const { return is_on() && on_spike == OnSpike::skip; }
};

/// What SpikeRules keep of the steps before; all 0 where they are off.
struct SpikeMeans {
  std::int64_t steps = 0;  ///< that were finite
  double loss = 0, norm = 0;
};

/// The state of the optimizer in addition to its moments, in device memory.
struct OptimizerState {
  std::int64_t updates = 0;  ///< how many were applied so far
  double loss_scale = 1;
  std::int64_t clean_steps = 0;  ///< how many, without a break, since the scale last changed
  /// 1: a step was not finite (NonFinite::stop) or the ranks disagreed; nothing changes any more. 2: experts had too
  /// few rows in a step; it and those after it change nothing until the host sets this to 0.
  std::int64_t halted = 0;
  /// Terms of the first loss in the global batch of the next step, where they are counted before it (StepCounts); else
  /// 0.
  std::int64_t next_terms = 0;
  /// Skipped steps in a row, up to the last one. With loss scaling, steps that were not finite at a scale above the
  /// smallest do not count, and end the row.
  std::int64_t skipped_steps = 0;
  SpikeMeans means = {};
};
inline constexpr std::int64_t kHeldForRows = 2;
/// Bits of StepOutcome::spikes.
inline constexpr std::int64_t kLossSpike = 1, kNormSpike = 2;

/// The largest number of losses of a model.
inline constexpr int kMaxLosses = 4;

/// The numbers of a step that are summed over all ranks. Afterwards they are the same everywhere. Each loss of the
/// model has a row {sum, count, weight}: its sum is here, its count in StepCounts, its weight in StepRules. The rows
/// past the last loss are 0 and are not communicated.
struct StepTotals {
  double squares = 0;  ///< sum of the squared gradients, still scaled
  double loss_sums[kMaxLosses] = {};
};
struct StepCounts {
  std::uint64_t non_finite = 0;                ///< ranks that saw a number that is not finite
  std::uint64_t calls = 0;                     ///< 0 if all ranks made the same calls and plans: agreement terms
  std::uint64_t requests = 0;                  ///< requests of ranks to all ranks, summed; no meaning here
  std::uint64_t without_rows = 0;              ///< pairs of token and expert beyond the rows of ranks (row_budget.h)
  std::uint64_t next_terms = 0;                ///< terms of the first loss in the next step, where that needs them
  std::uint64_t loss_counts[kMaxLosses] = {};  ///< terms of each loss in the global batch
};
/// The mean of a loss over its terms; 0 if there are none.
constexpr double mean_of_loss(const StepTotals& totals, const StepCounts& counts, std::size_t loss) {
  const std::uint64_t count = counts.loss_counts[loss];
  return count == 0 ? 0.0 : totals.loss_sums[loss] / static_cast<double>(count);
}
/// How much of them ranks communicate, with `losses` losses.
constexpr Index summed_totals(int losses) { return 1 + losses; }
constexpr Index summed_counts(int losses) { return 5 + losses; }

/// What the host reads about a step when it is complete.
struct StepOutcome {
  StepTotals totals;
  StepCounts counts;
  double grad_norm = 0, learning_rate = 0, loss_scale = 1;  ///< the norm unscaled, before clipping; the scale used
  std::int64_t halted = 0;                                  ///< OptimizerState::halted after the step
  std::int32_t applied = 0;
  std::int32_t finite_here = 1;    ///< this rank's numbers were finite
  std::int64_t skipped_steps = 0;  ///< OptimizerState::skipped_steps after the step
  std::int64_t spikes = 0;         ///< kLossSpike, kNormSpike
  SpikeMeans means = {};           ///< before the step
};

/// What a step does in which experts had too few rows.
enum class WithoutRows : std::uint8_t { holds, counts };

struct StepRules {
  LearningRate learning_rate = {};
  LossScaling scaling = {};
  double clip = 0;  ///< limit of the global gradient norm; 0: none
  WithoutRows without_rows = WithoutRows::holds;
  NonFinite non_finite = NonFinite::stop;
  SpikeRules spikes = {};
  /// Backward multiplies every term of the first loss by 1 / this, before the number of terms of all ranks is known.
  /// The update then corrects the gradients. 0: they need no correction. Models with several losses have 0: their terms
  /// are counted before the step, and scale_step_state() divides by them.
  double divided_by = 0;
  int losses = 1;
  double loss_weights[kMaxLosses] = {1, 1, 1, 1};

  /// The factor that turns the gradients into those of the mean over the terms. 1 if all tokens have a target, 0 if
  /// none has.
  constexpr double mean_factor(const StepCounts& counts) const {
    if (divided_by == 0) return 1;
    return counts.loss_counts[0] == 0 ? 0 : divided_by / static_cast<double>(counts.loss_counts[0]);
  }
  /// The loss of a step: the weighted sum of the means of all losses. A loss without terms adds nothing.
  constexpr double mean_loss(const StepTotals& totals, const StepCounts& counts) const {
    double sum = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(losses); ++i)
      sum += loss_weights[i] * mean_of_loss(totals, counts, i);
    return sum;
  }
};

/// One rank's numbers of a step.
struct StepNumbers {
  double squares = 0, replicas_squares = 0;  ///< squares of gradients that count, of replicas', which do not
  double loss_sums[kMaxLosses] = {};
};
/// The numbers of a rank with one optimizer per reduction group, for `groups` groups. `squares` has the squares and the
/// replicas' squares of each, `loss_sums` one number per loss.
constexpr StepNumbers add_up(const double* squares, Index groups, const double* loss_sums, Index losses) {
  StepNumbers numbers{.squares = squares[0], .replicas_squares = squares[1]};
  for (Index group = 1; group < groups; ++group) {
    numbers.squares += squares[2 * group];
    numbers.replicas_squares += squares[2 * group + 1];
  }
  for (Index loss = 0; loss < losses; ++loss) numbers.loss_sums[loss] = loss_sums[loss];
  return numbers;
}
/// Whether a rank's sums of losses count in the totals. That of a replica does not.
enum class LossShare : std::uint8_t { counts, replica };

/// A rank's terms of the totals over all ranks. A number that does not count is 0 here, but it is still checked for
/// being finite.
constexpr StepTotals terms_of(const StepNumbers& numbers, LossShare share, StepCounts& counts, StepOutcome& outcome) {
  bool finite = std::isfinite(numbers.squares) && std::isfinite(numbers.replicas_squares);
  StepTotals totals{.squares = numbers.squares};
  for (int i = 0; i < kMaxLosses; ++i) {
    finite = finite && std::isfinite(numbers.loss_sums[i]);
    if (share == LossShare::counts) totals.loss_sums[i] = numbers.loss_sums[i];
  }
  counts.non_finite = finite ? 0 : 1;
  outcome.finite_here = finite ? 1 : 0;
  return totals;
}

/// min(1, clip / (norm + 1e-6)); 1 without clipping.
constexpr double clip_factor(double clip, double norm) {
  if (!(clip > 0)) return 1.0;
  const double factor = clip / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

/// The spikes of a step with this loss and this norm, which are finite. Moves the means.
constexpr std::int64_t find_spikes(const SpikeRules& rules, double loss, double norm, SpikeMeans& means) {
  const bool is_known = means.steps >= rules.window;
  const auto age = static_cast<double>(is_known ? rules.window : means.steps + 1);
  const double loss_limit = rules.loss * means.loss, norm_limit = rules.norm * means.norm;
  const bool is_loss_spike = is_known && loss_limit > 0 && loss > loss_limit,
             is_norm_spike = is_known && norm_limit > 0 && norm > norm_limit;
  means.loss += ((is_loss_spike ? loss_limit : loss) - means.loss) / age;
  means.norm += ((is_norm_spike ? norm_limit : norm) - means.norm) / age;
  ++means.steps;
  return (is_loss_spike ? kLossSpike : 0) + (is_norm_spike ? kNormSpike : 0);
}

/// The decision, from the totals over all ranks: the action of the optimizer, its new state, and the report.
constexpr StepVerdict decide(const StepRules& rules, const StepTotals& totals, const StepCounts& counts,
                             OptimizerState& state, StepOutcome& outcome) {
  const bool agreed = counts.calls == 0, finite = counts.non_finite == 0;
  const bool has_rows = counts.without_rows == 0 || rules.without_rows == WithoutRows::counts;
  const double mean = rules.mean_factor(counts);
  const double norm = std::sqrt(totals.squares) / state.loss_scale * mean;
  const bool is_complete = agreed && finite && has_rows && state.halted == 0;
  outcome.means = state.means;
  outcome.spikes = 0;
  if (!rules.spikes.is_on())
    state.means = {};
  else if (is_complete)
    outcome.spikes = find_spikes(rules.spikes, rules.mean_loss(totals, counts), norm, state.means);
  StepVerdict verdict;
  verdict.apply = is_complete && (outcome.spikes == 0 || rules.spikes.on_spike == OnSpike::report) ? 1 : 0;
  verdict.factor = clip_factor(rules.clip, norm) / state.loss_scale * mean;
  verdict.learning_rate = rules.learning_rate.of(state.updates + 1);
  verdict.update = state.updates;
  outcome.totals = totals;
  outcome.counts = counts;
  outcome.grad_norm = norm;
  outcome.learning_rate = verdict.learning_rate;
  outcome.loss_scale = state.loss_scale;
  outcome.applied = verdict.apply != 0 ? 1 : 0;
  outcome.halted = state.halted;
  outcome.skipped_steps = state.skipped_steps;
  state.next_terms = static_cast<std::int64_t>(counts.next_terms);
  if (state.halted != 0) return verdict;
  if (agreed && !has_rows) {
    outcome.halted = state.halted = kHeldForRows;
    return verdict;
  }
  if (verdict.apply != 0) ++state.updates;
  const bool scaled = rules.scaling.is_on();
  // At a larger scale overflows are how the scale is found.
  const bool is_counted = verdict.apply == 0 && (finite || !scaled || state.loss_scale <= rules.scaling.smallest);
  outcome.skipped_steps = state.skipped_steps = is_counted ? state.skipped_steps + 1 : 0;
  if (!agreed || (!finite && !scaled && rules.non_finite == NonFinite::stop)) {
    outcome.halted = state.halted = 1;
  } else if (!finite && scaled) {
    const double halved = state.loss_scale / 2;
    state.loss_scale = halved > rules.scaling.smallest ? halved : rules.scaling.smallest;
    state.clean_steps = 0;
  } else if (finite && scaled && ++state.clean_steps >= rules.scaling.growth_interval) {
    state.loss_scale *= 2;
    state.clean_steps = 0;
  }
  return verdict;
}

/// terms_of() on the device. The host writes all counts except `non_finite`, the first, and `without_rows`. A rank
/// whose plans of clones differ from others' adds 1 to `calls`.
struct StepTerms {
  Tensor sum_squares;    // in   [2 groups] f64: squares, replicas_squares of each reduction group
  Tensor loss_sums;      // in   [L] f64, L <= kMaxLosses
  Tensor totals;         // out  [5] f64: StepTotals
  Tensor counts;         // in, out  [9] u64: StepCounts
  Tensor overflow = {};  // in   [2] i64: LimitRows::overflow; undefined: none
  Tensor plans = {};     // in   [kPlanDifference] i64: CheckEchoPlans::found; undefined: none
  Tensor outcome;        // out  u8 [sizeof(StepOutcome)]: finite_here
  LossShare loss = LossShare::counts;
};
void step_terms(Exec& ex, const StepTerms& args);

/// decide() on the device.
struct DecideStep {
  Tensor totals, counts;  // in   [5] f64, [9] u64, summed over all ranks
  Tensor state;           // in, out  u8 [sizeof(OptimizerState)]
  Tensor verdict;         // out  u8 [sizeof(StepVerdict)]
  Tensor outcome;         // in, out  u8 [sizeof(StepOutcome)]
  StepRules rules;
};
void decide_step(Exec& ex, const DecideStep& args);

/// Whether a StepState is that of the first loss, whose gradients are also divided by OptimizerState::next_terms where
/// these are known, or that of another.
enum class ScaledLoss : std::uint8_t { first, other };
/// Multiplies the loss_scale of a StepState by that of an OptimizerState (both u8 of their sizes).
void scale_step_state(Exec& ex, const Tensor& optimizer_state, const Tensor& step_state,
                      ScaledLoss loss = ScaledLoss::first);
/// The number that scale_step_state() multiplies by.
constexpr double step_scale(const OptimizerState& state, ScaledLoss loss) {
  const bool divides = loss == ScaledLoss::first && state.next_terms > 0;
  return divides ? state.loss_scale / static_cast<double>(state.next_terms) : state.loss_scale;
}

}  // namespace megalith::ops
