#include "megalith/eval/eval_set.h"

#include <algorithm>
#include <map>
#include <new>

#include "megalith/base/checked_growth.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text_lines.h"
#include "megalith/base/utf8.h"
#include "megalith/data/json_text.h"
#include "megalith/eval/detokenize.h"

namespace megalith::eval {
namespace {

/// Counts from 1.
Index line_of(std::string_view text, std::size_t offset) {
  return 1 + std::ranges::count(text.substr(0, offset), '\n');
}

/// Adds a text's windows. A text of one token has none.
void add_windows(EvalSet& set, std::vector<std::int32_t> ids, const std::vector<Window>& windows) {
  const std::vector<std::int32_t>& kept = set.texts.emplace_back(std::move(ids));
  for (const Window& window : windows) set.passages.push_back(passage_of(kept, window));
}

std::string too_short(std::string_view file, std::size_t tokens) {
  return str("[", file, "] text of ", tokens, tokens == 1 ? " token" : " tokens",
             ": must be of two or more, as the first one has nothing before it");
}

void count_windows(EvalSet& set) {
  set.counts.emplace_back("windows", static_cast<Index>(set.passages.size()));
  set.counts.emplace_back("targets", set.targets());
}

Index count_of(std::string_view text, std::string_view word) {
  Index count = 0;
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; at += word.size()) ++count;
  return count;
}

/// Headings of a detokenised file have no spaces at the ends of their lines.
bool is_tokenized(std::string_view text) {
  if (text.find(" @-@ ") != std::string_view::npos) return true;
  for (std::size_t at = text.find(" = "); at != std::string_view::npos; at = text.find(" = ", at + 1)) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if ((at == 0 || text[at - 1] == '\n') && line.size() > 3 && line.ends_with(" = ")) return true;
  }
  return false;
}

/// The rules of both protocols.
bool is_wikitext(const SourceText& source, EvalSet& set) {
  if (!is_usable_text(source, set)) return false;
  if (source.text.starts_with("\xef\xbb\xbf")) {
    set.refuse(str("[", source.file,
                   "] line 1: begins with a byte-order mark: must be WikiText as published, without "
                   "one; remove it, as by tail -c +4"));
    return false;
  }
  if (const std::size_t at = source.text.find("\r\n"); at != std::string_view::npos) {
    set.refuse(str("[", source.file, "] line ", line_of(source.text, at),
                   ": ends with CR LF: must be WikiText as "
                   "published, whose lines end with LF; convert the file, as by dos2unix"));
    return false;
  }
  if (is_tokenized(source.text)) return true;
  set.refuse(str("[", source.file,
                 "] line 1: has neither \" @-@ \" nor a heading \" = ... = \" anywhere, so "
                 "it is detokenised already: must be WikiText as published (wiki.test.tokens, or "
                 "wiki.test.raw for --protocol harness)"));
  return false;
}

/// A LAMBADA text in two parts.
struct Cloze {
  std::string_view context, word;
};
Cloze cut(std::string_view text) {
  const std::string_view whole = strip(text);
  const std::size_t space = whole.find_last_of(" \t\n\v\f\r");
  if (space == std::string_view::npos) return {{}, whole};
  return {strip(whole.substr(0, space)), whole.substr(space + 1)};
}

/// Lines that are not blank, with their numbers.
template <class Take>
void for_each_written_line(std::string_view text, const Take& take) {
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    if (!strip(line).empty()) take(line, static_cast<Index>(number));
  });
}

}  // namespace

Index EvalSet::count(std::string_view name) const {
  for (const auto& [known, value] : counts) {
    if (known == name) return value;
  }
  throw InternalError(str("[EvalSet] count ", name, ": the task has none of that name"));
}

Index EvalSet::targets() const {
  Index sum = 0;
  for (const Passage& passage : passages) sum += passage.targets();
  return sum;
}

void EvalSet::refuse(std::string problem) {
  constexpr std::size_t kShown = 20;
  if (problems.size() < kShown)
    problems.push_back(std::move(problem));
  else
    ++more_problems;
}

bool is_usable_text(const SourceText& source, EvalSet& set) {
  if (strip(source.text).empty()) {
    set.refuse(str("[", source.file, "] is empty: must hold text; is it the right file?"));
    return false;
  }
  const std::size_t good = valid_utf8_prefix(source.text);
  if (good == source.text.size()) return true;
  set.refuse(str("[", source.file, "] line ", line_of(source.text, good), ", byte ", good,
                 " of the file: must be UTF-8; convert the file, as by iconv"));
  return false;
}

EvalSet wikitext_paper_set(const SourceText& source, const tokenizer::Tokenizer& tokenizer, Index window,
                           Index stride) {
  EvalSet set;
  if (!is_wikitext(source, set)) return set;
  const std::string_view original = strip(source.text);
  const std::string plain = detokenize_wikitext(original);
  std::vector<std::int32_t> ids = tokenizer.encode(plain);
  const auto tokens = static_cast<Index>(ids.size());
  if (tokens < 2) {
    set.refuse(too_short(source.file, ids.size()));
    return set;
  }
  const Index unknown = count_of(original, "<unk>");
  if (unknown == 0) {
    set.warnings.push_back(str("[", source.file,
                               "] has no <unk>: the paper's figures are of wiki.test.tokens of "
                               "WikiText-103, where rare words are <unk>; a raw file is for --protocol harness"));
  }
  add_windows(set, std::move(ids), sliding_windows(tokens, window, stride));
  set.counts = {{"original_words", count_words(original)}, {"tokens", tokens}};
  count_windows(set);
  set.counts.emplace_back("unknown_words", unknown);
  set.counts.emplace_back("retokenize_differences", count_differences(original, retokenize_wikitext(plain)));
  return set;
}

EvalSet wikitext_harness_set(const SourceText& source, const tokenizer::Tokenizer& tokenizer, Index window) {
  EvalSet set;
  if (!is_wikitext(source, set)) return set;
  if (const std::size_t at = source.text.find("<unk>"); at != std::string_view::npos) {
    set.refuse(str("[", source.file, "] line ", line_of(source.text, at),
                   ": has <unk>, and so it is not the raw file: must have none for --protocol harness; give "
                   "wiki.test.raw, or leave --protocol away"));
    return set;
  }
  Index words = 0, bytes = 0, tokens = 0;
  const std::vector<std::string_view> documents = wikitext_documents(source.text);
  for (const std::string_view document : documents) {
    std::vector<std::int32_t> ids = {tokenizer.end_of_document()};
    tokenizer.encode(detokenize_wikitext(document), ids);
    words += count_split_words(document);
    bytes += static_cast<Index>(document.size());
    tokens += static_cast<Index>(ids.size()) - 1;
    if (ids.size() >= 2) {
      const auto windows = disjoint_windows(static_cast<Index>(ids.size()), window);
      add_windows(set, std::move(ids), windows);
    }
  }
  set.counts = {
      {"documents", static_cast<Index>(documents.size())}, {"words", words}, {"bytes", bytes}, {"tokens", tokens}};
  count_windows(set);
  return set;
}

void LossText::expect_text(Index bytes) {
  const Index ids = bytes + 1;  // tokens of less than a byte are rare
  try {
    require_memory(host_limits(), ids * Index{sizeof(std::int32_t)}, "the ids of --data", "");
    ids_.reserve(static_cast<std::size_t>(ids));
  } catch (const IoError&) {  // they are fewer, or are refused as they come
  } catch (const std::bad_alloc&) {
  }
}

void LossText::add(std::string_view document) {
  constexpr std::size_t kAskedFrom = std::size_t{1} << 20;  // of less the system is not asked
  constexpr Index kPerByte = 12;                            // of ids, twice while they grow
  if (document.size() >= kAskedFrom)
    require_memory(host_limits(), kPerByte * static_cast<Index>(document.size()),
                   str("a document of ", document.size(), " bytes"), "lower the limit on a line (--max-line)");
  some_.clear();
  tokenizer_.encode(document, some_);
  add_ids(some_);
  end_document(static_cast<Index>(document.size()));
}

void LossText::add_ids(std::span<const std::int32_t> ids) {
  make_room(ids_, ids.size(), "the ids of --data", "evaluate a part of it");
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

void LossText::end_document(Index bytes) {
  const std::int32_t end = tokenizer_.end_of_document();
  add_ids({&end, 1});
  bytes_ += bytes;
  ++documents_;
}

EvalSet LossText::finish(std::string_view file, Index window, Index stride) {
  EvalSet set;
  const auto tokens = static_cast<Index>(ids_.size());
  // The token that ends the document is not of the text.
  if (tokens < 3) {
    set.refuse(too_short(file, ids_.empty() ? 0 : ids_.size() - 1));
    return set;
  }
  add_windows(set, std::move(ids_), sliding_windows(tokens, window, stride));
  set.counts = {{"documents", documents_}, {"bytes", bytes_}, {"tokens", tokens}};
  count_windows(set);
  return set;
}

EvalSet loss_set(const std::vector<SourceText>& documents, const tokenizer::Tokenizer& tokenizer, Index window,
                 Index stride) {
  EvalSet set;
  LossText text(tokenizer);
  for (const SourceText& document : documents)
    if (is_usable_text(document, set)) text.add(document.text);
  if (!set.problems.empty()) return set;
  return text.finish(documents.empty() ? "--data" : documents.front().file, window, stride);
}

EvalSet lambada_set(const SourceText& lines, const tokenizer::Tokenizer& tokenizer, Index window) {
  EvalSet set;
  if (!is_usable_text(lines, set)) return set;
  data::JsonText json("text", {}, kLineFix);
  std::map<Index, Index> by_targets;
  std::vector<Index> firsts;
  Index context_tokens = 0, target_tokens = 0, were_cut = 0;
  for_each_written_line(lines.text, [&](std::string_view line, Index number) {
    Cloze cloze;
    try {
      cloze = cut(json.read(line, {.file = lines.file, .number = static_cast<std::uint64_t>(number)}));
    } catch (const data::DocumentError& error) {
      const bool has_fix = error.reason() == data::BadDocument::key_missing;
      set.refuse(has_fix ? error.what() : str(error.what(), "; ", kLineFix));
      return;
    }
    const auto refuse = [&](std::string_view rule) { set.refuse(str("[", lines.file, "] line ", number, ": ", rule)); };
    if (cloze.word.empty()) return refuse("text is empty: must have two words or more; remove the line");
    if (cloze.context.empty())
      return refuse("a passage of one word: must have words before the last one, which is the target");
    std::vector<std::int32_t> ids = tokenizer.encode(cloze.context);
    const auto context = static_cast<Index>(ids.size());
    tokenizer.encode(str(' ', cloze.word), ids);
    const auto targets = static_cast<Index>(ids.size()) - context;
    if (targets < 1 || targets > window)
      return refuse(str("a last word of ", targets, " tokens: must be of 1 to the ", window, " of a window"));
    const Index over = static_cast<Index>(ids.size()) - (window + 1);
    if (over > 0) {
      ids.erase(ids.begin(), ids.begin() + over);
      ++were_cut;
    }
    context_tokens += context;
    target_tokens += targets;
    ++by_targets[targets];
    firsts.push_back(static_cast<Index>(ids.size()) - targets);
    set.texts.push_back(std::move(ids));
  });
  if (!set.problems.empty()) return set;
  for (std::size_t i = 0; i < set.texts.size(); ++i) set.passages.push_back({set.texts[i], firsts[i]});
  set.counts = {{"examples", static_cast<Index>(set.texts.size())},
                {"context_tokens", context_tokens},
                {"target_tokens", target_tokens},
                {"passages_cut", were_cut}};
  for (const auto& [targets, examples] : by_targets) set.counts.emplace_back(str("targets_of_", targets), examples);
  return set;
}

}  // namespace megalith::eval
