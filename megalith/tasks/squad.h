#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"
#include "megalith/tasks/task.h"
#include "megalith/tasks/text_range.h"

namespace megalith::tasks {

struct SquadAnswer {
  std::string text;
  TextRange range;            ///< in the context
  bool is_ambiguous = false;  ///< "start_ambiguous": the text stands at several places, and which is meant is not known
};

struct SquadQuestion {
  std::string id, text;
  Index context = 0;                 ///< number of its paragraph
  std::vector<SquadAnswer> answers;  ///< empty: the paragraph does not answer it (2.0 only)
};

struct SquadSet {
  std::vector<std::string> contexts;
  std::vector<SquadQuestion> questions;  ///< one or more, in the order of the file
};

/// Reads SQuAD 1.1 (`task` = squad1) or 2.0 in the official JSON layout. Members that the task does not need are left
/// out (title, is_impossible, plausible_answers): as in the official scripts a question without answers is impossible.
/// Throws InputError with all problems: missing members, of another type, duplicate ids, an answer that is not at its
/// answer_start (counted in characters) in the context, and for squad1 a question without answers.
/// Memory: about eight times the text.
/// Sources: Rajpurkar et al. 2016, arXiv:1606.05250; Rajpurkar et al. 2018, arXiv:1806.03822.
SquadSet parse_squad(std::string_view text, const std::string& file, Task task);
/// The same of a file, packed or not. `setting`: the key or option that names it, for messages.
SquadSet read_squad(io::Fs& fs, const io::Path& file, Task task, std::string_view setting = kDataOption);

}  // namespace megalith::tasks
