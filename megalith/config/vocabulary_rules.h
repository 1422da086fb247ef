#pragma once
#include <exception>

#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

namespace megalith::config {

/// What is known of model.vocab_size.
struct VocabularySize {
  bool is_known = true;  ///< false: it is needed, and something else stands for it
  std::exception_ptr unread =
      {};  ///< the Error of a file; its text begins with the key. It comes after all other rules
};

/// Sets model.vocab_size to the number of the tokenizer's ids where the recipe and its preset have none. Adds a warning
/// to the plan if the model has more than 1.2 times these ids, and, with count_ids, a problem if it has fewer.
/// data.tokenizer is set.
VocabularySize derive_vocab_size(RunConfig& c, const BrokenKeys& broken, const CountIds& count_ids, RunPlan& plan,
                                 Problems& out);

}  // namespace megalith::config
