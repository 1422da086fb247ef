#include "megalith/train/choice_tasks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/file_problems.h"
#include "megalith/train/gather.h"
#include "megalith/train/host_memory.h"

namespace megalith::train {
namespace {

/// The model of a run without what holds for training alone: an inference has room for all rows of experts.
model::ModelConfig inference_model_of(const config::RunPlan& plan) {
  model::ModelConfig model = plan.model;
  const nn::MoeConfig usual;
  model.moe.capacity = usual.capacity;
  model.moe.capacity_factor = usual.capacity_factor;
  model.moe.capacity_run = usual.capacity_run;
  model.moe.drop_by = usual.drop_by;
  model.moe.rank_capacity_factor = usual.rank_capacity_factor;
  model.moe.overflow = usual.overflow;
  model.moe.echo = usual.echo;
  model.moe.replay.clear();
  model.moe.force_balance = false;
  return model;
}

}  // namespace

std::vector<ChoiceTask> open_choice_tasks(io::Fs& fs, const config::RunPlan& plan,
                                          const tokenizer::Tokenizer& tokenizer) {
  std::vector<ChoiceTask> tasks;
  std::string problems;
  for (const std::string& text : plan.eval.tasks) {
    Problems broken;
    const auto named = eval::choice_task_named("eval.tasks", text, broken);
    if (!named) throw InternalError("[open_choice_tasks] " + broken.lines().front());
    try {
      ChoiceTask task{named->series()};
      task.data = eval::read_choice_data(fs,
                                         {.data = named->file,
                                          .options = named->options,
                                          .max_bytes = static_cast<std::uint64_t>(plan.data.max_line),
                                          .data_setting = "eval.tasks",
                                          .limit_setting = "data.max_line"},
                                         tokenizer, plan.model.seq_len);
      io::throw_file_problems(named->file, task.data.set.problems, task.data.set.more_problems);
      tasks.push_back(std::move(task));
    } catch (const InputError& error) {
      problems += str(problems.empty() ? "" : "\n", error.what());
    }
  }
  if (!problems.empty()) throw InputError(problems);
  return tasks;
}

std::string choice_tasks_text(std::span<const ChoiceTask> tasks) {
  std::string text;
  for (const ChoiceTask& task : tasks) {
    text += str(text.empty() ? "" : ", ", task.name, " of checksum ", task.data.checksum);
    for (const eval::ChoiceData::File& file : task.data.more_files) text += str(", ", file.use, ' ', file.checksum);
  }
  return text;
}

std::vector<std::string> choice_task_cuts(std::span<const ChoiceTask> tasks) {
  std::vector<std::string> lines;
  for (const ChoiceTask& task : tasks) {
    const Index cut = task.data.set.count("passages_cut");
    if (cut == 0) continue;
    lines.push_back(str("eval.tasks: ", cut, " of ", task.data.set.passages.size(), " texts of ", task.name,
                        " are longer than model.seq_len + 1 tokens, and lose their beginning"));
  }
  return lines;
}

ChoiceScorer::ChoiceScorer(Engine& engine, const config::RunPlan& plan, std::span<const ChoiceTask> tasks)
    : engine_(engine), tasks_(tasks) {
  if (is_empty()) return;
  for (const ChoiceTask& task : tasks_)
    passages_.insert(passages_.end(), task.data.set.passages.begin(), task.data.set.passages.end());
  constexpr Index kBatchOfCpu = 4, kBatchOfGpu = 16;  // those of `eval`
  model_.emplace(eval::InferenceConfig{.model = inference_model_of(plan),
                                       .stage_layers = plan.stage_layers,
                                       .chunks = plan.chunks,
                                       .group_size = plan.group_size,
                                       .dtype = plan.train.policy().compute,
                                       .device = plan.device,
                                       .batch = plan.device == Device::cpu ? kBatchOfCpu : kBatchOfGpu,
                                       .requires_finite = false},
                 engine_.world(), engine_.mesh(),
                 eval::count_shapes(eval::PassageSamples(passages_, plan.model.seq_len)));
}

void ChoiceScorer::allocate() {
  if (is_empty()) return;
  comm::World& world = engine_.world();
  const Device device = model_->config().device;
  const BytesByOwner bytes = model_->planned_bytes();
  constexpr const char* kFix =
      "leave it out, and score checkpoints by `eval`, or use more of parallel.tp or parallel.pp";
  if (device == Device::cpu) {
    const std::string lack = lack_of_host_memory(world, total(bytes), "[memory] eval.tasks", kFix);
    if (!lack.empty()) throw IoError(lack);
  } else {
    std::string lack;
    if (const Index left = device::memory_left(device); total(bytes) > left) {
      lack = str("eval.tasks: rank ", world.rank(), " takes ", human_bytes(total(bytes)), " (", owners_text(bytes),
                 ") more of its GPU, where ", human_bytes(left), " are left: must fit; ", kFix);
    }
    lack = share_first_text(world, lack);
    if (!lack.empty()) throw ConfigError(lack);
  }
  model_->allocate();
}

std::vector<ChoiceResult> ChoiceScorer::score() {
  if (is_empty()) return {};
  if (engine_.steps_started() != 0) throw InternalError("[ChoiceScorer::score] a step is under way");
  engine_.stage().gather_all_params(engine_.exec());
  engine_.world().wait_for(engine_.exec());
  model_->copy_params(engine_.stage().params());
  std::vector<eval::ExampleResult> results(passages_.size());
  model_->score(passages_, [&](Index passage, const eval::PassageScore& score) {
    const auto number = static_cast<std::size_t>(passage);
    results[number] = eval::result_of(passages_[number], score);
  });
  std::vector<ChoiceResult> scores;
  if (engine_.world().rank() != 0) return scores;
  std::span<const eval::ExampleResult> rest = results;
  for (const ChoiceTask& task : tasks_) {
    const eval::EvalSet& set = task.data.set;
    const std::span<const eval::ExampleResult> own = rest.first(set.passages.size());
    ChoiceResult result{.name = task.name, .questions = std::ssize(set.questions)};
    result.is_finite =
        std::ranges::all_of(own, [](const eval::ExampleResult& one) { return std::isfinite(one.log_probability); });
    if (result.is_finite) result.figures = eval::choice_figures(set, own);
    scores.push_back(std::move(result));
    rest = rest.subspan(set.passages.size());
  }
  return scores;
}

}  // namespace megalith::train
