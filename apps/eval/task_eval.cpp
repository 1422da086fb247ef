#include "apps/eval/task_eval.h"

#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/tasks/task_file.h"
#include "megalith/tasks/task_set.h"

#include "apps/eval/eval_progress.h"
#include "apps/eval/task_samples.h"
#include "apps/program/launch.h"

namespace megalith::apps {
namespace {

/// As tasks::read_no_answer_scores() reads it.
std::string no_answer_file(const tasks::NoAnswerScores& scores) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [id, score] : scores) json[id] = score;
  return json.dump() + '\n';
}

/// Shared by the ranks of a process.
class TaskEvaluation {
 public:
  using Use = std::function<void(const TaskEvaluated&)>;
  TaskEvaluation(const TaskEvalRequest& request, const Use& use, const Launcher& launcher)
      : request_(request), use_(use), launcher_(launcher), fs_(rank_fs(launcher.process)) {}

  JobShape shape() {
    InferenceOptions options = request_.model;
    options.task = std::string(tasks::name_of(request_.task));
    job_.emplace(fs_, options, launcher_, [&](const InferenceJob&) { require_writable(); });
    JobShape needed = shape_of(job_->plan());
    needed.facts.insert(needed.facts.end(), {{"--task", options.task}, {"--batch", std::to_string(job_->batch())}});
    return needed;
  }
  void read() {
    const config::RunPlan& plan = job_->plan();
    set_ = tasks::open_task_set(*fs_, request_.data,
                                plan.task.set_config(plan.model.seq_len, static_cast<Index>(request_.max_line)),
                                *job_->tokenizer(request_.vocab_dir), tasks::SampleUse::scoring);
    samples_.emplace(*set_);
  }
  train::Facts found() const {
    train::Facts facts = job_->facts();
    facts.emplace_back("--data", hex64(set_->fingerprint()));
    return facts;
  }
  void run(comm::World& world) const;

 private:
  /// That the folders of output files are there, before anything is computed.
  void require_writable() const {
    Problems problems;
    for (const auto& [option, file] : {std::pair("--predictions", &request_.predictions),
                                       std::pair("--no-answer-scores", &request_.no_answer_scores)}) {
      if (file->empty()) continue;
      const io::Path folder = io::Path(*file).parent_path();
      problems.require(!fs_->is_dir(*file), option, *file, "is a folder; name a file");
      problems.require(folder.empty() || fs_->is_dir(folder), option, *file,
                       str("there is no folder ", folder.string(), "; make it"));
    }
    problems.throw_if_any("eval");
  }
  TaskReport::File used(const char* use, const std::string& file) const {
    return {use, file, fs_->is_dir(file) ? "" : tasks::file_checksum(*fs_, file)};
  }

  const TaskEvalRequest& request_;
  const Use& use_;
  const Launcher& launcher_;
  std::shared_ptr<io::Fs> fs_;
  std::optional<InferenceJob> job_;
  std::unique_ptr<const tasks::TaskSet> set_;
  std::optional<TaskSamples> samples_;  // of *set_
};

void TaskEvaluation::run(comm::World& world) const {
  const config::RunPlan& plan = job_->plan();
  const comm::Mesh mesh = comm::make_mesh(world, plan.grid, plan.transfers);
  eval::InferenceModel model(job_->config(samples_->asked(), plan.model.seq_len), world, mesh,
                             eval::count_shapes(*samples_));
  const std::string digest = job_->load(world, model);
  const bool first = world.rank() == 0;
  std::vector<float> numbers(first ? static_cast<std::size_t>(set_->count() * set_->numbers()) : 0);
  EvalProgress progress(samples_->count(), set_->num_tokens());
  model.infer(*samples_, [&](Index sequence, const eval::SampleNumbers& found) {
    samples_->put(sequence, found, numbers);
    progress.add(samples_->tokens(sequence));
  });
  if (!first) return;
  const double seconds = progress.seconds();
  const tasks::TaskPredictions predictions = set_->predict(numbers);
  TaskReport report{.task = request_.task,
                    .files = {used("data", request_.data)},
                    .model = TaskReport::Model{.checkpoint = job_->folder().string(),
                                               .digest = digest,
                                               .precision = plan.train.precision,
                                               .device = std::string(name_of(plan.device)),
                                               .grid = config::grid_text(plan),
                                               .batch = job_->batch(),
                                               .seconds = seconds,
                                               .tokens = set_->num_tokens()},
                    .counts = set_->counts(),
                    .results = set_->figures(predictions)};
  const auto publish = [&](const char* use, const std::string& file, const std::string& contents) {
    io::publish_file(*fs_, file, contents);
    report.files.push_back(used(use, file));
  };
  if (!request_.predictions.empty()) publish("predictions", request_.predictions, set_->prediction_file(predictions));
  if (!request_.no_answer_scores.empty())
    publish("no_answer_scores", request_.no_answer_scores, no_answer_file(predictions.no_answer));
  use_({.report = report, .set = *set_, .numbers = numbers});
}

}  // namespace

void evaluate_task(const TaskEvalRequest& request, const std::function<void(const TaskEvaluated&)>& use) {
  const Launcher launcher = detect_launcher();
  TaskEvaluation evaluation(request, use, launcher);
  run_job(launcher, {.shape = [&] { return evaluation.shape(); },
                     .read = [&] { evaluation.read(); },
                     .found = [&] { return evaluation.found(); },
                     .body = [&](comm::World& world) { evaluation.run(world); }});
}

}  // namespace megalith::apps
