#include "megalith/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/base/text.h"
#include "megalith/io/problem_text.h"
#include "megalith/train/attention_facts.h"
#include "megalith/train/clone_memory.h"
#include "megalith/train/gemm_cache.h"
#include "megalith/train/graph_reports.h"
#include "megalith/train/non_finite.h"
#include "megalith/train/router_trace.h"
#include "megalith/train/run_log.h"
#include "megalith/train/save_policy.h"
#include "megalith/train/step_trace.h"

namespace megalith::train {
namespace {

/// One rank's loop with what it reports.
class Run {
 public:
  Run(comm::World& world, const TrainInputs& inputs, io::Fs& fs)
      : world_(world),
        inputs_(inputs),
        plan_(inputs.plan),
        fs_(fs),
        fitted_(with_clone_weights(world, inputs.plan)),
        engine_(world, fitted_),
        choices_(engine_, inputs.plan, inputs.choice_tasks),
        saver_(engine_, inputs.plan, inputs.identity, fs, checkpoint_folder(inputs.plan, inputs.out)),
        train_batches_(inputs.data.train_batches()),
        held_out_(inputs.data.held_out()),
        log_(world, inputs.plan, inputs.screen),
        saves_(saver_, world, inputs, log_),
        graphs_(engine_, inputs.plan, log_) {}

  Outcome run() {
    start();
    StepTrace trace(engine_, fs_, log_, inputs_.trace, progress_.step, plan_.train.steps);
    graphs_.start(progress_.step);
    const std::unique_ptr<RouterTrace> router_trace =
        open_router_trace(world_, fs_, plan_, inputs_.router_trace, progress_.step);
    engine_.stage().moe().decisions = router_trace.get();
    while (progress_.step < plan_.train.steps && !is_stopped_early()) {
      trace.before_step(progress_.step);
      start_step();
      router_trace->end_step();
      trace.after_step(progress_.step);
      graphs_.after_step(progress_.step);
      const Requests asked = finish_steps();
      if (asked.stop == Stop::asked && !is_last()) break;
      // With early_stop a checkpoint has the count of all evaluations up to its step.
      const bool evaluates_first = plan_.train.early_stop > 0 && !is_last();
      if (evaluates_first && is_evaluation_due()) evaluate();
      if (saves_.is_due(progress_.step) || asked.save || is_stopped_early()) save();
      if (!evaluates_first && is_evaluation_due()) evaluate();
    }
    trace.close(progress_.step);
    if (const std::string line = router_trace->publish(); !line.empty()) log_.note(line);
    if (progress_.step < plan_.train.steps && !is_stopped_early()) return save_and_stop();
    graphs_.report_submit_times();
    if (is_stopped_early() && !is_last()) {
      const std::string text = early_stop_text(*progress_.held_out);
      log_.note(str("stopped early after step ", progress_.step, ": ", text));
      log_.event("end", "stopped early: " + text);
    } else {
      log_.event("end", "all steps are done");
    }
    return Outcome::finished;
  }

  Index step() const { return progress_.step; }

 private:
  using Failure = SavePolicy::Failure;
  struct StepBatch {
    Index first_sample = 0, size = 0;
  };

  bool first() const { return world_.rank() == 0; }
  bool is_last() const { return progress_.step == plan_.train.steps; }
  bool is_stopped_early() const { return stops_early(plan_.train, progress_.held_out); }

  bool is_evaluation_due() const {
    const Index interval = plan_.train.eval_interval;
    const bool has_any = !held_out_.empty() || !choices_.is_empty();
    return has_any && progress_.step > 0 && (is_last() || (interval > 0 && progress_.step % interval == 0));
  }
  /// A run that ended between a save and the evaluation of the same step makes up for it. With early_stop the
  /// checkpoint knows whether it was counted.
  bool is_evaluation_missing() {
    if (!is_evaluation_due()) return false;
    if (plan_.train.early_stop > 0) return !progress_.held_out || progress_.held_out->last_step != progress_.step;
    std::int64_t missing = first() && !log_.has_evaluation(progress_.step) ? 1 : 0;
    return largest(missing) != 0;
  }

  /// Over all ranks.
  Index largest(std::int64_t mine) {
    Exec host;
    comm::all_reduce(host, world_.all(), Tensor(&mine, {1}, DType::i64), comm::Reduce::max).wait(host);
    return mine;
  }

  /// All that comes before the first step.
  void start() {
    engine_.allocate();
    choices_.allocate();
    memory_bytes_ = largest(total(engine_.taken_bytes()) + choices_.planned_bytes());
    begin_or_resume();
    if (is_evaluation_missing()) evaluate();
    saves_.start();
    for (const std::string& warning : plan_.warnings()) log_.warn(warning);
  }

  void begin_or_resume() {
    if (inputs_.resume != Resume::no) resume();
    const bool takes_values = !resumed_ && !plan_.init().empty();
    std::vector<std::string> changed;
    if (takes_values) changed = saver_.take_values(inputs_.init);
    if (first()) {
      const model::ModelConfig& m = plan_.model;
      log_.note(str("model ", m.num_layers, " layers x ", m.hidden_size, ", ", model::parameters_text(m),
                    m.moe.has_experts() ? " (TFLOP/s count the active ones)" : "", "; grid ", config::grid_text(plan_),
                    " over ", world_.size(), world_.size() == 1 ? " rank (" : " ranks (", world_.transport(), "); ",
                    plan_.train.precision, ", ", human_bytes(memory_bytes_), " a rank at most",
                    plan_.device == Device::cpu
                        ? str(", ", team_size(), team_size() == 1 ? " thread each" : " threads each")
                        : std::string()));
      log_.note(str("memory of rank 0: ", owners_text(engine_.taken_bytes())));
      if (m.moe.echo.weights == nn::EchoWeights::automatic &&
          fitted_.model.moe.echo.weights == nn::EchoWeights::redispatch)
        log_.note("moe.echo.weights = redispatch, as the hosts have too little memory to keep the weights of clones");
      if (const std::string reason = own_attention_reason(plan_); !reason.empty())
        log_.note("attention by megalith's own kernel: " + reason);
      if (const std::string refusal = refused_attention(plan_); !refusal.empty())
        log_.note("attention by megalith's own kernel, as the library has none: " + refusal);
      if (!choices_.is_empty())
        log_.note(str("eval.tasks: ", inputs_.choice_tasks.size(),
                      inputs_.choice_tasks.size() == 1 ? " file" : " files", " of questions, ",
                      human_bytes(choices_.planned_bytes()), " on rank 0 to score them"));
      for (const std::string& cut : choice_task_cuts(inputs_.choice_tasks)) log_.warn(cut);
      const RunData::Facts read = inputs_.data.train();
      log_.note(str("data ", read.name, ": ", read.tokens, " tokens, ", read.samples, " samples"));
    }
    if (resumed_) {
      for (const std::string& warning : resumed_->warnings) log_.warn(warning);
      log_.note(
          str("resumed ", resumed_->folder, " at step ", progress_.step, ", state digest ", resumed_->digest.hex()));
    }
    if (takes_values) log_.note(str("values of ", inputs_.init.string(), "; all else starts as in a new run"));
    for (const std::string& change : changed) log_.note(str(plan_.init_key(), ": ", change));
    if (progress_.step >= plan_.train.steps) {
      log_.note(str("nothing to train: step ", progress_.step, " of train.steps = ", plan_.train.steps, " is done"));
    }
    if (first()) io::publish_file(fs_, inputs_.out / "recipe.toml", config::to_toml(plan_.as_config()));
    const std::string values = resumed_ ? resumed_->folder : takes_values ? inputs_.init.string() : "random values";
    log_.open(fs_, inputs_.out, progress_.step,
              str(config::grid_text(plan_), ", ", world_.size(), world_.size() == 1 ? " rank (" : " ranks (",
                  world_.transport(), "); ", values));
    if (plan_.chooses_gemms()) choose_gemms();
  }

  void resume() {
    resumed_ = saver_.resume();
    if (!resumed_) {
      if (inputs_.resume == Resume::automatic) return;
      throw nothing_to_resume(checkpoint_folder(plan_, inputs_.out));
    }
    progress_ = resumed_->progress;
  }

  /// The tables that a run starts from, in descending priority.
  std::vector<ops::KnownGemms> known_gemms(const ops::GemmPlatform& platform, const GemmCache& cache) {
    std::vector<ops::KnownGemms> known;
    if (inputs_.gemm_table) {
      const ops::GemmPlatform& theirs = inputs_.gemm_table->table.platform;
      if (theirs != platform) {
        throw InputError(str("[", inputs_.gemm_table->source, "] gpu = ", theirs.text(), ": this run computes on ",
                             platform.text(), "; run where the table was made, or without it"));
      }
      known.push_back(*inputs_.gemm_table);
    }
    if (resumed_ && !resumed_->gemm_table.empty()) {
      try {
        known.push_back({resumed_->folder, ops::parse_gemm_table(resumed_->gemm_table, resumed_->folder)});
      } catch (const InputError& error) {
        log_.warn(
            str("the checkpoint's GEMM algorithms are not used; results may differ in the last bits: ", error.what()));
      }
    }
    if (std::optional<ops::GemmTable> cached = cache.read()) known.push_back({cache.file(), std::move(*cached)});
    return known;
  }

  void choose_gemms() {
    const ops::GemmPlatform platform = ops::gemm_chooser(engine_.exec()).current().platform;
    const GemmCache cache(fs_, inputs_.cache, platform);
    const double begin = monotonic_s();
    const ops::GemmChoices choices =
        engine_.choose_gemms(first() ? known_gemms(platform, cache) : std::vector<ops::KnownGemms>());
    if (!first()) return;
    for (const std::string& warning : choices.warnings) log_.warn(warning);
    io::publish_file(fs_, inputs_.out / "gemm_table.json", ops::gemm_table_text(choices.table));
    cache.add(choices.timed);
    log_.note(str("GEMM algorithms of ", choices.table.products.size(), " products, ", choices.timed.products.size(),
                  " of them timed, ", std::round((monotonic_s() - begin) * 1e3), " ms"));
  }

  void start_step() {
    if (engine_.steps_started() == 0) finished_at_ = monotonic_s();
    world_.begin_step(progress_.step + 1);
    engine_.start_step(*train_batches_, progress_,
                       [this] { return saves_.requests(progress_.step + 2 + engine_.steps_ahead()); });
    batches_.push_back({progress_.samples, plan_.train.batch_after(progress_.samples)});
    ++progress_.step;
    progress_.samples += batches_.back().size;
  }

  StepReport finish_step(Index step) {
    try {
      return engine_.finish_step();
    } catch (const NonFiniteError& error) {
      if (!resumed_ || step > resumed_->progress.step + 1) throw;
      throw NonFiniteError(str(error.what(), ". It is the first step from ", resumed_->folder,
                               ", whose parameters may be broken: move that folder away to go on from an earlier one"));
    }
  }

  static void add(Requests& sum, const Requests& more) {
    if (more.stop == Stop::asked) sum.stop = Stop::asked;
    sum.save = sum.save || more.save;
  }

  /// Reads and reports the steps that have ended. Returns what ranks requested in their votes.
  Requests finish_steps() {
    // A GPU is given the next step before the numbers of this one are read; nothing may wait where the state is used.
    const bool is_state_used = saves_.is_due(progress_.step) || is_evaluation_due();
    Requests asked = finish_steps(is_state_used ? 0 : engine_.steps_ahead());
    if (asked.stop == Stop::asked || asked.save) add(asked, finish_steps(0));
    return asked;
  }

  /// Until so many steps are in flight.
  Requests finish_steps(int in_flight) {
    const int count = engine_.steps_started() - in_flight;
    if (count <= 0) return {};
    std::vector<StepReport> results;
    Index step = progress_.step - engine_.steps_started();
    for (int i = 0; i < count; ++i) results.push_back(finish_step(step + i + 1));
    const double now = monotonic_s(), seconds = (now - finished_at_) / static_cast<double>(count);
    Requests asked;
    for (const StepReport& result : results) {
      ++step;
      const StepBatch batch = batches_.front();
      batches_.pop_front();
      if (first()) report(step, batch, result, seconds);
      add(asked, {.stop = result.stop ? Stop::asked : Stop::no, .save = result.save});
      refuse_repeated_skips(step, result);
    }
    finished_at_ = now;
    return asked;
  }

  /// A step that is skipped changes nothing, so the next ones differ from it by their data alone. The same on all
  /// ranks.
  void refuse_repeated_skips(Index step, const StepReport& result) {
    const Index skipped = result.skipped_steps;
    if (skipped < plan_.train.skip_limit) return;
    const ops::LossScaling& scaling = plan_.train.scaling;
    const bool overflows = scaling.is_on() && !plan_.train.spikes.skips();  // and nothing else
    throw NonFiniteError(str("[step ", step, "] the last ", skipped,
                             overflows ? str(" steps were not finite at train.loss_scale_min = ", scaling.smallest)
                                       : str(" steps were skipped, as many as train.skip_limit allows"),
                             ": parameters stay those of step ", step - skipped, ". ",
                             non_finite_advice(plan_, engine_.optimizer_state().updates)));
  }

  /// Warns of a step that was skipped or has a spike; not of one that overflows in fp16, which is usual.
  void warn_of_numbers(Index step, const StepReport& result) {
    if (!result.finite && !plan_.train.scaling.is_on()) {
      log_.warn(str("step ", step, " is skipped: loss = ", result.loss, ", gradient norm = ", result.grad_norm, ", ",
                    result.where));
    }
    for (const Spike& spike : spikes_of(result)) {
      log_.warn(str("step ", step, result.skipped ? " is skipped: " : ": ", spike.text(), " over the last ",
                    plan_.train.spikes.window, " steps"));
    }
  }

  void report(Index step, const StepBatch& batch, const StepReport& result, double seconds) {
    const Index per_sample = plan_.model.tokens_per_sample();
    const double tokens = static_cast<double>(batch.size * per_sample);
    const StepMetrics metrics{.step = step,
                              .result = result,
                              .tokens = (batch.first_sample + batch.size) * per_sample,
                              .batch = plan_.train.ramp ? batch.size : 0,
                              .step_time_s = seconds,
                              .tokens_per_second = tokens / seconds,
                              .model_tflops_per_s = model::flops_per_token(plan_.model) * tokens / seconds * 1e-12,
                              .missed_saves = saves_.missed(),
                              .memory_bytes = memory_bytes_};
    log_.step(metrics);
    warn_of_numbers(step, result);
  }

  void evaluate() {
    const bool is_new = !log_.has_evaluation(progress_.step);
    std::vector<HeldOutResult> held_out;
    for (const RunData::HeldOut& set : held_out_) {
      held_out.push_back(evaluate(set));
      if (plan_.train.early_stop > 0 && &set == &held_out_.front())
        add_evaluation(progress_.held_out, progress_.step, held_out.back().result.loss, plan_.train.early_stop_delta);
    }
    // All lines are written at the end: a run that ends before has none, and makes up for all of them.
    const std::vector<ChoiceResult> choices = scores();
    if (is_new) {
      for (const HeldOutResult& result : held_out) log_.evaluation(progress_.step, result);
      for (const ChoiceResult& result : choices) log_.choices(progress_.step, result);
    }
    graphs_.after_evaluation(progress_.step);
  }

  /// As a held-out loss: numbers that are not finite end the run only if they are those of the last step.
  std::vector<ChoiceResult> scores() {
    std::vector<ChoiceResult> scored = choices_.score();
    for (const ChoiceResult& result : scored) {
      if (result.is_finite) continue;
      const std::string what = str("[step ", progress_.step, "] eval.tasks: ", result.name,
                                   ": a probability is not finite, so there is no score");
      if (is_last()) throw NonFiniteError(what + "; the checkpoint of this step may be broken");
      log_.warn(what);
    }
    std::erase_if(scored, [](const ChoiceResult& result) { return !result.is_finite; });
    return scored;
  }

  HeldOutResult evaluate(const RunData::HeldOut& set) {
    const Index asked = set.figures ? 0 : plan_.train.eval_batches * plan_.train.global_batch;
    const Index samples = asked == 0 ? set.samples : std::min(set.samples, asked);
    std::vector<float> numbers;
    Engine::TakeNumbers take;
    if (set.figures)
      take = [&](std::span<const float> batch) { numbers.insert(numbers.end(), batch.begin(), batch.end()); };
    const Evaluated result = engine_.evaluate_losses(*set.batches, samples, take);
    if (!std::isfinite(result.loss) && is_last()) {
      const Index updates = engine_.optimizer_state().updates;
      throw NonFiniteError(
          str("[step ", progress_.step, "] the held-out loss is ", result.loss,
              updates == 0 ? ""
                           : ": the last update has broken the parameters, and the checkpoint of this step has them "
                             "so; an earlier one may be good",
              ". ", non_finite_advice(plan_, updates)));
    }
    const bool has_figures = first() && set.figures;
    return {set.name, samples, result, has_figures ? set.figures(numbers) : tasks::Figures()};
  }

  void save() {
    saves_.save(progress_, is_last() || is_stopped_early() ? Failure::ends_the_run : Failure::is_a_warning);
  }

  Outcome save_and_stop() {
    graphs_.report_check(GraphReports::MoreSteps::end);
    saves_.save(progress_, Failure::ends_the_run);
    graphs_.report_submit_times();
    log_.note(str("stopped on request after step ", progress_.step, "; go on with --resume"));
    const std::string reason = inputs_.stop_reason();
    log_.event("stop", str("on request", reason.empty() ? "" : str(" (", reason, ')'), ", state saved"));
    return Outcome::stopped;
  }

  comm::World& world_;
  const TrainInputs& inputs_;
  const config::RunPlan& plan_;
  io::Fs& fs_;
  config::RunPlan fitted_;  ///< the plan, with what follows from the memory of the hosts
  Engine engine_;
  ChoiceScorer choices_;
  Saver saver_;
  std::unique_ptr<model::BatchSource> train_batches_;
  std::vector<RunData::HeldOut> held_out_;
  std::optional<Resumed> resumed_;
  RunLog log_;
  SavePolicy saves_;
  GraphReports graphs_;
  Progress progress_;
  std::deque<StepBatch> batches_;  ///< of the steps in flight
  double finished_at_ = 0;         ///< when the last step's numbers were read, or a sequence of steps was started
  Index memory_bytes_ = 0;
};

}  // namespace

void check_vocabulary(const config::RunPlan& plan, const tokenizer::Tokenizer& tokenizer) {
  if (tokenizer.vocab_size() <= plan.model.vocab_size) return;
  throw ConfigError(str("model.vocab_size = ", plan.model.vocab_size, ": must be at least ", tokenizer.vocab_size(),
                        ", the ids of data.tokenizer = ", tokenizer.name()));
}

CheckpointError nothing_to_resume(const io::Path& folder) {
  return {CheckpointError::Kind::none_valid,
          str("[resume] ", folder.string(),
              ": no checkpoint to resume from (--resume=auto starts fresh where there is none)",
              io::looked_for_in(folder))};
}

io::Path checkpoint_folder(const config::RunPlan& plan, const io::Path& out) {
  return plan.checkpoint.dir.empty() ? out / "checkpoints" : io::Path(plan.checkpoint.dir);
}

Outcome train(comm::World& world, const TrainInputs& inputs, io::Fs& fs) {
  std::optional<Run> run;
  try {
    run.emplace(world, inputs, fs);
    return run->run();
  } catch (const AbortedError&) {
    throw;
  } catch (const Error& error) {
    inputs.on_fault(run ? run->step() : 0, error);
    throw;
  }
}

}  // namespace megalith::train
