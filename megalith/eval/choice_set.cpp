#include "megalith/eval/choice_set.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tokenizer/python_text.h"

namespace megalith::eval {
namespace {

/// What precedes the prompt of each question.
std::string shots_text(ChoiceForm form, const ChoiceShots& shots, EvalSet& set) {
  std::string text;
  if (shots.count == 0 || !is_usable_text(shots.source.data, set)) return text;
  const std::vector<ChoiceQuestion> examples = read_choice_questions(form, shots.source, set);
  if (!set.problems.empty()) return text;
  if (std::ssize(examples) < shots.count) {
    set.refuse(str("[", shots.source.data.file, "] has ", examples.size(),
                   " questions: must have --shots = ", shots.count, " or more"));
    return text;
  }
  for (const ChoiceQuestion& one : std::span(examples).first(static_cast<std::size_t>(shots.count)))
    text += str(one.prompt, ' ', one.choices[one.answer], "\n\n");
  return text;
}

/// Tokens of a text and a choice after it.
struct ChoiceIds {
  std::vector<std::int32_t> ids;
  Index context = 0;  ///< of the text
};
ChoiceIds choice_ids(const std::string& context, const std::string& choice, const tokenizer::Tokenizer& tokenizer) {
  const std::string_view kept = tokenizer::python_rstrip(context);
  const std::vector<std::int32_t> whole = tokenizer.encode(str(context, ' ', choice));
  ChoiceIds found;
  tokenizer.encode(kept, found.ids);
  const std::size_t begin = std::min(found.ids.size(), whole.size());
  if (found.ids.empty()) found.ids = {tokenizer.end_of_document()};
  found.context = std::ssize(found.ids);
  found.ids.insert(found.ids.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin), whole.end());
  return found;
}

class ChoiceSetMaker {
 public:
  ChoiceSetMaker(std::string_view file, const tokenizer::Tokenizer& tokenizer, Index window, EvalSet& set)
      : file_(file), tokenizer_(tokenizer), window_(window), set_(set) {}

  void add(const ChoiceQuestion& question, const std::string& shots) {
    EvalSet::Question& kept = set_.questions.emplace_back();
    kept.answer = question.answer;
    const std::string context = str(question.before, shots, question.prompt);
    for (const std::string& choice : question.choices) {
      ChoiceIds found = choice_ids(context, choice, tokenizer_);
      const Index targets = std::ssize(found.ids) - found.context;
      if (targets < 1 || targets > window_) {
        set_.refuse(str("[", file_, "] line ", question.line, ": a choice of ", targets,
                        " tokens: must be of 1 to the ", window_, " of a window"));
        continue;
      }
      const Index over = std::ssize(found.ids) - (window_ + 1);
      if (over > 0) {
        found.ids.erase(found.ids.begin(), found.ids.begin() + over);
        ++cut_;
      }
      context_tokens_ += found.context;
      target_tokens_ += targets;
      kept.characters.push_back(static_cast<Index>(tokenizer::python_length(choice)));
      kept.bytes.push_back(std::ssize(choice));
      firsts_.push_back(std::ssize(found.ids) - targets);
      set_.texts.push_back(std::move(found.ids));
    }
  }
  void finish(Index shots) {
    for (std::size_t i = 0; i < set_.texts.size(); ++i) set_.passages.push_back({set_.texts[i], firsts_[i]});
    set_.counts = {
        {"questions", std::ssize(set_.questions)}, {"choices", std::ssize(set_.passages)}, {"shots", shots},
        {"context_tokens", context_tokens_},       {"target_tokens", target_tokens_},      {"passages_cut", cut_}};
  }

 private:
  std::string_view file_;
  const tokenizer::Tokenizer& tokenizer_;
  Index window_;
  EvalSet& set_;
  std::vector<Index> firsts_;
  Index context_tokens_ = 0, target_tokens_ = 0, cut_ = 0;
};

/// The standard error of a mean of `questions` zeros and ones.
double standard_error(double mean, double questions) { return std::sqrt(mean * (1 - mean) / (questions - 1)); }

}  // namespace

EvalSet choice_set(ChoiceForm form, const ChoiceSource& source, const tokenizer::Tokenizer& tokenizer, Index window,
                   const ChoiceShots& shots) {
  EvalSet set;
  if (!is_usable_text(source.data, set)) return set;
  const std::vector<ChoiceQuestion> questions = read_choice_questions(form, source, set);
  const std::string before = shots_text(form, shots, set);
  if (set.problems.empty() && questions.empty())
    set.refuse(str("[", source.data.file, "] has no questions; is it the right file?"));
  if (!set.problems.empty()) return set;
  ChoiceSetMaker maker(source.data.file, tokenizer, window, set);
  for (const ChoiceQuestion& question : questions) maker.add(question, before);
  if (set.problems.empty()) maker.finish(shots.count);
  return set;
}

Figures choice_figures(const EvalSet& set, std::span<const ExampleResult> results) {
  std::size_t passage = 0;
  Index correct = 0, correct_norm = 0, correct_bytes = 0;
  for (const EvalSet::Question& question : set.questions) {
    const std::size_t choices = question.bytes.size();
    if (passage + choices > results.size()) throw InternalError("[choice_figures] results: are fewer than the choices");
    // An empty choice has -inf per character, as in the harness.
    const auto is_right = [&](const auto& length) {
      std::size_t best = 0;
      const auto score = [&](std::size_t i) { return results[passage + i].log_probability / length(i); };
      for (std::size_t i = 1; i < choices; ++i)
        if (score(i) > score(best)) best = i;
      return best == question.answer ? 1 : 0;
    };
    correct += is_right([](std::size_t) { return 1.0; });
    correct_norm += is_right([&](std::size_t i) { return static_cast<double>(question.characters[i]); });
    correct_bytes += is_right([&](std::size_t i) { return static_cast<double>(question.bytes[i]); });
    passage += choices;
  }
  const double questions = static_cast<double>(set.questions.size());
  const double acc = static_cast<double>(correct) / questions, norm = static_cast<double>(correct_norm) / questions;
  Figures figures = {{"acc", acc}, {"acc_norm", norm}, {"acc_bytes", static_cast<double>(correct_bytes) / questions}};
  if (set.questions.size() > 1) {
    figures.emplace_back("acc_stderr", standard_error(acc, questions));
    figures.emplace_back("acc_norm_stderr", standard_error(norm, questions));
  }
  figures.emplace_back("correct", static_cast<double>(correct));
  figures.emplace_back("correct_norm", static_cast<double>(correct_norm));
  figures.emplace_back("correct_bytes", static_cast<double>(correct_bytes));
  return figures;
}

}  // namespace megalith::eval
