#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "megalith/base/types.h"

namespace megalith::tasks {

/// What usually names a file of a task.
inline constexpr std::string_view kDataOption = "--data";

/// A fine-tuning task of Shoeybi et al. 2019 (arXiv:1909.08053), section 5.3.
enum class Task : std::uint8_t { mnli, qqp, squad1, squad2, race };
constexpr int kNumTasks = 5;

/// "mnli", "qqp", "squad1", "squad2", "race".
std::string_view name_of(Task task);
std::optional<Task> task_named(std::string_view name);
/// As the paper's tables print it: "MNLI", "SQuAD 1.1".
std::string_view title_of(Task task);

/// The names of the classes, by number. mnli: entailment, neutral, contradiction. qqp: 0, 1 (1: duplicates). race: A,
/// B, C, D. Empty for SQuAD.
std::span<const std::string_view> classes_of(Task task);

/// Correct answers of all.
struct Correct {
  Index correct = 0, total = 0;
  /// 0 of nothing.
  double fraction() const { return total == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(total); }
};
inline Correct operator+(const Correct& a, const Correct& b) { return {a.correct + b.correct, a.total + b.total}; }

}  // namespace megalith::tasks
