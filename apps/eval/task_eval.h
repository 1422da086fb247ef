#pragma once
#include <cstddef>
#include <string>

#include "megalith/tasks/task.h"

#include "apps/eval/inference.h"

namespace megalith::apps {

/// `eval CKPT --task TASK --data FILE`: the score of a fine-tuned model on a file of its task.
struct TaskEvalRequest {
  tasks::Task task = tasks::Task::mnli;
  InferenceOptions model;
  std::string data;
  std::string predictions;       ///< a file to write; empty: none
  std::string no_answer_scores;  ///< the same; of squad2
  std::string vocab_dir;         ///< of the tokenizer's files; empty: as in training
  std::size_t max_line = 0;
  bool is_json = false;
};

/// Evaluates on the grid of request.model, writes the files and prints the report on rank 0. The logits of all samples
/// are in memory of rank 0: of SQuAD 8 bytes for each token of each window. Throws ConfigError for a checkpoint that is
/// not fine-tuned on the task, and for files that cannot be written.
void evaluate_task(const TaskEvalRequest& request);

}  // namespace megalith::apps
