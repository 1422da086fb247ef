#pragma once
#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

namespace megalith::config {

/// Before the literal defaults: what task.name sets where no key does (epochs, batch and rate of task.preset, a linear
/// decay to 0, the whole dev set), and the keys that do not go with it, which are reported and unset. Without task.name
/// the keys of [task] are. Notes in plan.task what is left to follow from the number of steps.
void derive_task(RunConfig& c, RunPlan& plan, Problems& out);

/// The head of a task.
nn::TaskHeadSpec task_head(tasks::Task task);

/// That of the plan's task, into plan.model.
void set_task_head(RunPlan& plan);

/// Rules over sizes of a task.
void check_task(const RunPlan& plan, Problems& out);

/// Sets the keys of a fine-tuning recipe's model and tokenizer to those of the model that it begins with. `asked` may
/// give a smaller model.seq_len, its own dropout and, so that ranks may hold equal shares, padded_vocab_size. Other
/// keys of [model] that differ, also from a default that the model's recipe leaves out, are added to `refused`, one
/// line each.
void take_model(const RunConfig& of_init, RunConfig& asked, std::vector<std::string>& refused);

}  // namespace megalith::config
