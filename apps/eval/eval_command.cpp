#include <algorithm>
#include <memory>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/train/gather.h"

#include "apps/eval/eval_data.h"
#include "apps/eval/eval_progress.h"
#include "apps/eval/eval_report.h"
#include "apps/eval/example_file.h"
#include "apps/eval/inference.h"
#include "apps/eval/overlap_marks.h"
#include "apps/eval/task_eval.h"
#include "apps/eval/task_scores.h"
#include "apps/program/command.h"
#include "apps/program/corpus_options.h"
#include "apps/program/launch.h"
#include "apps/program/report_lines.h"

namespace megalith::apps {
namespace {

struct EvalOptions {
  InferenceOptions model;
  std::string task, data, protocol, vocab_dir, per_example, overlap, score, na_probs, predictions, no_answer_scores,
      format = "text";
  Index window = 0, stride = 0;  ///< 0: not given
  std::uint64_t max_line = data::kDefaultMaxLine;
  eval::ChoiceOptions choice;
  bool resume = false;
};

eval::Task task_of(const EvalOptions& options) {
  if (eval::choice_form_named(options.task)) return eval::Task::choice;
  if (options.task == "lambada") return eval::Task::lambada;
  if (options.task == "loss") return eval::Task::loss;
  return options.protocol == "harness" ? eval::Task::wikitext_harness : eval::Task::wikitext_paper;
}

bool slides(eval::Task task) { return task == eval::Task::wikitext_paper || task == eval::Task::loss; }

/// Rules of --per-example and --resume.
void check_example_file(const EvalOptions& options, io::Fs& fs, Problems& problems) {
  problems.require(!options.resume || !options.per_example.empty(), "--resume", "true",
                   "needs --per-example with the file of the interrupted evaluation");
  if (const std::string_view wrong = ExampleFile::problem(options.per_example); !wrong.empty())
    problems.add("--per-example", options.per_example, wrong);
  else
    problems.require(options.resume || options.per_example.empty() || !fs.exists(options.per_example), "--per-example",
                     options.per_example, "exists already: go on with --resume, or name another file");
}

/// Rules of --labels, --shots and --shots-data.
void check_choice_options(const EvalOptions& options, Problems& problems) {
  eval::ChoiceOptions choice = options.choice;
  if (const auto form = eval::choice_form_named(options.task)) {
    choice.form = *form;
    return eval::check(choice, options.data, problems);
  }
  constexpr std::string_view kRule = "is for tasks of multiple choice; leave it away";
  problems.require(choice.labels.empty(), "--labels", choice.labels, kRule);
  problems.require(choice.shots == 0, "--shots", choice.shots, kRule);
  problems.require(choice.shots_data.empty(), "--shots-data", choice.shots_data, kRule);
}

/// task_for() of a masked language model.
EvalTask masked_task(const EvalOptions& options, const model::ModelConfig& model, io::Fs& fs) {
  Problems problems;
  problems.require(options.task == "loss", "--task", options.task,
                   "is for models that predict the next token; model.family = bert takes --task loss");
  const auto refuse = [&](bool is_given, const char* name, const auto& value) {
    problems.require(!is_given, name, value,
                     "is for models that predict the next token: samples of model.family = bert are cut between "
                     "sentences; leave it away");
  };
  refuse(options.window > 0, "--window", options.window);
  refuse(options.stride > 0, "--stride", options.stride);
  refuse(!options.protocol.empty(), "--protocol", options.protocol);
  refuse(!options.overlap.empty(), "--overlap", options.overlap);
  check_example_file(options, fs, problems);
  problems.throw_if_any("eval");
  return {.task = eval::Task::masked_loss,
          .data = options.data,
          .window = model.seq_len,
          .stride = model.seq_len,
          .max_line = options.max_line};
}

/// Checks the options of a task against the model and the other options. Throws ConfigError with all problems.
EvalTask task_for(const EvalOptions& options, const model::ModelConfig& model, io::Fs& fs) {
  if (model.is_bert()) return masked_task(options, model, fs);
  EvalTask task{.task = task_of(options),
                .data = options.data,
                .window = options.window,
                .stride = options.stride,
                .max_line = options.max_line,
                .choice = options.choice};
  if (const auto form = eval::choice_form_named(options.task)) task.choice.form = *form;
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
  check_choice_options(options, problems);
  check_example_file(options, fs, problems);
  problems.throw_if_any("eval");
  return task;
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
    needed.facts.insert(needed.facts.end(), {{"--task", str(name(), ", ", protocol_name(task_.task))},
                                             {"--window", std::to_string(task_.window)},
                                             {"--stride", std::to_string(task_.stride)},
                                             {"--batch", std::to_string(job_->batch())},
                                             {"--shots", std::to_string(task_.choice.shots)}});
    return needed;
  }
  void read() {
    const std::shared_ptr<const tokenizer::Tokenizer> tokenizer = job_->tokenizer(options_.vocab_dir);
    const config::RunPlan& plan = job_->plan();
    data_ = is_masked() ? read_held_out(*fs_, task_, *tokenizer, {plan.model.bert, plan.train.seed})
                        : read_eval_data(*fs_, task_, *tokenizer);
    if (!options_.overlap.empty())
      overlaps_ = read_overlap_marks(*fs_, options_.overlap, task_.data, data_.set.passages.size());
  }
  train::Facts found() const {
    train::Facts facts = job_->facts();
    facts.emplace_back("--data", data_checksums());
    return facts;
  }
  void run(comm::World& world);

 private:
  std::string_view name() const { return task_name(task_.task, task_.choice.form); }
  std::string data_checksums() const {
    std::string all = data_.checksum;
    for (const EvalData::File& file : data_.more_files) all += str(", ", file.use, ' ', file.checksum);
    return all;
  }
  std::string identity(const std::string& digest) const {
    const Index shots = task_.choice.shots;
    return str(name(), ", ", protocol_name(task_.task), ", window ", task_.window, ", stride ", task_.stride,
               shots > 0 ? str(", shots ", shots) : "", ", data ", data_checksums(), ", model ", digest, ", ",
               job_->precision(), " on ", name_of(job_->plan().device),
               is_masked() ? ", " + samples_text(job_->plan()) : "");
  }
  bool is_masked() const { return task_.task == eval::Task::masked_loss; }
  eval::SamplesHaveOrder order() const {
    return is_masked() && job_->plan().model.bert.is_pair() ? eval::SamplesHaveOrder::yes : eval::SamplesHaveOrder::no;
  }
  /// `max_tokens`: of a passage. The data must outlive it.
  std::shared_ptr<const eval::Samples> make_samples(Index max_tokens) const {
    if (is_masked()) return data_.held_out;
    return std::make_shared<eval::PassageSamples>(data_.set.passages, max_tokens);
  }
  std::vector<eval::AskedResult> asked() const;
  eval::ExampleResult result_of(Index example, const eval::SampleNumbers& numbers) const;
  eval::Figures figures_of(const std::vector<eval::ExampleResult>& results) const {
    if (task_.task == eval::Task::choice) return eval::choice_figures(data_.set, results);
    return is_masked() ? eval::masked_figures(results, order()) : eval::figures(task_.task, data_.set, results);
  }
  OverlapFigures overlap_figures(const std::vector<eval::ExampleResult>& results) const;
  /// Marks the examples of an interrupted evaluation as done, on all ranks.
  std::string share_done(comm::World& world, const std::string& digest, const eval::Samples& samples,
                         std::vector<ExampleFile::Numbered>& done) const;

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
    return some.empty() ? eval::Figures() : figures_of(some);
  };
  return {.folder = options_.overlap,
          .overlapping = std::ssize(with),
          .others = std::ssize(without),
          .of_overlapping = figures(with),
          .of_others = figures(without)};
}

std::vector<eval::AskedResult> Evaluation::asked() const {
  if (is_masked()) return eval::masked_results(job_->plan().model.bert);
  if (task_.task == eval::Task::lambada) return {{nn::Result::losses}, {nn::Result::best_ids}};
  return {{nn::Result::losses}};
}

eval::ExampleResult Evaluation::result_of(Index example, const eval::SampleNumbers& numbers) const {
  if (is_masked()) return data_.held_out->result_of(example, numbers);
  return eval::result_of(data_.set.passages[static_cast<std::size_t>(example)], eval::score_of(numbers));
}

std::string Evaluation::share_done(comm::World& world, const std::string& digest, const eval::Samples& samples,
                                   std::vector<ExampleFile::Numbered>& done) const {
  std::string marks(static_cast<std::size_t>(samples.count()), '-');
  if (world.rank() == 0 && options_.resume) {
    ExampleFile::Found found = ExampleFile::read(*fs_, options_.per_example, identity(digest), samples, order());
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
  const eval::InferenceConfig config = job_->config(asked(), task_.window);
  const std::shared_ptr<const eval::Samples> samples = make_samples(config.model.seq_len);
  eval::InferenceModel model(config, world, mesh, eval::count_shapes(*samples));
  const std::string digest = job_->load(world, model);

  std::vector<ExampleFile::Numbered> done;
  const std::string marks = share_done(world, digest, *samples, done);
  std::vector<eval::ExampleResult> results(marks.size());
  for (const auto& [example, result] : done) results[static_cast<std::size_t>(example)] = result;
  std::vector<Index> numbers;
  Index tokens = 0;
  for (Index example = 0; example < samples->count(); ++example) {
    if (marks[static_cast<std::size_t>(example)] == '+') continue;
    numbers.push_back(example);
    tokens += samples->tokens(example);
  }
  std::optional<ExampleFile> file;
  if (first && !options_.per_example.empty()) file.emplace(*fs_, options_.per_example, identity(digest), order(), done);
  const eval::SomeSamples missing(*samples, std::move(numbers));
  EvalProgress progress(missing.count(), tokens);
  model.infer(missing, [&](Index sample, const eval::SampleNumbers& found) {
    const Index example = missing.number(sample);
    const eval::ExampleResult result = result_of(example, found);
    results[static_cast<std::size_t>(example)] = result;
    if (file) file->add(example, result);
    progress.add(missing.tokens(sample));
  });
  if (!first) return;
  EvalReport report{.task = task_.task,
                    .form = task_.choice.form,
                    .data = task_.data,
                    .data_checksum = data_.checksum,
                    .more_files = data_.more_files,
                    .checkpoint = job_->folder().string(),
                    .digest = digest,
                    .vocab_dir = options_.vocab_dir.empty() ? job_->vocab_dir() : options_.vocab_dir,
                    .plan = job_->plan(),
                    .batch = job_->batch(),
                    .window = task_.window,
                    .stride = slides(task_.task) ? task_.stride : 0,
                    .memory = model.taken_bytes(),
                    .resumed_examples = static_cast<Index>(done.size()),
                    .seconds = progress.seconds(),
                    .computed_tokens = tokens,
                    .set = set,
                    .figures = figures_of(results)};
  if (task_.task == eval::Task::choice) report.subjects = eval::subject_figures(set, results);
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

/// Throws ConfigError for options that the evaluation of a fine-tuned model does not take.
void check_task_eval(const CLI::App& command, const EvalOptions& options, tasks::Task task) {
  constexpr std::string_view kOthers[] = {"protocol", "window",   "stride", "per-example", "resume",
                                          "overlap",  "na-probs", "labels", "shots",       "shots-data"};
  Problems problems;
  problems.require(!options.model.checkpoint.empty(), "--task", options.task,
                   "needs a checkpoint that is fine-tuned on it, or --score FILE with predictions");
  problems.require(options.no_answer_scores.empty() || task == tasks::Task::squad2, "--no-answer-scores",
                   options.no_answer_scores, "is for --task squad2; leave it away");
  for (const CLI::Option* const option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (option->count() > 0 && std::ranges::find(kOthers, name) != std::end(kOthers))
        problems.add("--" + name, option->results().front(),
                     str("is not for a model with --task ", options.task, "; leave it away"));
    }
  }
  problems.throw_if_any("eval");
}

void evaluate_model(const CLI::App& command, const EvalOptions& options, tasks::Task task) {
  check_task_eval(command, options, task);
  evaluate_task({.task = task,
                 .model = options.model,
                 .data = options.data,
                 .predictions = options.predictions,
                 .no_answer_scores = options.no_answer_scores,
                 .vocab_dir = options.vocab_dir,
                 .max_line = options.max_line},
                [&](const TaskEvaluated& found) { print_report(task_report(found.report, options.format == "json")); });
}

/// Throws ConfigError for options of fine-tuning tasks that are given with another task.
void refuse_task_options(const EvalOptions& options) {
  Problems problems;
  problems.require(options.na_probs.empty(), "--na-probs", options.na_probs,
                   "is for --task squad2 with --score; leave it away");
  problems.require(options.predictions.empty(), "--predictions", options.predictions,
                   "is for --task mnli, qqp, squad1, squad2 and race; leave it away");
  problems.require(options.no_answer_scores.empty(), "--no-answer-scores", options.no_answer_scores,
                   "is for --task squad2; leave it away");
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
  if (task && options.score.empty()) return evaluate_model(command, options, *task);
  if (!options.score.empty()) return score_task(command, options, task);
  if (options.model.checkpoint.empty()) throw CLI::RequiredError("--checkpoint");
  refuse_task_options(options);
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
  CLI::App* command =
      program.add_subcommand("eval",
                             "Measure a model: loss on a text, WikiText perplexity, LAMBADA accuracy, multiple choice; "
                             "on any grid; the score of a fine-tuned model. Or score predictions of MNLI, QQP, "
                             "SQuAD and RACE");
  add_model(*command, options->model)->required(false);  // --score takes none
  command
      ->add_option("--task", options->task,
                   "loss, wikitext, lambada, or multiple choice: choice, hellaswag, arc, piqa or mmlu "
                   "(docs/evaluation.md); of a fine-tuned model, or with --score, mnli, qqp, squad1, squad2 or race "
                   "(docs/finetuning.md)")
      ->required()
      ->check(CLI::IsMember({"loss", "wikitext", "lambada", "choice", "hellaswag", "arc", "piqa", "mmlu", "mnli", "qqp",
                             "squad1", "squad2", "race"}));
  command
      ->add_option("--data", options->data,
                   "loss: a text, JSON lines or Parquet with \"text\", of BERT also a prefix of `data build "
                   "--sentences`; wikitext: wiki.test.tokens, or wiki.test.raw "
                   "for the harness's protocol; lambada: JSON lines {\"text\"}; choice: JSON lines {\"question\", "
                   "\"choices\", \"answer\"}; "
                   "hellaswag, arc, piqa, mmlu: a file as published, of mmlu also the folder of them; mnli, qqp: "
                   "GLUE's .tsv or JSON lines; "
                   "squad1, squad2: "
                   "SQuAD's JSON; race: a folder of RACE or JSON lines")
      ->required();
  command->add_option("--labels", options->choice.labels,
                      "piqa: the file of labels (default: NAME-labels.lst beside NAME.jsonl)");
  command
      ->add_option("--shots", options->choice.shots,
                   "Multiple choice: examples with their answers before each question, the first of --shots-data")
      ->check(between(0, eval::kMaxShots));
  command->add_option("--shots-data", options->choice.shots_data,
                      "A file of examples in the form of --data; of MMLU SUBJECT_dev.csv, or the folder of them");
  command->add_option(
      "--score", options->score,
      "Score this file of predictions instead of a model: {ID: TEXT} for SQuAD, index<TAB>prediction for "
      "mnli and qqp, JSON lines {\"id\", \"answers\"} for race");
  command->add_option("--predictions", options->predictions,
                      "Write the predictions of a fine-tuned model to this file, in the form that --score takes");
  command->add_option("--no-answer-scores", options->no_answer_scores,
                      "squad2: write the no-answer scores of a fine-tuned model to this file, in the form that "
                      "--na-probs takes");
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
