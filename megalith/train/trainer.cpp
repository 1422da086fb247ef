#include "megalith/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/base/text.h"
#include "megalith/io/problem_text.h"
#include "megalith/train/attention_facts.h"
#include "megalith/train/gather.h"
#include "megalith/train/gemm_cache.h"
#include "megalith/train/router_trace.h"
#include "megalith/train/run_batches.h"
#include "megalith/train/run_log.h"
#include "megalith/train/trace_file.h"

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
        engine_(world, inputs.plan),
        saver_(engine_, inputs.plan, inputs.identity, fs, checkpoint_folder(inputs.plan, inputs.out)),
        train_batches_(inputs.data.train, inputs.plan.train.seed),
        log_(world, inputs.plan, inputs.screen) {
    if (inputs.data.valid) valid_batches_.emplace(*inputs.data.valid);
  }

  Outcome run() {
    engine_.allocate();
    memory_bytes_ = largest(total(engine_.taken_bytes()));
    start();
    if (is_evaluation_missing()) evaluate();
    saved_at_ = monotonic_s();
    warn_of_space();
    const Index first_step = progress_.step;
    for (const std::string& warning : plan_.warnings()) log_.warn(warning);
    if (first_step >= plan_.train.steps && !inputs_.trace.empty())
      log_.warn(str("--trace = ", inputs_.trace.string(), ": not written, as no step is left to train"));
    warn_of_idle_graphs(plan_.train.steps - first_step);
    router_trace_ = open_router_trace(world_, fs_, plan_, inputs_.router_trace, first_step);
    engine_.stage().moe().decisions = router_trace_.get();
    first_traced_ = first_step + std::min(kUntraced, plan_.train.steps - first_step - 1);
    while (progress_.step < plan_.train.steps) {
      if (!inputs_.trace.empty() && progress_.step == first_traced_) start_trace();
      start_step();
      router_trace_->end_step();
      const bool last = progress_.step == plan_.train.steps;
      if (last || progress_.step == first_traced_ + kTracedSteps) write_traced();
      if (graphs_are_new(progress_.step - first_step, last)) report_graphs();
      report_check(last);
      const bool saves = last || due(plan_.checkpoint.interval);
      // A GPU is given the next step before the numbers of this one are read; nothing may wait where the state is used.
      const int may_wait = saves || is_evaluation_due() ? 0 : engine_.steps_ahead();
      Requests wanted = finish_steps(may_wait);
      if (wanted.stop == Stop::asked || wanted.save) add(wanted, finish_steps(0));
      if (wanted.stop == Stop::asked && !last) {
        write_traced();
        publish_router_trace();
        return save_and_stop();
      }
      if (saves || wanted.save) save(last ? Failure::ends_the_run : Failure::is_a_warning);
      if (is_evaluation_due()) evaluate();
    }
    publish_router_trace();
    report_submit_times();
    return Outcome::finished;
  }

 private:
  /// What a save that cannot write means: another comes, or it was the last.
  enum class Failure { is_a_warning, ends_the_run };

  bool first() const { return world_.rank() == 0; }
  bool due(Index interval) const { return interval > 0 && progress_.step % interval == 0; }

  bool is_evaluation_due() const {
    return valid_batches_ && progress_.step > 0 &&
           (progress_.step == plan_.train.steps || due(plan_.train.eval_interval));
  }
  /// A run that ended between a save and the evaluation of the same step makes up for it.
  bool is_evaluation_missing() {
    if (!is_evaluation_due()) return false;
    std::int64_t missing = first() && !log_.has_evaluation(progress_.step) ? 1 : 0;
    return largest(missing) != 0;
  }

  /// Of all ranks.
  Index largest(std::int64_t mine) {
    Exec host;
    comm::all_reduce(host, world_.all(), Tensor(&mine, {1}, DType::i64), comm::Reduce::max).wait(host);
    return mine;
  }

  void start() {
    if (inputs_.resume != Resume::no) resume();
    const bool takes_values = !resumed_ && !plan_.train.init.empty();
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
      if (const std::string reason = own_attention_reason(plan_); !reason.empty())
        log_.note("attention by megalith's own kernel, slower than the library's: " + reason);
      if (const std::string refusal = refused_attention(plan_); !refusal.empty())
        log_.note("attention by megalith's own kernel, slower than the library's, which has none: " + refusal);
      log_.note(str("data ", inputs_.data.train.name(), ": ", inputs_.data.train.num_tokens(), " tokens, ",
                    inputs_.data.train.count(), " samples"));
    }
    if (resumed_) {
      for (const std::string& warning : resumed_->warnings) log_.warn(warning);
      log_.note(
          str("resumed ", resumed_->folder, " at step ", progress_.step, ", state digest ", resumed_->digest.hex()));
    }
    if (takes_values) log_.note(str("values of ", inputs_.init.string(), "; all else begins anew"));
    for (const std::string& change : changed) log_.note("train.init: " + change);
    if (progress_.step >= plan_.train.steps) {
      log_.note(str("nothing to train: step ", progress_.step, " of train.steps = ", plan_.train.steps, " is done"));
    }
    if (first()) io::publish_file(fs_, inputs_.out / "recipe.toml", config::to_toml(plan_.as_config()));
    log_.open(fs_, inputs_.out, progress_.step);
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

  /// The tables that a run starts from, the one that binds most first.
  std::vector<ops::KnownGemms> known_gemms(const ops::GemmPlatform& platform, const GemmCache& cache) const {
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
    engine_.start_step(train_batches_, progress_, [this] {
      const Index next = progress_.step + 2 + engine_.steps_ahead();
      return Requests{.stop = inputs_.stop_asked(std::min(next, plan_.train.steps)) ? Stop::asked : Stop::no,
                      .save = first() && is_save_due()};
    });
    ++progress_.step;
    progress_.samples += plan_.train.global_batch;
  }

  void publish_router_trace() {
    if (const std::string line = router_trace_->publish(); !line.empty()) log_.note(line);
  }

  /// Of kTracedSteps steps, or what a shorter run has. Collective.
  void start_trace() { begin_trace(world_, engine_.exec(), tracer_.emplace(plan_.device)); }

  /// The steps that are being traced, if any. Collective.
  void write_traced() {
    if (!tracer_) return;
    engine_.exec().set_tracer(nullptr);
    try {
      write_trace(world_, fs_, inputs_.trace, *tracer_);
      log_.note(
          str("wrote steps ", first_traced_ + 1, " to ", progress_.step, " of all ranks to ", inputs_.trace.string()));
    } catch (const IoError& error) {
      log::warning(str("--trace = ", inputs_.trace.string(), ": not written, training goes on: ", error.what()));
    }
    tracer_.reset();
  }

  /// One step after the capture, so that launches have been timed, or where the run ends before; the same on all ranks.
  bool graphs_are_new(Index steps_done, bool last) const {
    const Index steps_from_graphs = steps_done - plan_.graphs.warmup_steps;
    return plan_.graphs.mode != capture::GraphMode::none &&
           (steps_from_graphs == 2 || (steps_from_graphs == 1 && last));
  }

  /// Of graphs that a run of so many steps does not reach.
  void warn_of_idle_graphs(Index steps) const {
    const capture::GraphsConfig& graphs = plan_.graphs;
    if (steps <= 0 || graphs.mode == capture::GraphMode::none) return;
    if (graphs.mode == capture::GraphMode::layers && steps == graphs.warmup_steps + 1) {
      log_.warn(str("graphs.mode = layers: no graph is launched, as there are ", steps,
                    " steps to train, graphs.warmup_steps = ", graphs.warmup_steps,
                    " and the step of the capture runs eagerly"));
    } else if (steps <= graphs.warmup_steps) {
      log_.warn(str("graphs.mode = ", name(graphs.mode), ": no graph is captured, as there are ", steps,
                    " steps to train and graphs.warmup_steps = ", graphs.warmup_steps));
    }
  }

  /// Once, when the steps of graphs.check have been compared, or no more come.
  void report_check(bool last) {
    const Index asked = plan_.graphs.check_steps, checked = engine_.steps_checked();
    if (asked == 0 || plan_.graphs.mode == capture::GraphMode::none || check_is_reported_) return;
    if (checked < asked && !last) return;
    check_is_reported_ = true;
    if (checked > 0) log_.note(str("graphs.check: ", checked, " steps from graphs had the bits of eager ones"));
    if (checked < asked)
      log_.warn(str("graphs.check = ", asked, ": ", checked, " steps were compared before the run ended"));
  }

  /// Collective.
  void report_graphs() { log_.graphs(progress_.step, account_for_graphs(engine_, plan_), plan_.graphs.mode); }

  /// What submitting a step from graphs has cost the host.
  void report_submit_times() {
    const CapturedGraphs graphs = engine_.captured_graphs();
    if (!first() || graphs.timed_steps == 0) return;
    log_.note(str("graphs: the host submitted a step in ", microseconds(graphs.submit_s), ", of which launches took ",
                  microseconds(graphs.launch_s), " (mean of ", graphs.timed_steps, " steps)"));
  }

  StepReport finish_step() {
    try {
      const StepReport result = engine_.finish_step();
      any_finished_ = true;
      return result;
    } catch (const NonFiniteError& error) {
      if (!resumed_ || any_finished_) throw;
      throw NonFiniteError(str(error.what(), ". It is the first step from ", resumed_->folder,
                               ", whose parameters may be broken: move that folder away to go on from an earlier one"));
    }
  }

  /// By the clock.
  bool is_save_due() const {
    const double every_s = plan_.checkpoint.every_s;
    return every_s > 0 && monotonic_s() - saved_at_ >= every_s;
  }

  static void add(Requests& sum, const Requests& more) {
    if (more.stop == Stop::asked) sum.stop = Stop::asked;
    sum.save = sum.save || more.save;
  }

  /// Reads and reports steps until so many are still under way. Returns what ranks asked for meanwhile.
  Requests finish_steps(int still_under_way) {
    if (engine_.steps_started() <= still_under_way) return {};
    std::vector<StepReport> results;
    while (engine_.steps_started() > still_under_way) results.push_back(finish_step());
    const double now = monotonic_s(), seconds = (now - finished_at_) / static_cast<double>(results.size());
    Index step = progress_.step - still_under_way - static_cast<Index>(results.size());
    Requests wanted;
    for (const StepReport& result : results) {
      ++step;
      if (first()) report(step, result, seconds);
      add(wanted, {.stop = result.stop ? Stop::asked : Stop::no, .save = result.save});
      refuse_hopeless(step, result);
    }
    finished_at_ = now;
    return wanted;
  }

  /// fp16: a step that overflows at the smallest scale is skipped and changes nothing, so the next ones differ from it
  /// by their data alone. The same on all ranks.
  void refuse_hopeless(Index step, const StepReport& result) {
    const double smallest = plan_.train.scaling.smallest;
    hopeless_ = result.skipped && result.loss_scale <= smallest ? hopeless_ + 1 : 0;
    if (hopeless_ < kMaxHopeless) return;
    throw NonFiniteError(str("[step ", step, "] the last ", hopeless_,
                             " steps were not finite at train.loss_scale_min = ", smallest,
                             ": parameters stay those of step ", step - hopeless_,
                             ". A lower optimizer.lr, a longer warm-up or train.precision = bf16 may help"));
  }

  void report(Index step, const StepReport& result, double seconds) {
    const double tokens = static_cast<double>(plan_.train.global_batch * plan_.model.seq_len);
    const Index samples = progress_.samples - (progress_.step - step) * plan_.train.global_batch;
    const StepMetrics metrics{.step = step,
                              .result = result,
                              .tokens = samples * plan_.model.seq_len,
                              .step_time_s = seconds,
                              .tokens_per_second = tokens / seconds,
                              .model_tflops_per_s = model::flops_per_token(plan_.model) * tokens / seconds * 1e-12,
                              .missed_saves = missed_saves_,
                              .memory_bytes = memory_bytes_};
    log_.step(metrics);
  }

  void evaluate() {
    const Index all = inputs_.data.valid->count(), asked = plan_.train.eval_batches * plan_.train.global_batch;
    const Index samples = asked == 0 ? all : std::min(all, asked);
    const bool had_graph = engine_.eval_graph().captured();
    const double loss = engine_.evaluate(*valid_batches_, samples);
    if (!std::isfinite(loss) && progress_.step == plan_.train.steps) {
      throw NonFiniteError(
          str("[step ", progress_.step, "] the held-out loss is ", loss,
              ": the last update has broken the parameters, and the checkpoint of this step has them so; "
              "an earlier one may be good. A lower optimizer.lr or a longer warm-up may help"));
    }
    if (engine_.eval_graph().captured() != had_graph && engine_.train_graph().captured()) report_graphs();
    log_.evaluation(progress_.step, loss, samples);
  }

  /// A folder that was removed under the run ends it: nobody holds the lock of one that a save would make. Collective.
  void require_folders() {
    std::string lost;
    try {
      if (first()) inputs_.require_folders();
    } catch (const IoError& error) {
      lost = error.what();
    }
    lost = share_text(world_, std::move(lost));
    if (!lost.empty()) throw IoError(lost);
  }

  /// While there is time to make room. Collective.
  void warn_of_space() {
    if (const std::string lack = saver_.lack_of_space(); !lack.empty()) log_.warn("the next save will fail: " + lack);
  }

  void save(Failure failure) {
    require_folders();
    try {
      const double begin = monotonic_s();
      log_.sync();
      // What a file system says of its space may be wrong: the last save tries in any case.
      const checkpoint::Digest128 digest =
          saver_.save(progress_, failure == Failure::ends_the_run ? Space::not_asked : Space::asked);
      log_.note(str("saved step ", progress_.step, ", state digest ", digest.hex(), ", ",
                    std::round((monotonic_s() - begin) * 1e3), " ms"));
      if (failure == Failure::is_a_warning) warn_of_space();
    } catch (const IoError& error) {
      if (failure == Failure::ends_the_run) throw;
      ++missed_saves_;
      log_.warn(str("checkpoint of step ", progress_.step, " was not saved, training goes on: ", error.what()));
    }
    saved_at_ = monotonic_s();
  }

  Outcome save_and_stop() {
    report_check(true);
    save(Failure::ends_the_run);
    report_submit_times();
    log_.note(str("stopped on request after step ", progress_.step, "; go on with --resume"));
    return Outcome::stopped;
  }

  comm::World& world_;
  const TrainInputs& inputs_;
  const config::RunPlan& plan_;
  io::Fs& fs_;
  Engine engine_;
  Saver saver_;
  TrainBatches train_batches_;
  std::optional<HeldOutBatches> valid_batches_;
  std::optional<Resumed> resumed_;
  RunLog log_;
  static constexpr Index kMaxHopeless = 20;
  Index hopeless_ = 0;  ///< steps in a row
  static constexpr Index kUntraced = 2, kTracedSteps = 3;
  Index first_traced_ = 0;
  bool check_is_reported_ = false, any_finished_ = false;
  std::optional<Tracer> tracer_;
  std::unique_ptr<RouterTrace> router_trace_;
  Progress progress_;
  double saved_at_ = 0;     ///< when training last went on from a save, or began; of rank 0
  double finished_at_ = 0;  ///< when the last step's numbers were read, or the first of a row was started
  Index memory_bytes_ = 0;
  Index missed_saves_ = 0;
};

}  // namespace

void check_vocabulary(const config::RunPlan& plan, const tokenizer::Tokenizer& tokenizer) {
  if (tokenizer.vocab_size() <= plan.model.vocab_size) return;
  throw ConfigError(str("model.vocab_size = ", plan.model.vocab_size, ": must be at least ", tokenizer.vocab_size(),
                        ", the vocabulary of data.tokenizer = ", tokenizer.name()));
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

Outcome train(comm::World& world, const TrainInputs& inputs, io::Fs& fs) { return Run(world, inputs, fs).run(); }

}  // namespace megalith::train
