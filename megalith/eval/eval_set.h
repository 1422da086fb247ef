#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/eval/windows.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::eval {

/// A text, and where it stands, for errors.
struct SourceText {
  std::string_view text, file;
};

/// The fix of a line of JSON without a text.
inline constexpr const char* kLineFix = "a line is {\"text\": \"...\"}";

/// A task for a model: passages, and what the report counts.
struct EvalSet {
  std::vector<std::vector<std::int32_t>> texts;  ///< ids, which the passages are parts of
  std::vector<Passage> passages;
  /// A multiple-choice question, whose choices are passages, one after another.
  struct Question {
    std::size_t answer = 0;
    std::vector<Index> characters, bytes;  ///< by choice: lengths of its text
  };
  std::vector<Question> questions;
  /// The files of a task that has several, as MMLU's subjects, whose questions follow each other; else empty.
  struct Subject {
    std::string name;
    std::size_t questions = 0;
  };
  std::vector<Subject> subjects;
  /// By name, in the order of reports: "windows", "targets", ...
  std::vector<std::pair<std::string, Index>> counts;
  /// Broken rules of the data, each with file, line and fix; then there may be no passages. The first of them, and how
  /// many more there are.
  std::vector<std::string> problems;
  Index more_problems = 0;
  std::vector<std::string> warnings;

  EvalSet() = default;
  EvalSet(EvalSet&&) = default;  // passages stay those of the texts, whose elements do not move
  EvalSet& operator=(EvalSet&&) = default;

  Index count(std::string_view name) const;  ///< throws InternalError for an unknown name
  Index targets() const;
  void refuse(std::string problem);
};

/// Whether a text can be tokenised: it is UTF-8 and not blank. If not, adds the reason to the problems.
bool is_usable_text(const SourceText& source, EvalSet& set);

// Each makes the set of a task. `window`: inputs of a pass. Texts must be UTF-8 and give two tokens or more, else there
// are problems. The tokenizer must be usable for texts (Tokenizer::encode).

/// The paper's protocol on a WikiText file with <unk>: the stripped text is detokenised and tokenised as a whole, and
/// scored by sliding windows. Counts: original_words (T_o), tokens (T), windows, targets, unknown_words, and
/// retokenize_differences: places at which the text that is made again from the detokenised one differs.
EvalSet wikitext_paper_set(const SourceText& source, const tokenizer::Tokenizer& tokenizer, Index window, Index stride);

/// lm-evaluation-harness's protocol on a raw WikiText file: every document is detokenised and tokenised, has an
/// end-of-text token in front, and is scored by disjoint windows. Counts: documents, words, bytes (of the documents
/// before detokenisation), tokens, windows, targets.
EvalSet wikitext_harness_set(const SourceText& source, const tokenizer::Tokenizer& tokenizer, Index window);

/// Documents one after another, each followed by the token that ends a document, as one text by sliding windows. Of
/// a document only its ids are kept, 4 bytes each. Throws IoError where the system has less memory for them.
class LossText {
 public:
  explicit LossText(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// Takes room for the ids of a text of so many bytes at once where the system has it: ids that grow are held twice
  /// for a moment. Only what is written counts as memory.
  void expect_text(Index bytes);
  void add(std::string_view document);
  /// The same for a document of which the ids come, in pieces.
  void add_ids(std::span<const std::int32_t> ids);
  void end_document(Index bytes);
  /// Counts: documents, bytes, tokens, windows, targets. `file`: for errors.
  EvalSet finish(std::string_view file, Index window, Index stride);

 private:
  const tokenizer::Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_, some_;
  Index documents_ = 0, bytes_ = 0;
};
EvalSet loss_set(const std::vector<SourceText>& documents, const tokenizer::Tokenizer& tokenizer, Index window,
                 Index stride);

/// LAMBADA: of each line of JSON the text's last word, delimited by white space, is the target. The text before it,
/// stripped, and a space with the word are tokenised apart. A passage longer than window + 1 tokens loses its
/// beginning. Counts: examples, context_tokens, target_tokens, passages_cut, and targets_of_N for every number N of
/// target tokens that occurs. Source: Paperno et al. 2016, arXiv:1606.06031.
EvalSet lambada_set(const SourceText& lines, const tokenizer::Tokenizer& tokenizer, Index window);

}  // namespace megalith::eval
