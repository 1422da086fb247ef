#include "megalith/tasks/task.h"

#include <array>

#include "megalith/base/names.h"

namespace megalith::tasks {
namespace {

constexpr std::array<std::string_view, kNumTasks> kNames = {"mnli", "qqp", "squad1", "squad2", "race"};
constexpr std::array<std::string_view, kNumTasks> kTitles = {"MNLI", "QQP", "SQuAD 1.1", "SQuAD 2.0", "RACE"};

constexpr std::array<std::string_view, 3> kMnliClasses = {"entailment", "neutral", "contradiction"};
constexpr std::array<std::string_view, 2> kQqpClasses = {"0", "1"};
constexpr std::array<std::string_view, 4> kRaceClasses = {"A", "B", "C", "D"};

}  // namespace

std::string_view name_of(Task task) { return kNames[static_cast<std::size_t>(task)]; }
std::optional<Task> task_named(std::string_view name) { return enumerator_of<Task>(kNames, name); }
std::string_view title_of(Task task) { return kTitles[static_cast<std::size_t>(task)]; }

std::span<const std::string_view> classes_of(Task task) {
  switch (task) {
    case Task::mnli:
      return kMnliClasses;
    case Task::qqp:
      return kQqpClasses;
    case Task::race:
      return kRaceClasses;
    case Task::squad1:
    case Task::squad2:
      break;
  }
  return {};
}

}  // namespace megalith::tasks
