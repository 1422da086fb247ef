#include "apps/finetune/finetune.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/config/keys.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/run_lock.h"
#include "megalith/report/finetune_report.h"
#include "megalith/tasks/ensemble.h"
#include "megalith/tasks/run_choice.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/eval/task_eval.h"
#include "apps/finetune/run_scores.h"
#include "apps/program/launch.h"
#include "apps/program/report_lines.h"
#include "apps/program/signals.h"
#include "apps/program/vocabulary.h"
#include "apps/train/train_job.h"

namespace megalith::apps {
namespace {

constexpr const char* kGoOn = "start the same command again";

/// A file that runs are scored on.
struct ScoredFile {
  std::string name;  ///< of its scores: "dev_1"
  std::string path;
  std::unique_ptr<const tasks::TaskSet> set;
};

class Finetune {
 public:
  Finetune(const FinetuneJob& job, const FinetuneOptions& options)
      : job_(job), options_(options), fs_(rank_fs(0)), runs_(job.out / "runs") {}
  void run();

 private:
  void open_data();
  /// Refuses runs of another recipe, or notes those of this one.
  void require_same_runs();
  TunedRun tuned(const TunedPoint& point);
  /// That which is stored, else computed.
  RunScore score_of(const TunedPoint& point, const ScoredFile& file);
  RunScore evaluate(const TunedPoint& point, const ScoredFile& file) const;
  /// The error of a loss or a gradient that was not finite; "" else.
  std::string train(const TunedPoint& point) const;
  /// Where that error is kept.
  io::Path not_finite_file(const TunedPoint& point) const { return folder(point) / "not_finite.txt"; }
  void search(FinetuneReport& report);
  std::vector<FileScore> ensemble_scores(const std::vector<TunedPoint>& points, const std::vector<ScoredFile>& files);
  void note_run(const TunedPoint& point, bool is_done);
  /// For a file that the key names.
  tasks::TaskSetConfig set_config(std::string_view key) const;
  std::vector<ScoredFile> open_files(const char* name, std::string_view key, const std::vector<std::string>& paths,
                                     io::SeveralFiles& opened) const;
  Numbers numbers() const { return job_.ensemble ? Numbers::kept : Numbers::left_out; }
  io::Path folder(const TunedPoint& point) const { return runs_ / point.name(); }
  ScorePlace place(const TunedPoint& point, const ScoredFile& file) const {
    return {folder(point) / "scores", file.name};
  }
  void print_summary(const FinetuneReport& report) const;

  const FinetuneJob& job_;
  const FinetuneOptions& options_;
  std::shared_ptr<io::Fs> fs_;
  io::Path runs_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::uint64_t train_fingerprint_ = 0;
  std::vector<ScoredFile> dev_, test_;
  std::string inference_;  // of the run that was scored last
  Index runs_noted_ = 0;
};

[[noreturn]] void throw_stopped(int signal) {
  throw StoppedError(
      str("stopped on request", signal == 0 ? "" : str(" (", strsignal(signal), ")"), ", state saved: ", kGoOn));
}

/// A signal may come in the last step of a training, which then ends as usual.
void require_not_stopped() {
  if (const int signal = stop_signal(); signal != 0) throw_stopped(signal);
}

tasks::TaskSetConfig Finetune::set_config(std::string_view key) const {
  return job_.plan.task.set_config(job_.plan.model.seq_len, job_.plan.data.max_line, key);
}

std::vector<ScoredFile> Finetune::open_files(const char* name, std::string_view key,
                                             const std::vector<std::string>& paths, io::SeveralFiles& opened) const {
  std::vector<ScoredFile> files;
  for (const std::string& path : paths) {
    auto set = opened.read(
        [&] { return tasks::open_task_set(*fs_, path, set_config(key), *tokenizer_, tasks::SampleUse::scoring); });
    if (set) files.push_back({.name = str(name, '_', files.size() + 1), .path = path, .set = *std::move(set)});
  }
  return files;
}

void Finetune::open_data() {
  const config::RunPlan& plan = job_.plan;
  tokenizer_ = open_tokenizer(*fs_, plan.data.tokenizer, plan.data.vocab_dir);
  io::SeveralFiles opened;
  opened.check([&] {
    train_fingerprint_ = tasks::open_task_set(*fs_, plan.data.train.front(), set_config("data.train"), *tokenizer_,
                                              tasks::SampleUse::training)
                             ->fingerprint();
  });
  dev_ = open_files("dev", "data.valid", plan.data.valid, opened);
  test_ = open_files("test", "data.test", plan.data.test, opened);
  opened.throw_if_any();
}

/// The keys that change what a run computes, but for those of a point: those that `--resume` refuses to change or
/// warns of, and those by which it ends early.
nlohmann::ordered_json keys_of_runs(const config::RunPlan& plan) {
  constexpr std::string_view kOfAPoint[] = {"optimizer.lr", "train.global_batch", "train.seed"};
  config::RunConfig config = plan.as_config();
  nlohmann::ordered_json values;
  for (const config::Key& key : config::keys()) {
    const bool changes_runs =
        key.resume.rule != config::OnResume::may_change || key.name.starts_with("train.early_stop");
    const bool is_of_all = changes_runs && std::ranges::find(kOfAPoint, key.name) == std::end(kOfAPoint);
    if (is_of_all && (key.is_in_recipe == nullptr || key.is_in_recipe(plan)))
      values[std::string(key.name)] = config::value_text(key.members.asked(config));
  }
  return values;
}

void Finetune::require_same_runs() {
  nlohmann::ordered_json now = keys_of_runs(job_.plan);
  now["the samples of data.train"] = hex64(train_fingerprint_);
  now["the vocabulary"] = hex64(tokenizer_->content_hash());
  if (const std::string& init = job_.plan.task.init; !init.empty())
    now["the model of task.init"] = init_content(*fs_, init);
  const io::Path file = job_.out / "finetune.json";
  if (!fs_->exists(file)) return io::publish_file(*fs_, file, now.dump(2) + '\n');
  const nlohmann::json was = io::read_json(fs_->map(file).text(), {.name = file.string()});
  Problems problems;
  for (const auto& [key, value] : now.items()) {
    const auto then = was.find(key);
    const config::Key* const known = config::find_key(key);  // none of a fact about files
    const std::string then_text = then != was.end() && then->is_string() ? then->get<std::string>()
                                  : known != nullptr                     ? config::default_text(*known)
                                                                         : "unset";
    const auto now_text = value.get<std::string>();
    problems.require(then_text == now_text, key, now_text,
                     str("the runs of ", job_.out.string(), " have ", then_text, "; give another --out"));
  }
  problems.throw_if_any(options_.recipe.file);
}

void Finetune::note_run(const TunedPoint& point, bool is_done) {
  ++runs_noted_;
  log::info(str("run ", runs_noted_, " of ", job_.runs(), ": ", point.name(), is_done ? ", done before" : ""));
}

std::string Finetune::train(const TunedPoint& point) const {
  TrainRequest request{.recipe = options_.recipe, .out = folder(point).string(), .resume = train::Resume::automatic};
  const std::vector<std::string> settings = point.settings();
  request.recipe.settings.insert(request.recipe.settings.end(), settings.begin(), settings.end());
  std::string not_finite;
  try {
    if (run_train(request) == train::Outcome::stopped) throw_stopped(stop_signal());
  } catch (const NonFiniteError& error) {
    not_finite = error.what();
  }
  expect_next_run(kGoOn);
  require_not_stopped();
  return not_finite;
}

RunScore Finetune::evaluate(const TunedPoint& point, const ScoredFile& file) const {
  const io::Path checkpoint = checkpoint_folder(*fs_, folder(point), checkpoint::OnCorrupt::fail);
  const TaskEvalRequest request{.task = job_.task,
                                .model = {.checkpoint = checkpoint.string(),
                                          .device = "",
                                          .precision = "",
                                          .settings = job_.grid,
                                          .ranks = options_.recipe.ranks},
                                .data = file.path,
                                .max_line = static_cast<std::size_t>(job_.plan.data.max_line)};
  RunScore score;
  evaluate_task(request, [&](const TaskEvaluated& found) {
    const TaskReport::Model& model = found.report.model.value();
    const TaskReport::File& data = found.report.files.front();
    score = {.score = {.file = data.path,
                       .checksum = data.checksum,
                       .counts = found.report.counts,
                       .results = found.report.results},
             .digest = model.digest,
             .inference = str(model.precision, " on ", model.device, ", ", model.grid, ", batch ", model.batch),
             .numbers = {}};
    if (numbers() == Numbers::kept) score.numbers.assign(found.numbers.begin(), found.numbers.end());
  });
  write_run_score(*fs_, place(point, file), *file.set, score);
  return score;
}

RunScore Finetune::score_of(const TunedPoint& point, const ScoredFile& file) {
  std::optional<RunScore> score = read_run_score(*fs_, place(point, file), *file.set, numbers());
  if (!score) {
    log::info(str("scoring ", point.name(), " on ", file.path));
    score = evaluate(point, file);
    require_not_stopped();
  }
  score->score.file = file.path;  // it may have been renamed
  inference_ = score->inference;
  return std::move(*score);
}

TunedRun Finetune::tuned(const TunedPoint& point) {
  TunedRun run{
      .name = point.name(), .lr = point.lr, .batch = point.batch, .seed = static_cast<std::uint64_t>(point.seed)};
  const io::Path not_finite = not_finite_file(point);
  if (fs_->exists(not_finite)) run.not_finite = fs_->map(not_finite).text();
  const bool is_scored = fs_->exists(place(point, dev_.front()).json());  // written when training is done
  note_run(point, is_scored || !run.not_finite.empty());
  if (!is_scored && run.not_finite.empty()) {
    run.not_finite = train(point);
    if (!run.not_finite.empty()) io::publish_file(*fs_, not_finite, run.not_finite);
  }
  if (!run.not_finite.empty()) {
    log::warning(str(run.name, ": ", run.not_finite));
    return run;
  }
  for (const ScoredFile& file : dev_) {
    RunScore found = score_of(point, file);
    run.digest = found.digest;
    run.dev.push_back(std::move(found.score));
  }
  run.score = dev_score(job_.task, run.dev);
  return run;
}

std::vector<FileScore> Finetune::ensemble_scores(const std::vector<TunedPoint>& points,
                                                 const std::vector<ScoredFile>& files) {
  std::vector<FileScore> scores;
  for (const ScoredFile& file : files) {
    const tasks::TaskSet& set = *file.set;
    tasks::Ensemble ensemble(set);
    std::string checksum;
    for (const TunedPoint& point : points) {
      const RunScore one = score_of(point, file);
      ensemble.add(one.numbers);
      checksum = one.score.checksum;
    }
    const tasks::TaskPredictions predictions = set.predict(ensemble.mean());
    fs_->make_dir(job_.out / "ensemble");
    io::publish_file(*fs_, job_.out / "ensemble" / (file.name + ".predictions"), set.prediction_file(predictions));
    scores.push_back(
        {.file = file.path, .checksum = checksum, .counts = set.counts(), .results = set.figures(predictions)});
  }
  return scores;
}

void Finetune::print_summary(const FinetuneReport& report) const {
  const TunedRun& median = report.seeds[report.median];
  const auto score_text = [&](double score) {
    return str(tasks::deciding_figure(report.task), printed(" %.6f", score));
  };
  std::string text;
  add_line(text, "task", std::string(tasks::title_of(report.task)));
  add_line(text, "runs", grouped(job_.runs()));
  add_line(text, "best rate and batch", str(exact(median.lr), ", ", median.batch));
  add_line(text, str("median of ", report.seeds.size()), str(score_text(median.score), ", ", median.name));
  if (report.ensemble) add_line(text, "ensemble", score_text(report.ensemble->score));
  for (const FileScore& file : report.test)
    add_line(text, "test", str(score_text(tasks::deciding_score(report.task, file.results)), ", ", file.file));
  add_line(text, "report", str((job_.out / "report.md").string(), ", report.json"));
  print_report(text);
}

void Finetune::search(FinetuneReport& report) {
  std::vector<double> scores;
  for (const TunedPoint& point : job_.search) {
    report.search.push_back(tuned(point));
    const TunedRun& run = report.search.back();
    scores.push_back(run.not_finite.empty() ? run.score : -std::numeric_limits<double>::infinity());
  }
  report.best = tasks::best_run(scores);
  const TunedRun& best = report.search[report.best];
  if (!best.not_finite.empty())
    throw NonFiniteError(str(best.name, ": ", best.not_finite,
                             ". No other run of the search has a score: give --lr "
                             "a lower rate"));
}

void Finetune::run() {
  open_data();
  const io::RunLock lock = io::RunLock::take(job_.out, "finetune.lock");
  require_same_runs();
  FinetuneReport report{
      .task = job_.task, .recipe = options_.recipe.file, .inference = {}, .epochs = job_.plan.task.epochs};
  search(report);
  const std::vector<TunedPoint> points = job_.seeds_of(job_.search[report.best]);
  report.seeds = {report.search[report.best]};
  for (std::size_t i = 1; i < points.size(); ++i) {
    report.seeds.push_back(tuned(points[i]));
    const TunedRun& run = report.seeds.back();
    if (!run.not_finite.empty())
      throw NonFiniteError(str(run.name, ": ", run.not_finite, ". A median needs all seeds: leave this rate out"));
  }
  std::vector<double> scores;
  for (const TunedRun& run : report.seeds) scores.push_back(run.score);
  report.median = tasks::median_run(scores);
  for (const ScoredFile& file : test_) report.test.push_back(score_of(points[report.median], file).score);
  if (job_.ensemble) {
    report.ensemble = EnsembleScores();
    report.ensemble->dev = ensemble_scores(points, dev_);
    report.ensemble->test = ensemble_scores(points, test_);
    report.ensemble->score = dev_score(job_.task, report.ensemble->dev);
  }
  report.inference = inference_;
  io::publish_file(*fs_, job_.out / "report.json", finetune_json(report));
  io::publish_file(*fs_, job_.out / "report.md", finetune_markdown(report));
  print_summary(report);
}

}  // namespace

void finetune(const FinetuneJob& job, const FinetuneOptions& options) {
  expect_next_run(kGoOn);
  Finetune(job, options).run();
}

}  // namespace megalith::apps
