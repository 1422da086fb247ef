#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/train/gather.h"

#include "apps/eval/eval_data.h"
#include "apps/eval/eval_report.h"
#include "apps/eval/example_file.h"
#include "apps/eval/inference.h"
#include "apps/eval/overlap_marks.h"
#include "apps/eval/task_scores.h"
#include "apps/program/command.h"
#include "apps/program/corpus_options.h"
#include "apps/program/launch.h"
#include "apps/program/terminal.h"

namespace megalith::apps {
namespace {

struct EvalOptions {
  InferenceOptions model;
  std::string task, data, protocol, vocab_dir, per_example, overlap, score, na_probs, format = "text";
  Index window = 0, stride = 0;  ///< 0: not given
  std::uint64_t max_line = data::kDefaultMaxLine;
  bool resume = false;
};

/// One line that is rewritten on a terminal. Elsewhere a line at intervals.
class Progress {
 public:
  Progress(Index examples, Index tokens) : examples_(examples), tokens_(tokens) {}
  void add(Index tokens) {
    ++done_;
    done_tokens_ += tokens;
    const double now = monotonic_s();
    const int columns = terminal_columns();
    if (done_ < examples_ && now - shown_at_ < (columns > 0 ? 0.2 : 30.0)) return;
    shown_at_ = now;
    const double rate = static_cast<double>(done_tokens_) / std::max(now - begun_, 1e-9);
    const auto left = std::llround(static_cast<double>(tokens_ - done_tokens_) / rate);
    const std::string text = str(done_, "/", examples_, " passages  ", static_cast<Index>(rate), " tokens/s  ETA ",
                                 left / 60, "m", left % 60, "s");
    std::fprintf(stderr, columns > 0 ? "\r\033[K%.*s%s" : "%.*s%s",
                 columns > 0 ? std::max(columns - 1, 1) : static_cast<int>(text.size()), text.c_str(),
                 columns > 0 && done_ < examples_ ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  Index examples_, tokens_, done_ = 0, done_tokens_ = 0;
  double begun_ = monotonic_s(), shown_at_ = begun_;
};

eval::Task task_of(const EvalOptions& options) {
  if (options.task == "lambada") return eval::Task::lambada;
  if (options.task == "loss") return eval::Task::loss;
  return options.protocol == "harness" ? eval::Task::wikitext_harness : eval::Task::wikitext_paper;
}

bool slides(eval::Task task) { return task == eval::Task::wikitext_paper || task == eval::Task::loss; }

/// Checks the options of a task against the model and the other options. Throws ConfigError with all problems.
EvalTask task_for(const EvalOptions& options, const model::ModelConfig& model, io::Fs& fs) {
  EvalTask task{.task = task_of(options),
                .data = options.data,
                .window = options.window,
                .stride = options.stride,
                .max_line = options.max_line};
  if (task.window == 0) task.window = model.seq_len;
  const bool has_stride = slides(task.task);
  if (task.stride == 0) {
    constexpr Index kPaper = 32;
    task.stride = task.task == eval::Task::wikitext_paper ? std::min(kPaper, task.window) : task.window;
  }
  Problems problems;
  problems.require(model.has_rope() || task.window <= model.seq_len, "--window", task.window,
                   str("must be at most ", model.seq_len, ", the positions that the model has learned"));
  problems.require(has_stride || options.stride == 0, "--stride", task.stride,
                   "is for --task loss and for the paper's protocol of wikitext; leave it away");
  problems.require(!has_stride || task.stride <= task.window, "--stride", task.stride,
                   str("must be 1 to --window = ", task.window));
  problems.require(options.protocol.empty() || options.task == "wikitext", "--protocol", options.protocol,
                   "is for --task wikitext; leave it away");
  problems.require(options.overlap.empty() || options.task == "lambada", "--overlap", options.overlap,
                   "is for --task lambada, whose examples are documents: windows of other tasks join them");
  problems.require(!options.resume || !options.per_example.empty(), "--resume", "true",
                   "needs --per-example with the file of the interrupted evaluation");
  if (const std::string_view wrong = ExampleFile::problem(options.per_example); !wrong.empty())
    problems.add("--per-example", options.per_example, wrong);
  else
    problems.require(options.resume || options.per_example.empty() || !fs.exists(options.per_example), "--per-example",
                     options.per_example, "exists already: go on with --resume, or name another file");
  problems.throw_if_any("eval");
  return task;
}

void print_report(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw IoError("[standard output] write failed");
}

/// One evaluation, shared by the ranks of a process.
class Evaluation {
 public:
  Evaluation(const EvalOptions& options, const Launcher& launcher)
      : options_(options), launcher_(launcher), fs_(rank_fs(launcher.process)) {}

  JobShape shape() {
    job_.emplace(fs_, options_.model, launcher_,
                 [&](const InferenceJob& job) { task_ = task_for(options_, job.plan().model, *fs_); });
    JobShape needed = shape_of(job_->plan());
    needed.facts.insert(needed.facts.end(), {{"--task", str(task_name(task_.task), ", ", protocol_name(task_.task))},
                                             {"--window", std::to_string(task_.window)},
                                             {"--stride", std::to_string(task_.stride)},
                                             {"--batch", std::to_string(job_->batch())}});
    return needed;
  }
  void read() {
    data_ = read_eval_data(*fs_, task_, *job_->tokenizer(options_.vocab_dir));
    if (!options_.overlap.empty())
      overlaps_ = read_overlap_marks(*fs_, options_.overlap, task_.data, data_.set.passages.size());
  }
  train::Facts found() const {
    train::Facts facts = job_->facts();
    facts.emplace_back("--data", data_.checksum);
    return facts;
  }
  void run(comm::World& world);

 private:
  std::string identity(const std::string& digest) const {
    return str(task_name(task_.task), ", ", protocol_name(task_.task), ", window ", task_.window, ", stride ",
               task_.stride, ", data ", data_.checksum, ", model ", digest, ", ", job_->precision(), " on ",
               name_of(job_->plan().device));
  }
  eval::PassCounts counts(Index max_tokens) const {
    eval::PassCounts counts;
    for (const eval::Passage& passage : data_.set.passages) ++counts[eval::shape_of(passage, max_tokens)];
    return counts;
  }
  OverlapFigures overlap_figures(const std::vector<eval::ExampleResult>& results) const;
  /// Marks the examples of an interrupted evaluation as done, on all ranks.
  std::string share_done(comm::World& world, const std::string& digest, std::vector<ExampleFile::Numbered>& done) const;

  const EvalOptions& options_;
  const Launcher& launcher_;
  std::shared_ptr<io::Fs> fs_;
  std::optional<InferenceJob> job_;
  EvalTask task_;
  EvalData data_;
  std::vector<bool> overlaps_;  // by example; empty: not requested
};

OverlapFigures Evaluation::overlap_figures(const std::vector<eval::ExampleResult>& results) const {
  std::vector<eval::ExampleResult> with, without;
  for (std::size_t i = 0; i < results.size(); ++i) (overlaps_[i] ? with : without).push_back(results[i]);
  const auto figures = [&](const std::vector<eval::ExampleResult>& some) {
    return some.empty() ? eval::Figures() : eval::figures(task_.task, data_.set, some);
  };
  return {.folder = options_.overlap,
          .overlapping = std::ssize(with),
          .others = std::ssize(without),
          .of_overlapping = figures(with),
          .of_others = figures(without)};
}

std::string Evaluation::share_done(comm::World& world, const std::string& digest,
                                   std::vector<ExampleFile::Numbered>& done) const {
  std::string marks(data_.set.passages.size(), '-');
  if (world.rank() == 0 && options_.resume) {
    ExampleFile::Found found = ExampleFile::read(*fs_, options_.per_example, identity(digest), data_.set);
    done = std::move(found.done);
    if (found.changed_lines > 0)
      log::warning(str(options_.per_example, ": ", found.changed_lines,
                       found.changed_lines == 1 ? " line was" : " lines were",
                       " changed or cut since an evaluation wrote the file: what has no other line is computed again"));
    for (const auto& [example, result] : done) marks[static_cast<std::size_t>(example)] = '+';
  }
  return train::share_text(world, std::move(marks));
}

void Evaluation::run(comm::World& world) {
  const bool first = world.rank() == 0;
  const eval::EvalSet& set = data_.set;
  if (first) {
    for (const std::string& warning : set.warnings) log::warning(warning);
  }
  const comm::Mesh mesh = comm::make_mesh(world, job_->plan().grid, job_->plan().transfers);
  const auto best_ids = task_.task == eval::Task::lambada ? eval::BestIds::asked : eval::BestIds::not_asked;
  const eval::InferenceConfig config = job_->config(best_ids, task_.window);
  eval::InferenceModel model(config, world, mesh, counts(config.model.seq_len));
  const std::string digest = job_->load(world, model);

  std::vector<ExampleFile::Numbered> done;
  const std::string marks = share_done(world, digest, done);
  std::vector<eval::ExampleResult> results(set.passages.size());
  for (const auto& [example, result] : done) results[static_cast<std::size_t>(example)] = result;
  std::vector<eval::Passage> passages;
  std::vector<Index> numbers;
  Index tokens = 0;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == '+') continue;
    passages.push_back(set.passages[i]);
    numbers.push_back(static_cast<Index>(i));
    tokens += set.passages[i].inputs();
  }
  std::optional<ExampleFile> file;
  if (first && !options_.per_example.empty()) file.emplace(*fs_, options_.per_example, identity(digest), done);
  const double begun = monotonic_s();
  Progress progress(static_cast<Index>(passages.size()), tokens);
  model.score(passages, [&](Index passage, const eval::PassageScore& score) {
    const eval::Passage& asked = passages[static_cast<std::size_t>(passage)];
    const Index example = numbers[static_cast<std::size_t>(passage)];
    const eval::ExampleResult result = eval::result_of(asked, score);
    results[static_cast<std::size_t>(example)] = result;
    if (file) file->add(example, result);
    progress.add(asked.inputs());
  });
  if (!first) return;
  EvalReport report{.task = task_.task,
                    .data = task_.data,
                    .data_checksum = data_.checksum,
                    .checkpoint = job_->folder().string(),
                    .digest = digest,
                    .vocab_dir = options_.vocab_dir.empty() ? job_->vocab_dir() : options_.vocab_dir,
                    .plan = job_->plan(),
                    .batch = job_->batch(),
                    .window = task_.window,
                    .stride = slides(task_.task) ? task_.stride : 0,
                    .memory = model.taken_bytes(),
                    .resumed_examples = static_cast<Index>(done.size()),
                    .seconds = monotonic_s() - begun,
                    .computed_tokens = tokens,
                    .set = set,
                    .figures = eval::figures(task_.task, set, results)};
  if (!overlaps_.empty()) report.overlap = overlap_figures(results);
  for (const std::string& warning : figure_warnings(report)) log::warning(warning);
  print_report(options_.format == "json" ? report_json(report) : report_text(report));
}

/// Throws ConfigError for options that scoring predictions does not take, and for those that it lacks.
void check_scoring(const CLI::App& command, const EvalOptions& options, std::optional<tasks::Task> task) {
  constexpr std::string_view kTaken[] = {"--task", "--data", "--score", "--na-probs", "--format", "--max-line"};
  Problems problems;
  problems.require(task.has_value(), "--score", options.score,
                   str("is for --task mnli, qqp, squad1, squad2 and race, not for ", options.task));
  problems.require(!options.score.empty(), "--task", options.task,
                   "needs --score FILE with predictions: models are not fine-tuned yet");
  if (options.score.empty()) problems.throw_if_any("eval");
  problems.require(options.model.checkpoint.empty(), "checkpoint", options.model.checkpoint,
                   "must be left away: --score takes predictions, not a model");
  problems.require(options.na_probs.empty() || task == tasks::Task::squad2, "--na-probs", options.na_probs,
                   "is for --task squad2; leave it away");
  for (const CLI::Option* const option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::string long_name = "--" + name;
      if (option->count() == 0 || long_name == "--checkpoint" ||
          std::ranges::find(kTaken, long_name) != std::end(kTaken))
        continue;
      problems.add(long_name, option->results().front(), "is for models; leave it away with --score");
    }
  }
  problems.throw_if_any("eval");
}

/// With several processes the first one prints.
void score_task(const CLI::App& command, const EvalOptions& options, std::optional<tasks::Task> task) {
  check_scoring(command, options, task);
  const Launcher launcher = detect_launcher();
  if (launcher.process > 0) return;
  print_report(score_predictions(*rank_fs(launcher.process), {.task = *task,
                                                              .data = options.data,
                                                              .score = options.score,
                                                              .na_probs = options.na_probs,
                                                              .max_line = options.max_line,
                                                              .is_json = options.format == "json"}));
}

void run_eval(const CLI::App& command, const EvalOptions& options) {
  const std::optional<tasks::Task> task = tasks::task_named(options.task);
  if (task || !options.score.empty()) return score_task(command, options, task);
  if (options.model.checkpoint.empty()) throw CLI::RequiredError("--checkpoint");
  if (!options.na_probs.empty())
    throw ConfigError(str("--na-probs = ", options.na_probs, ": is for --task squad2 with --score; leave it away"));
  const Launcher launcher = detect_launcher();
  Evaluation evaluation(options, launcher);
  run_job(launcher, {.shape = [&] { return evaluation.shape(); },
                     .read = [&] { evaluation.read(); },
                     .found = [&] { return evaluation.found(); },
                     .body = [&](comm::World& world) { evaluation.run(world); }});
}

}  // namespace

void add_eval(CLI::App& program) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* command = program.add_subcommand("eval",
                                             "Measure a model: loss on a text, WikiText perplexity, LAMBADA accuracy; "
                                             "on any grid. Or score predictions of MNLI, QQP, SQuAD and RACE");
  add_model(*command, options->model)->required(false);  // --score takes none
  command
      ->add_option("--task", options->task,
                   "loss, wikitext or lambada (docs/evaluation.md); with --score mnli, qqp, squad1, squad2 or race "
                   "(docs/finetuning.md)")
      ->required()
      ->check(CLI::IsMember({"loss", "wikitext", "lambada", "mnli", "qqp", "squad1", "squad2", "race"}));
  command
      ->add_option("--data", options->data,
                   "loss: a text, JSON lines or Parquet with \"text\"; wikitext: wiki.test.tokens, or wiki.test.raw "
                   "for the harness's protocol; lambada: JSON lines {\"text\"}; mnli, qqp: GLUE's .tsv or JSON lines; "
                   "squad1, squad2: "
                   "SQuAD's JSON; race: a folder of RACE or JSON lines")
      ->required();
  command->add_option(
      "--score", options->score,
      "Score this file of predictions instead of a model: {ID: TEXT} for SQuAD, index<TAB>prediction for "
      "mnli and qqp, JSON lines {\"id\", \"answers\"} for race");
  command->add_option("--na-probs", options->na_probs,
                      "squad2: {ID: NUMBER}, higher where a question rather has no answer; prints the best thresholds");
  command
      ->add_option("--protocol", options->protocol,
                   "wikitext: paper (default: perplexity per original word, sliding windows) or harness "
                   "(lm-evaluation-harness's word and byte perplexity)")
      ->check(CLI::IsMember({"paper", "harness"}));
  command->add_option("--window", options->window, "Tokens of a window (default: the model's seq_len)")
      ->check(between(1, 1 << 24));
  command
      ->add_option("--stride", options->stride,
                   "Tokens by which windows advance (default: 32 for wikitext, the window for loss)")
      ->check(between(1, 1 << 24));
  options->model.add_to(*command);
  add_batch(*command, options->model.batch);
  add_max_line(*command, options->max_line);
  command->add_option("--vocab-dir", options->vocab_dir, "Where the tokenizer's files are (default: the checkpoint's)");
  command->add_option("--per-example", options->per_example,
                      "Write the result of every passage to this file, a JSON line each, as it is computed");
  command->add_flag("--resume", options->resume, "Go on with the file of --per-example of an interrupted evaluation");
  command->add_option("--overlap", options->overlap,
                      "lambada: the folder that `data overlap --test DATA --output` wrote; prints the figures with and "
                      "without the examples that occur in training text");
  command->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options, command] { run_eval(*command, *options); });
}

}  // namespace megalith::apps
