#include "megalith/config/task_rules.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/plan_rules.h"
#include "megalith/model/model_config.h"
#include "megalith/tasks/presets.h"

namespace megalith::config {
namespace {

constexpr double kWarmupShare = 0.06;

void unset(const AskedValue& value) {
  std::visit([](auto* place) { place->reset(); }, value);
}

/// A recipe's keys of [model] with their values, also where a recipe leaves them out.
RunConfig whole_model(const RunConfig& recipe) {
  RunPlan plan;
  model::ModelConfig& m = plan.model;
  m = model::family_defaults(recipe.model.family.value_or("bert"));
  for (const Key& key : keys())
    if (key.name.starts_with("model.") && key.members.put != nullptr) key.members.put(recipe, plan);
  m.num_kv_heads = m.kv_heads();
  if (m.num_heads > 0) m.head_dim = m.head_width();
  m.num_positions = m.has_rope() ? 0 : m.positions();
  RunConfig whole;
  for (const Key& key : keys())
    if (key.name.starts_with("model.") && key.members.get != nullptr) key.members.get(plan, whole);
  return whole;
}

/// Reports a key and unsets it, if it is set.
void refuse_key(std::string_view name, RunConfig& c, const std::string& rule, Problems& out) {
  const AskedValue value = find_key(name)->members.asked(c);
  if (!is_set(value)) return;
  out.add(name, value_text(value), rule);
  unset(value);
}

void derive_sizes(RunConfig& c, tasks::Task task, bool trains, Problems& out) {
  if (c.task.preset) {
    if (const std::optional<tasks::Preset> preset = tasks::preset_named(task, *c.task.preset)) {
      set_default(c.task.epochs, preset->epochs);
      set_default(c.train.global_batch, preset->batch);
      set_default(c.optimizer.lr, preset->lr);
    }  // check_bounds() reports others
  }
  if (!c.task.preset && trains) {
    if (!c.task.epochs) out.add_line("task.epochs is not set: give it, or task.preset");
    if (!c.optimizer.lr)
      out.add_line("optimizer.lr is not set: fine-tuning has no usual rate; give it, or task.preset");
  }
}

}  // namespace

void derive_task(RunConfig& c, RunPlan& plan, Problems& out) {
  const std::optional<tasks::Task> task = tasks::task_named(c.task.name.value_or(""));
  if (!c.task.name) {
    refuse_key("data.test", c, "is for fine-tuning: needs task.name; `eval --task loss` scores a text", out);
    return refuse_section("task.", "is for fine-tuning: needs task.name", c, out);
  }
  if (c.model.family && c.model.family != "bert") {
    out.add("model.family", *c.model.family, "must be bert with task.name: an encoder is fine-tuned");
    c.model.family.reset();
  }
  set_default(c.model.family, "bert");
  refuse_section("bert.", "is for pretraining: remove it, or task.name", c, out);
  refuse_key("train.init", c, "does not go with task.name; give that checkpoint to task.init", out);
  refuse_key("data.split", c, "does not go with task.name; name data.valid", out);
  if (c.train.steps.value_or(0) != 0)
    refuse_key("train.steps", c, "does not go with task.name: steps follow from task.epochs; remove it", out);
  const bool trains = !c.train.steps;  // a recipe of inference has train.steps = 0
  c.train.steps = 0;
  if (trains && c.data.train.value_or(std::vector<std::string>{}).size() != 1)
    out.add_line("data.train: must name one file of the task (RACE: a folder, too)");
  const std::vector<std::string> valid = c.data.valid.value_or(std::vector<std::string>{});
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const auto before = valid.begin() + static_cast<std::ptrdiff_t>(i);
    out.require(std::find(valid.begin(), before, valid[i]) == before, "data.valid", valid[i],
                "comes twice; name each file once");
  }
  if (task) derive_sizes(c, *task, trains, out);
  plan.task.derives_warmup = !c.optimizer.warmup_steps;
  plan.task.derives_decay = !c.optimizer.decay_steps;
  plan.task.derives_interval = !c.train.eval_interval;
  set_default(c.optimizer.decay, "linear");
  set_default(c.optimizer.min_lr, 0);
  set_default(c.train.eval_batches, 0);
  set_default(c.task.epochs, plan.task.epochs);
  set_default(c.task.max_query, plan.task.max_query);
  set_default(c.task.doc_stride, plan.task.doc_stride);
}

nn::TaskHeadSpec task_head(tasks::Task task) {
  const Index classes = std::ssize(tasks::classes_of(task));
  switch (task) {
    case tasks::Task::mnli:
    case tasks::Task::qqp:
      return {.form = nn::TaskForm::classes, .classes = classes};
    case tasks::Task::race:
      return {.form = nn::TaskForm::choices, .classes = classes};
    case tasks::Task::squad1:
    case tasks::Task::squad2:
      return {.form = nn::TaskForm::spans};
  }
  throw InternalError("[task] no head for the task");
}

void set_task_head(RunPlan& plan) {
  if (const std::optional<tasks::Task> task = tasks::task_named(plan.task.name)) plan.model.task = task_head(*task);
}

void check_task(const RunPlan& plan, Problems& out) {
  if (!plan.model.task) return;
  constexpr Index kFrame = 3;  // [CLS], [SEP], [SEP]
  const TaskConfig& t = plan.task;
  const Index seq_len = plan.model.seq_len;
  if (plan.model.task->form == nn::TaskForm::spans) {
    out.require(
        t.max_query + t.doc_stride + kFrame <= seq_len, "task.max_query + task.doc_stride + 3",
        t.max_query + t.doc_stride + kFrame,
        str("must be at most model.seq_len = ", seq_len, ": a window holds a question and a stride of context"));
  } else if (plan.model.task->form == nn::TaskForm::choices) {
    out.require(t.max_query + kFrame < seq_len, "task.max_query + 3", t.max_query + kFrame,
                str("must be below model.seq_len = ", seq_len, ": a sequence also holds a part of the article"));
  }
}

void take_model(const RunConfig& of_init, RunConfig& asked, std::vector<std::string>& refused) {
  RunConfig theirs = of_init, whole = whole_model(of_init);
  whole.data.tokenizer = theirs.data.tokenizer;
  if (asked.model.preset)
    refused.push_back(str("model.preset = ", *asked.model.preset, ": the model is that of task.init; remove it"));
  const bool rotates = whole.model.position == "rope";  // then no table of positions has a length
  if (!theirs.model.num_positions && !rotates) theirs.model.num_positions = theirs.model.seq_len;
  if (asked.model.seq_len && theirs.model.num_positions && *asked.model.seq_len > *theirs.model.num_positions) {
    refused.push_back(str("model.seq_len = ", *asked.model.seq_len, ": must be at most ", *theirs.model.num_positions,
                          ", the positions of task.init"));
  }
  for (const Key& key : keys()) {
    const bool is_theirs = key.name.starts_with("model.") || key.name == "data.tokenizer";
    if (!is_theirs || key.name == "model.preset" || key.name == "model.padded_vocab_size") continue;
    const AskedValue own = key.members.asked(asked), given = key.members.asked(theirs);
    if (!is_set(own)) {
      if (is_set(given)) std::visit([&](auto* place) { *place = *std::get<decltype(place)>(given); }, own);
      continue;
    }
    if (key.resume.rule != OnResume::must_match || key.name == "model.seq_len") continue;
    const bool is_of_rotations = key.name.starts_with("model.rope_"), is_of_table = key.name == "model.num_positions";
    if (is_of_rotations ? !rotates : is_of_table && rotates) {
      refused.push_back(str(key.name, " = ", value_text(own),
                            ": task.init has model.position = ", *whole.model.position, "; remove the key"));
      continue;
    }
    const std::string has = value_text(key.members.asked(whole));
    if (is_set(key.members.asked(whole)) && value_text(own) != has)
      refused.push_back(str(key.name, " = ", value_text(own), ": task.init has ", has, "; remove the key"));
  }
}

tasks::TaskSetConfig TaskConfig::set_config(Index seq_len, Index max_line, std::string_view setting) const {
  return {.task = tasks::task_named(name).value(),
          .seq_len = seq_len,
          .max_query = max_query,
          .doc_stride = doc_stride,
          .max_line = static_cast<std::size_t>(max_line),
          .setting = setting};
}

void set_samples(Index samples, RunPlan& plan) {
  if (!plan.task.is_set()) return;
  const Index per_epoch = plan.steps_per_epoch(samples), steps = per_epoch * plan.task.epochs;
  plan.train.steps = steps;
  if (plan.task.derives_interval) plan.train.eval_interval = per_epoch;
  if (plan.task.derives_warmup)
    plan.optimizer.warmup_steps = static_cast<Index>(kWarmupShare * static_cast<double>(steps));
  optim::OptimConfig& o = plan.optimizer;
  o.run_steps = steps;
  if (plan.task.derives_decay) o.decay_steps = optim::default_decay_steps(o.decay, o.warmup_steps, steps);
}

}  // namespace megalith::config
