#include "megalith/tokenizer/tokenizer_trainer.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/host_limits.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/utf8.h"
#include "megalith/io/reader.h"
#include "megalith/tokenizer/bert_text.h"
#include "megalith/tokenizer/bpe_vocabulary.h"
#include "megalith/tokenizer/pre_tokenizer.h"
#include "megalith/tokenizer/sentencepiece.h"
#include "megalith/tokenizer/tokenizer_files.h"
#include "megalith/tokenizer/unicode_text.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kTypeNames = {"bpe", "wordpiece", "sentencepiece-unigram",
                                                        "sentencepiece-bpe"};
constexpr std::string_view kEndOfDocument = "<|endoftext|>";
constexpr std::string_view kContinuation = "##";
constexpr std::size_t kMaxCharacters = 1000;  // of a WordPiece vocabulary

std::vector<std::string> with_needed(std::vector<std::string> needed, const std::vector<std::string>& more) {
  for (const std::string& special : more)
    if (std::ranges::find(needed, special) == needed.end()) needed.push_back(special);
  return needed;
}

std::vector<std::string> specials_of(const TrainerOptions& options) {
  if (options.type == TokenizerType::wordpiece)
    return with_needed({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}, options.specials);
  if (options.type == TokenizerType::bpe) return with_needed({std::string(kEndOfDocument)}, options.specials);
  return options.specials;
}

ordered_json added_tokens(const std::vector<std::string>& specials) {
  ordered_json added = ordered_json::array();
  for (std::size_t id = 0; id < specials.size(); ++id) added.push_back(special_token(id, specials[id]));
  return added;
}

std::vector<TrainedFile> bpe_files(const LearnedBpe& learned, const std::vector<std::string>& specials) {
  std::string merges_txt = "#version: 0.2\n";
  ordered_json merges = ordered_json::array();
  for (const PairMerger::Merge& merge : learned.merges) {
    const std::string& left = learned.tokens[static_cast<std::size_t>(merge.left)];
    const std::string& right = learned.tokens[static_cast<std::size_t>(merge.right)];
    merges_txt += str(left, ' ', right, '\n');
    merges.push_back({left, right});
  }
  const ordered_json vocab = vocab_object(learned.tokens);
  const ordered_json whole = byte_level_bpe_json(
      ByteLevelCut::gpt2, {.added_tokens = added_tokens(specials), .vocab = vocab, .merges = merges});
  return {{"vocab.json", vocab.dump() + "\n"}, {"merges.txt", merges_txt}, {"tokenizer.json", whole.dump(1) + "\n"}};
}

std::vector<TrainedFile> wordpiece_files(const std::vector<std::string>& tokens,
                                         const std::vector<std::string>& specials, LetterCase letters) {
  std::string vocab_txt;
  for (const std::string& token : tokens) vocab_txt += token + "\n";
  const ordered_json whole = wordpiece_json(tokens, added_tokens(specials), letters);
  return {{"vocab.txt", vocab_txt}, {"tokenizer.json", whole.dump(1) + "\n"}};
}

}  // namespace

TokenizerType tokenizer_type_named(std::string_view name) {
  const auto found = std::ranges::find(kTypeNames, name);
  if (found != kTypeNames.end()) return static_cast<TokenizerType>(found - kTypeNames.begin());
  const std::string_view near = nearest(name, kTypeNames);
  throw ConfigError(str("--type ", name, ": must be bpe, wordpiece, sentencepiece-unigram or sentencepiece-bpe",
                        near.empty() ? std::string() : str("; did you mean ", near, "?")));
}

void check(const TrainerOptions& options, Problems& problems) {
  const auto specials = static_cast<std::int64_t>(specials_of(options).size());
  const std::int64_t min_size = options.type == TokenizerType::bpe         ? 256 + specials
                                : options.type == TokenizerType::wordpiece ? specials + 2
                                                                           : 8;
  problems.require(options.vocab_size >= min_size && options.vocab_size <= (std::int64_t{1} << 24), "--vocab-size",
                   options.vocab_size,
                   str("must be ", min_size, " to ", std::int64_t{1} << 24,
                       options.type == TokenizerType::bpe ? ": 256 bytes and the special tokens come first" : ""));
  problems.require(options.memory_bytes >= (std::uint64_t{16} << 20), "--memory", options.memory_bytes,
                   "must be at least 16 MiB");
  problems.require(!(options.lowercase && options.type == TokenizerType::bpe), "--lowercase", "true",
                   "is of wordpiece and sentencepiece-*: byte-level BPE keeps the text");
  for (const std::string& special : options.specials) {
    problems.require(!special.empty() && is_utf8(special) && special.find_first_of("\r\n") == std::string::npos,
                     "--special", io::printable(special), "must be a line of UTF-8 text");
    problems.require(std::ranges::count(options.specials, special) == 1, "--special", io::printable(special),
                     "is there twice");
  }
}

WordCounts count_words(const CountWords& count, const WordCutting& cutting, TrainerReport& report) {
  WordCounts all = count(cutting, report);
  report.words = all.size();
  report.dropped_words = all.dropped_words();
  report.dropped_occurrences = all.dropped_occurrences();
  report.occurrences = all.dropped_occurrences();
  Index bytes = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    report.occurrences += all[i].count;
    bytes += static_cast<Index>(all[i].text.size());
  }
  constexpr Index kPerByte = 16;  // symbols, three times while they grow
  require_memory(host_limits(), kPerByte * bytes, str("learning from ", bytes, " bytes of different words"),
                 "give the table of words less by --memory");
  if (all.size() == 0)
    throw InputError(str("[input] no text in ", report.stored_bytes, " bytes of ", report.files.size(),
                         report.files.size() == 1 ? " file" : " files", ": there is nothing to learn from"));
  return all;
}

LearnedBpe learn_bpe(const WordCounts& words, const std::vector<std::string>& specials,
                     const PairMerger::Options& options) {
  LearnedBpe learned{.tokens = specials, .merges = {}};
  // In the order of their characters, as the tokenizers library has them.
  std::map<std::string, unsigned> bytes;
  for (unsigned byte = 0; byte < 256; ++byte) bytes.emplace(byte_spelling(static_cast<unsigned char>(byte)), byte);
  std::array<std::int32_t, 256> id_of{};
  for (const auto& [spelling, byte] : bytes) {
    id_of[byte] = static_cast<std::int32_t>(learned.tokens.size());
    learned.tokens.push_back(spelling);
  }
  PairMerger merger;
  std::vector<std::int32_t> symbols;
  for (std::size_t i = 0; i < words.size(); ++i) {
    symbols.clear();
    for (const char c : words[i].text) symbols.push_back(id_of[static_cast<unsigned char>(c)]);
    if (symbols.size() > 1) merger.add_word(symbols, words[i].count);
  }
  PairMerger::Options joining = options;
  joining.join = [](const std::string& left, const std::string& right) { return left + right; };
  learned.merges = merger.learn(learned.tokens, joining);
  return learned;
}

std::vector<std::string> learn_wordpiece(const WordCounts& words, const std::vector<std::string>& specials,
                                         const PairMerger::Options& options) {
  std::map<char32_t, std::uint64_t> counts;
  std::set<char32_t> continuing;  // others need no token after "##", which leaves more for merges
  for (std::size_t i = 0; i < words.size(); ++i)
    for (std::size_t at = 0; at < words[i].text.size();) {
      const bool is_first = at == 0;
      const char32_t c = next_character(words[i].text, at);
      counts[c] += words[i].count;
      if (!is_first) continuing.insert(c);
    }
  std::vector<std::pair<char32_t, std::uint64_t>> characters(counts.begin(), counts.end());
  std::ranges::stable_sort(characters, std::greater{}, &std::pair<char32_t, std::uint64_t>::second);
  const auto room = (static_cast<std::size_t>(options.vocab_size) - specials.size()) / 2;
  characters.resize(std::min({characters.size(), kMaxCharacters, room}));
  std::ranges::sort(characters);

  std::vector<std::string> tokens = specials;
  struct Ids {
    std::int32_t first, later;
  };
  std::map<char32_t, Ids> ids;
  for (const auto& [c, count] : characters) {
    ids[c].first = static_cast<std::int32_t>(tokens.size());
    append_utf8(c, tokens.emplace_back());
  }
  for (const auto& [c, count] : characters) {
    if (!continuing.contains(c)) continue;
    ids[c].later = static_cast<std::int32_t>(tokens.size());
    append_utf8(c, tokens.emplace_back(kContinuation));
  }
  PairMerger merger;
  std::vector<std::int32_t> symbols;
  for (std::size_t i = 0; i < words.size(); ++i) {
    symbols.clear();
    for (std::size_t at = 0; at < words[i].text.size();) {
      const bool is_first = at == 0;
      const auto found = ids.find(next_character(words[i].text, at));
      if (found != ids.end()) symbols.push_back(is_first ? found->second.first : found->second.later);
    }
    if (symbols.size() > 1) merger.add_word(symbols, words[i].count);
  }
  PairMerger::Options joining = options;
  joining.join = [](const std::string& left, const std::string& right) {
    return left + (right.starts_with(kContinuation) ? right.substr(kContinuation.size()) : right);
  };
  merger.learn(tokens, joining);
  return tokens;
}

TrainedTokenizer train_tokenizer(const TrainerOptions& options, const CountWords& count) {
  const std::vector<std::string> specials = specials_of(options);
  TrainedTokenizer trained;
  TrainerReport& report = trained.report;
  if (options.type == TokenizerType::sentencepiece_unigram || options.type == TokenizerType::sentencepiece_bpe)
    return train_sentencepiece(options, count);
  PairMerger::Options learning{.vocab_size = options.vocab_size, .min_frequency = options.min_frequency, .join = {}};
  if (options.progress)
    learning.progress = [&](std::int64_t tokens) {
      options.progress(static_cast<std::uint64_t>(tokens), static_cast<std::uint64_t>(options.vocab_size), "tokens");
    };
  const double start = monotonic_s();
  if (options.type == TokenizerType::bpe) {
    const PreTokenizer cutter;
    const auto next_cut = [&](std::string_view text, std::size_t from) { return cutter.next_cut(text, from); };
    const auto make_cutter = [&]() -> WordCutter {
      return [&cutter, match = PreTokenizer::Match(cutter)](std::string_view text, WordCounts& counts) mutable {
        cutter.pieces(text, match, [&](std::string_view word) { counts.add(word); });
      };
    };
    const WordCounts words = count_words(count, {next_cut, make_cutter, options.memory_bytes}, report);
    report.read_s = monotonic_s() - start;
    const LearnedBpe learned = learn_bpe(words, specials, learning);
    report.merges = learned.merges.size();
    report.tokens = static_cast<std::int64_t>(learned.tokens.size());
    report.learn_s = monotonic_s() - start - report.read_s;
    trained.files = bpe_files(learned, specials);
    return trained;
  }
  const BertTextOptions text_options{.strip_accents = options.lowercase, .lowercase = options.lowercase};
  const auto make_cutter = [&]() -> WordCutter {
    return [cutter = std::make_shared<BertText>(text_options)](std::string_view text, WordCounts& counts) {
      cutter->words(text, [&](std::string_view word) { counts.add(word); });
    };
  };
  const WordCounts words = count_words(count, {next_blank, make_cutter, options.memory_bytes}, report);
  report.read_s = monotonic_s() - start;
  const std::vector<std::string> tokens = learn_wordpiece(words, specials, learning);
  report.tokens = static_cast<std::int64_t>(tokens.size());
  report.learn_s = monotonic_s() - start - report.read_s;
  trained.files = wordpiece_files(tokens, specials, options.lowercase ? LetterCase::lowered : LetterCase::kept);
  return trained;
}

}  // namespace megalith::tokenizer
