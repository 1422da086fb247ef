#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "megalith/tasks/task.h"

namespace megalith::tasks {

/// How the paper fine-tunes a model of a size on a task.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, table 6. It prints 3.8B for the model that tables 4 and 5 call 3.9B.
struct Preset {
  Task task = Task::mnli;
  std::string_view size;  ///< "336m", "1.3b", "3.9b"
  Index batch = 0;        ///< questions of RACE, windows of SQuAD, pairs of sentences
  double lr = 0;
  Index epochs = 0;
};

/// All 15, by task, then by size.
std::span<const Preset> presets();
/// Nothing for an unknown size.
std::optional<Preset> preset_named(Task task, std::string_view size);

}  // namespace megalith::tasks
