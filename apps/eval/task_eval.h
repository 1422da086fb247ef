#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "megalith/tasks/task.h"
#include "megalith/tasks/task_set.h"

#include "apps/eval/inference.h"
#include "apps/eval/task_scores.h"

namespace megalith::apps {

/// A fine-tuned model on a file of its task.
struct TaskEvalRequest {
  tasks::Task task = tasks::Task::mnli;
  InferenceOptions model;
  std::string data;
  std::string predictions = {};       ///< a file to write; empty: none
  std::string no_answer_scores = {};  ///< the same; of squad2
  std::string vocab_dir = {};         ///< of the tokenizer's files; empty: as in training
  std::size_t max_line = 0;
};

/// What a model gives for a file.
struct TaskEvaluated {
  const TaskReport& report;
  const tasks::TaskSet& set;
  std::span<const float> numbers;  ///< [set.count(), set.numbers()], as TaskSet::predict() reads them
};

/// Evaluates on the grid of request.model, writes the files of the request, and calls use() on rank 0. The logits of
/// all samples are in memory of rank 0: of SQuAD 8 bytes for each token of each window. Throws ConfigError for a
/// checkpoint that is not fine-tuned on the task, and for files that cannot be written.
void evaluate_task(const TaskEvalRequest& request, const std::function<void(const TaskEvaluated&)>& use);

}  // namespace megalith::apps
