#pragma once
#include <cstdint>

#include "megalith/base/types.h"

namespace megalith::nn {

/// What a fine-tuning task asks of a model.
enum class TaskForm : std::uint8_t {
  classes,  ///< the class of a sequence
  choices,  ///< which of several sequences is the right one
  spans     ///< the first and the last token of an answer in a sequence
};

/// The head of a task.
struct TaskHeadSpec {
  TaskForm form = TaskForm::classes;
  Index classes = 2;  ///< of `choices` the sequences of a sample; not for `spans`
  double dropout = 0;
  std::uint32_t dropout_site = 0;  ///< random site

  Index sequences() const { return form == TaskForm::choices ? classes : 1; }  ///< of a sample
  Index labels() const { return form == TaskForm::spans ? 2 : 1; }             ///< of a sample
  /// Numbers by which the head chooses, of a sample of seq_len tokens.
  Index numbers(Index seq_len) const { return form == TaskForm::spans ? 2 * seq_len : classes; }
};

}  // namespace megalith::nn
