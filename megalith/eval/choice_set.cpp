#include "megalith/eval/choice_set.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tokenizer/python_text.h"

namespace megalith::eval {
namespace {

Index problems_of(const EvalSet& set) { return std::ssize(set.problems) + set.more_problems; }

/// What precedes the prompt of each question.
std::string shots_text(ChoiceForm form, const ChoiceShots& shots, EvalSet& set) {
  std::string text;
  if (shots.count == 0 || !is_usable_text(shots.source.data, set)) return text;
  const Index problems = problems_of(set);
  const std::vector<ChoiceQuestion> examples = read_choice_questions(form, shots.source, set);
  if (problems_of(set) > problems) return text;
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
  ChoiceSetMaker(const tokenizer::Tokenizer& tokenizer, Index window, EvalSet& set)
      : tokenizer_(tokenizer), window_(window), set_(set) {}

  void add(std::string_view file, const ChoiceQuestion& question, const std::string& shots) {
    EvalSet::Question& kept = set_.questions.emplace_back();
    kept.answer = question.answer;
    const std::string context = str(question.before, shots, question.prompt);
    for (const std::string& choice : question.choices) {
      ChoiceIds found = choice_ids(context, choice, tokenizer_);
      const Index targets = std::ssize(found.ids) - found.context;
      if (targets < 1 || targets > window_) {
        set_.refuse(str("[", file, "] line ", question.line, ": a choice of ", targets, " tokens: must be of 1 to the ",
                        window_, " of a window"));
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
    set_.counts = {{"questions", std::ssize(set_.questions)}, {"choices", std::ssize(set_.passages)}};
    if (!set_.subjects.empty()) set_.counts.emplace_back("subjects", std::ssize(set_.subjects));
    for (const auto& [name, count] : {std::pair{"shots", shots},
                                      {"context_tokens", context_tokens_},
                                      {"target_tokens", target_tokens_},
                                      {"passages_cut", cut_}})
      set_.counts.emplace_back(name, count);
  }

 private:
  const tokenizer::Tokenizer& tokenizer_;
  Index window_;
  EvalSet& set_;
  std::vector<Index> firsts_;
  Index context_tokens_ = 0, target_tokens_ = 0, cut_ = 0;
};

/// The questions of a file, and the text of the examples before each.
struct ChoiceTexts {
  std::vector<ChoiceQuestion> questions;
  std::string shots;
};
ChoiceTexts choice_texts(ChoiceForm form, const ChoiceSource& source, const ChoiceShots& shots, EvalSet& set) {
  ChoiceTexts texts;
  if (!is_usable_text(source.data, set)) return texts;
  const Index problems = problems_of(set);
  texts.questions = read_choice_questions(form, source, set);
  texts.shots = shots_text(form, shots, set);
  if (problems_of(set) == problems && texts.questions.empty())
    set.refuse(str("[", source.data.file, "] has no questions; is it the right file?"));
  return texts;
}

/// The standard error of a mean of `questions` zeros and ones.
double standard_error(double mean, double questions) { return std::sqrt(mean * (1 - mean) / (questions - 1)); }

/// Questions in a row, the results of their choices, and how many are answered rightly, by each figure.
struct ChoiceTally {
  std::size_t questions = 0, results = 0;
  std::array<Index, 3> correct = {};  ///< by l, by l / characters, by l / bytes
  double mean(std::size_t figure) const {
    return static_cast<double>(correct[figure]) / static_cast<double>(questions);
  }
  double stderr_of(std::size_t figure) const { return standard_error(mean(figure), static_cast<double>(questions)); }
};

ChoiceTally tally_of(std::span<const EvalSet::Question> questions, std::span<const ExampleResult> results) {
  ChoiceTally tally{.questions = questions.size()};
  for (const EvalSet::Question& question : questions) {
    const std::size_t choices = question.bytes.size();
    if (tally.results + choices > results.size())
      throw InternalError("[choice_figures] results: are fewer than the choices");
    // An empty choice has -inf per character, as in the harness.
    const auto is_right = [&](const auto& length) {
      std::size_t best = 0;
      const auto score = [&](std::size_t i) { return results[tally.results + i].log_probability / length(i); };
      for (std::size_t i = 1; i < choices; ++i)
        if (score(i) > score(best)) best = i;
      return best == question.answer ? 1 : 0;
    };
    tally.correct[0] += is_right([](std::size_t) { return 1.0; });
    tally.correct[1] += is_right([&](std::size_t i) { return static_cast<double>(question.characters[i]); });
    tally.correct[2] += is_right([&](std::size_t i) { return static_cast<double>(question.bytes[i]); });
    tally.results += choices;
  }
  return tally;
}

/// The tallies of the subjects of a set; of one file its own.
std::vector<ChoiceTally> tallies_of(const EvalSet& set, std::span<const ExampleResult> results) {
  if (set.subjects.empty()) return {tally_of(set.questions, results)};
  std::vector<ChoiceTally> tallies;
  std::span<const EvalSet::Question> rest = set.questions;
  for (const EvalSet::Subject& subject : set.subjects) {
    tallies.push_back(tally_of(rest.first(subject.questions), results));
    rest = rest.subspan(subject.questions);
    results = results.subspan(tallies.back().results);
  }
  return tallies;
}

/// Nothing if one of them has a single question.
std::optional<double> pooled_error(std::span<const ChoiceTally> tallies, std::size_t figure) {
  double sum = 0, questions = 0;
  for (const ChoiceTally& tally : tallies) {
    if (tally.questions < 2) return std::nullopt;
    const double n = static_cast<double>(tally.questions), error = tally.stderr_of(figure);
    if (tallies.size() == 1) return error;
    sum += (n - 1) * n * error * error;
    questions += n;
  }
  return std::sqrt(sum / (questions - static_cast<double>(tallies.size())) / questions);
}

Figures figures_of(std::span<const ChoiceTally> tallies) {
  ChoiceTally all;
  for (const ChoiceTally& tally : tallies) {
    all.questions += tally.questions;
    for (std::size_t i = 0; i < all.correct.size(); ++i) all.correct[i] += tally.correct[i];
  }
  Figures figures = {{"acc", all.mean(0)}, {"acc_norm", all.mean(1)}, {"acc_bytes", all.mean(2)}};
  if (const auto error = pooled_error(tallies, 0)) figures.emplace_back("acc_stderr", *error);
  if (const auto error = pooled_error(tallies, 1)) figures.emplace_back("acc_norm_stderr", *error);
  constexpr const char* kCounts[] = {"correct", "correct_norm", "correct_bytes"};
  for (std::size_t i = 0; i < all.correct.size(); ++i)
    figures.emplace_back(kCounts[i], static_cast<double>(all.correct[i]));
  return figures;
}

}  // namespace

EvalSet choice_set(ChoiceForm form, const ChoiceSource& source, const tokenizer::Tokenizer& tokenizer, Index window,
                   const ChoiceShots& shots) {
  const ChoiceSubject only{.name = {}, .source = source, .shots = shots};
  return choice_set(form, std::span(&only, 1), tokenizer, window);
}

EvalSet choice_set(ChoiceForm form, std::span<const ChoiceSubject> subjects, const tokenizer::Tokenizer& tokenizer,
                   Index window) {
  EvalSet set;
  std::vector<ChoiceTexts> texts;
  for (const ChoiceSubject& subject : subjects) texts.push_back(choice_texts(form, subject.source, subject.shots, set));
  if (!set.problems.empty()) return set;
  ChoiceSetMaker maker(tokenizer, window, set);
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    for (const ChoiceQuestion& question : texts[i].questions)
      maker.add(subjects[i].source.data.file, question, texts[i].shots);
    if (!subjects[i].name.empty()) set.subjects.push_back({subjects[i].name, texts[i].questions.size()});
  }
  if (set.problems.empty()) maker.finish(subjects.empty() ? 0 : subjects.front().shots.count);
  return set;
}

Figures choice_figures(const EvalSet& set, std::span<const ExampleResult> results) {
  return figures_of(tallies_of(set, results));
}

std::vector<std::pair<std::string, Figures>> subject_figures(const EvalSet& set,
                                                             std::span<const ExampleResult> results) {
  std::vector<std::pair<std::string, Figures>> figures;
  if (set.subjects.empty()) return figures;
  const std::vector<ChoiceTally> tallies = tallies_of(set, results);
  for (std::size_t i = 0; i < tallies.size(); ++i)
    figures.emplace_back(set.subjects[i].name, figures_of(std::span(tallies).subspan(i, 1)));
  return figures;
}

}  // namespace megalith::eval
