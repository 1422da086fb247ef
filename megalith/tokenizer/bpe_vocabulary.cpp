#include "megalith/tokenizer/bpe_vocabulary.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/io/json_object.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/reader.h"
#include "megalith/tokenizer/tokenizer_json.h"
#include "megalith/tokenizer/unicode_text.h"

namespace megalith::tokenizer {
namespace {

// Tokens that end a text; the first that a file has is taken. GPT-2, GPT-4 and Qwen; Llama 3; RoBERTa; Gemma;
// DeepSeek. The last one ends a message of a chat: if a file has only that one, chats are its texts.
constexpr std::string_view kEndOfText[] = {
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>", "<|im_end|>"};

class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      characters_[byte] = visible ? byte : next++;
      bytes_[characters_[byte]] = static_cast<std::int16_t>(byte);
    }
  }
  std::string spelling(unsigned char byte) const {
    std::string text;
    append_utf8(characters_[byte], text);
    return text;
  }
  /// The bytes of a text in the alphabet; nothing if a character is outside of it.
  std::optional<std::string> bytes_of(std::string_view spelling) const {
    std::string bytes;
    for (std::size_t i = 0; i < spelling.size(); ++i) {
      unsigned character = static_cast<unsigned char>(spelling[i]);
      if (character >= 0x80) {  // characters of the alphabet have one or two bytes of UTF-8
        if ((character & 0xE0) != 0xC0 || i + 1 == spelling.size()) return std::nullopt;
        character = (character & 0x1F) << 6 | (static_cast<unsigned char>(spelling[++i]) & 0x3F);
      }
      if (character >= bytes_.size() || bytes_[character] < 0) return std::nullopt;
      bytes.push_back(static_cast<char>(bytes_[character]));
    }
    return bytes;
  }

 private:
  std::array<std::int16_t, 0x200> bytes_{};  // by character
  std::array<char32_t, 256> characters_{};   // by byte
};

using IdByBytes = std::unordered_map<std::string, std::int32_t>;

[[noreturn]] void refuse(const io::Path& file, std::uint64_t line, const std::string& text) {
  throw InputError(str("[", file.string(), "] line ", line, ", ", text));
}

io::Path first_existing(io::Fs& fs, const io::Path& dir, std::string_view a, std::string_view b) {
  if (fs.exists(dir / a)) return dir / a;
  if (fs.exists(dir / b)) return dir / b;
  throw InputError(str("[", (dir / a).string(), "] not found, nor ", b, " beside it", io::looked_for_in(dir),
                       "; set vocab_dir to the folder with the vocabulary's two files or tokenizer.json"));
}

/// encoder.json: {"token": id, ...}
std::vector<TokenEntry> read_encoder_json(io::Fs& fs, const io::Path& file) {
  std::vector<TokenEntry> entries;
  const io::MappedFile mapped = fs.map(file);
  io::visit_json_object(mapped.text(), file.string(), 1, [&](io::JsonMember& member) {
    if (member.kind != io::JsonMember::Kind::count)
      refuse(file, member.line,
             str("token \"", io::printable(member.key), "\": its id must be a whole number that is not negative"));
    entries.push_back({member.key, member.count, member.line});
  });
  return entries;
}

/// The highest id plus one. `max_holes` ids may have no token.
std::size_t num_ids(const io::Path& file, const std::vector<TokenEntry>& tokens, std::size_t max_holes) {
  std::size_t size = tokens.size();
  for (const TokenEntry& token : tokens) {
    if (token.id >= tokens.size() + max_holes)
      refuse(file, token.line,
             str("id = ", token.id, ": the ids of ", tokens.size(), " tokens must be 0 to ",
                 tokens.size() + max_holes - 1, ", each once"));
    size = std::max<std::size_t>(size, token.id + 1);
  }
  return size;
}

/// Fills tokens. Returns the ids of tokens that merges make, by their bytes. `max_holes` ids may have no token.
IdByBytes index_tokens(const io::Path& file, const std::vector<TokenEntry>& listed, const ByteAlphabet& alphabet,
                       std::size_t max_holes, BpeVocabulary& vocabulary) {
  struct Entry {
    std::string bytes;
    std::uint64_t id;
    std::size_t line;
    bool is_added;
  };
  std::vector<Entry> entries;
  entries.reserve(listed.size());
  for (const TokenEntry& token : listed) {
    std::optional<std::string> bytes = token.added ? token.spelling : alphabet.bytes_of(token.spelling);
    if (!bytes || bytes->empty())
      refuse(file, token.line,
             str("token \"", io::printable(token.spelling),
                 "\": must be written in the 256 characters of byte-level BPE"));
    entries.push_back({std::move(*bytes), token.id, token.line, token.added});
  }

  IdByBytes ids;
  ids.reserve(entries.size());
  const std::size_t size = num_ids(file, listed, max_holes);
  vocabulary.tokens.resize(size);
  vocabulary.is_added.resize(size);
  for (Entry& entry : entries) {
    std::string& token = vocabulary.tokens[entry.id];
    if (!token.empty()) refuse(file, entry.line, str("id = ", entry.id, ": two tokens have it; ids must be distinct"));
    vocabulary.is_added[entry.id] = entry.is_added;
    if (!entry.is_added && !ids.emplace(entry.bytes, static_cast<std::int32_t>(entry.id)).second)
      refuse(file, entry.line, str("id = ", entry.id, ": its token is already in the vocabulary under another id"));
    token = std::move(entry.bytes);
  }
  return ids;
}

void find_required_tokens(const io::Path& file, const IdByBytes& ids, BpeVocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(std::string(1, static_cast<char>(byte)));
    if (found == ids.end())
      throw InputError(str("[", file.string(), "] byte ", byte, " has no token: byte-level BPE needs all 256"));
    vocabulary.byte_ids[static_cast<std::size_t>(byte)] = found->second;
  }
  for (const std::string_view end : kEndOfText) {
    const auto found = std::ranges::find(vocabulary.tokens, end);
    if (found == vocabulary.tokens.end()) continue;
    vocabulary.end_of_document = static_cast<std::int32_t>(found - vocabulary.tokens.begin());
    return;
  }
  throw InputError(str("[", file.string(), "] token ", kEndOfText[0], " is missing: documents end with it"));
}

/// Reads merges "LEFT RIGHT" in rank order.
class MergeReader {
 public:
  enum class Order {
    makers_first,  ///< a merge uses results of earlier ones only; otherwise the file is damaged
    any            ///< vocabularies converted from ranks of tokens (Llama 3) use later ones too
  };
  MergeReader(const io::Path& file, const ByteAlphabet& alphabet, const IdByBytes& ids, std::size_t max_merges,
              Order order, BpeVocabulary& vocabulary)
      : file_(file),
        alphabet_(alphabet),
        ids_(ids),
        order_(order),
        vocabulary_(vocabulary),
        made_(vocabulary.tokens.size()) {
    for (const std::int32_t id : vocabulary.byte_ids) made_[static_cast<std::size_t>(id)] = true;
    vocabulary_.merges = MergeTable(max_merges);
  }

  void add(std::string_view content, std::uint64_t line) {
    const std::size_t space = content.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == content.size() ||
        content.find(' ', space + 1) != std::string_view::npos)
      refuse(file_, line,
             str("merge \"", io::printable(content), "\": must be two tokens with one space between them"));
    const std::int32_t left = token(content.substr(0, space), content, line);
    const std::int32_t right = token(content.substr(space + 1), content, line);
    const auto bytes = [&](std::int32_t id) -> const std::string& {
      return vocabulary_.tokens[static_cast<std::size_t>(id)];
    };
    const auto merged = ids_.find(bytes(left) + bytes(right));
    if (merged == ids_.end())
      refuse(file_, line,
             str("merge \"", io::printable(content), "\": the token that it makes is not in the vocabulary"));
    if (!vocabulary_.merges.insert(left, right, {.rank = rank_++, .merged = merged->second}))
      refuse(file_, line, str("merge \"", io::printable(content), "\": stands in the file twice"));
    made_[static_cast<std::size_t>(merged->second)] = true;
    vocabulary_.content_hash = hash_combine(vocabulary_.content_hash, fnv1a(content));
  }

  /// Call it at the end. Tokens that no merge makes come from no text: the file of merges may be cut.
  void look_for_unmade(const std::vector<TokenEntry>& tokens) {
    std::vector<std::int32_t> unmade;
    for (const TokenEntry& token : tokens) {
      const auto id = static_cast<std::int32_t>(token.id);
      if (!token.added && !made_[token.id] && id != vocabulary_.end_of_document) unmade.push_back(id);
    }
    if (unmade.empty()) return;
    const std::int32_t first = *std::ranges::min_element(unmade);
    vocabulary_.warning =
        str("[", file_.string(), "] its ", rank_, " merges do not make ", unmade.size(),
            " tokens of the vocabulary, the first of which is ", first, " (\"",
            io::printable(vocabulary_.tokens[static_cast<std::size_t>(first)]), "\"): was the file cut short?");
  }

 private:
  std::int32_t token(std::string_view spelling, std::string_view content, std::uint64_t line) const {
    const std::optional<std::string> bytes = alphabet_.bytes_of(spelling);
    const auto found = bytes ? ids_.find(*bytes) : ids_.end();
    if (found == ids_.end())
      refuse(file_, line,
             str("merge \"", io::printable(content), "\": token \"", io::printable(spelling),
                 "\" is not in the vocabulary"));
    if (order_ == Order::makers_first && !made_[static_cast<std::size_t>(found->second)])
      refuse(file_, line,
             str("merge \"", io::printable(content), "\": token \"", io::printable(spelling),
                 "\" is not a byte and no earlier merge makes it"));
    return found->second;
  }

  const io::Path& file_;
  const ByteAlphabet& alphabet_;
  const IdByBytes& ids_;
  Order order_;
  BpeVocabulary& vocabulary_;
  std::vector<bool> made_;
  std::int32_t rank_ = 0;
};

/// vocab.bpe.
void read_merges_file(io::Fs& fs, const io::Path& file, const std::vector<TokenEntry>& tokens,
                      const ByteAlphabet& alphabet, const IdByBytes& ids, BpeVocabulary& vocabulary) {
  const io::MappedFile mapped = fs.map(file);
  const std::string_view text = mapped.text();
  MergeReader merges(file, alphabet, ids, static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1,
                     MergeReader::Order::makers_first, vocabulary);
  each_merge(mapped.bytes(), file.string(),
             [&](std::string_view merge, std::uint64_t line) { merges.add(merge, line); });
  merges.look_for_unmade(tokens);
}

}  // namespace

MergeTable::MergeTable(std::size_t num_merges) : slots_(std::bit_ceil(2 * num_merges + 2)), mask_(slots_.size() - 1) {}

bool MergeTable::insert(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t i = slot_of(pair);
  while (slots_[i].pair != kFree) {
    if (slots_[i].pair == pair) return false;
    i = (i + 1) & mask_;
  }
  slots_[i] = {pair, merge};
  return true;
}

VocabularyPaths vocabulary_paths(io::Fs& fs, const io::Path& vocab_dir) {
  const io::Path whole = vocab_dir / "tokenizer.json";
  if (fs.exists(whole)) return {whole, {}};
  return {first_existing(fs, vocab_dir, "encoder.json", "vocab.json"),
          first_existing(fs, vocab_dir, "vocab.bpe", "merges.txt")};
}

namespace {

constexpr std::size_t kMaxHoles = 1024;  // GPT-4's has one

IdByBytes index_and_hash(const io::Path& file, const std::vector<TokenEntry>& tokens, const ByteAlphabet& alphabet,
                         std::size_t max_holes, BpeVocabulary& vocabulary) {
  IdByBytes ids = index_tokens(file, tokens, alphabet, max_holes, vocabulary);
  find_required_tokens(file, ids, vocabulary);
  vocabulary.content_hash = fnv1a("byte-level bpe");
  for (const std::string& token : vocabulary.tokens)
    vocabulary.content_hash = hash_combine(vocabulary.content_hash, fnv1a(token));
  return ids;
}

/// Checkpoints keep hashes of these numbers.
std::uint64_t behavior_number(const SplitRule& rule) {
  switch (rule.behavior) {
    case SplitRule::Behavior::isolated:
      return 3;
    case SplitRule::Behavior::removed:
      return rule.invert ? 2 : 1;
    case SplitRule::Behavior::merged_with_previous:
      return rule.invert ? 5 : 4;
    case SplitRule::Behavior::merged_with_next:
      return rule.invert ? 7 : 6;
    case SplitRule::Behavior::contiguous:
      return 8;
  }
  return 0;
}

/// Adds the differences from GPT-2 to the hash, so that GPT-2's tokenizer.json has the hash of its two files.
void hash_differences(const TokenizerJson& found, BpeVocabulary& vocabulary) {
  const auto add = [&](std::string_view text, std::uint64_t value) {
    vocabulary.content_hash = hash_combine(hash_combine(vocabulary.content_hash, fnv1a(text)), value);
  };
  const auto compiled = [](const SplitRule& rule) { return compile_rule(rule).pcre2; };
  const bool is_gpt2 = found.splits.size() == 1 && compiled(found.splits[0]) == compiled(gpt2_split()) &&
                       found.splits[0].behavior == SplitRule::Behavior::isolated;
  if (!is_gpt2)
    for (const SplitRule& rule : found.splits) add(compiled(rule), behavior_number(rule));
  if (!is_gpt2 && found.splits.empty()) add("one piece", 0);
  if (found.compose) add("NFC", 0);
  if (found.ignore_merges) add("ignore_merges", 0);
  for (const TokenEntry& token : found.literals) add(token.spelling, token.id);
}

BpeVocabulary load_tokenizer_json(io::Fs& fs, const io::Path& file) {
  const ByteAlphabet alphabet;
  BpeVocabulary vocabulary;
  const TokenizerJson found = read_tokenizer_json(fs, file);
  const IdByBytes ids = index_and_hash(file, found.tokens, alphabet, kMaxHoles, vocabulary);
  MergeReader merges(file, alphabet, ids, found.merges.size(), MergeReader::Order::any, vocabulary);
  for (std::size_t i = 0; i < found.merges.size(); ++i) merges.add(found.merges[i], i + 1);
  if (!found.ignore_merges) merges.look_for_unmade(found.tokens);
  hash_differences(found, vocabulary);
  vocabulary.splits = found.splits;
  vocabulary.compose = found.compose;
  vocabulary.ignore_merges = found.ignore_merges;
  std::string scratch;
  for (const TokenEntry& token : found.literals) {
    const auto id = static_cast<std::int32_t>(token.id);
    if (!token.normalized)
      vocabulary.literals.add(token.spelling, id);
    else
      vocabulary.composed_literals.add(found.compose ? composed(token.spelling, scratch) : token.spelling, id);
  }
  return vocabulary;
}

}  // namespace

void LiteralTokens::add(std::string_view bytes, std::int32_t id) {
  if (first_bytes_.find(bytes[0]) == std::string::npos) first_bytes_ += bytes[0];
  longest_ = std::max(longest_, bytes.size());
  for (std::size_t end = 1; end <= bytes.size(); ++end)
    if (ends_in_white_space(bytes, end)) hold_white_space_ = true;
  trie_.insert(PieceTrie::kWord, bytes, id);
}

void each_merge(std::span<const std::byte> file, std::string_view name,
                const std::function<void(std::string_view, std::uint64_t)>& use) {
  io::Reader lines(file, name);
  while (const auto line = lines.next_line()) {
    const bool header = lines.line() == 1 && line->starts_with("#version");
    const bool empty_end = line->empty() && lines.at_end();
    if (!header && !empty_end) use(*line, lines.line());
  }
}

std::string byte_spelling(unsigned char byte) { return ByteAlphabet().spelling(byte); }

Index count_bpe_ids(io::Fs& fs, const io::Path& vocab_dir) {
  const auto [tokens_file, merges_file] = vocabulary_paths(fs, vocab_dir);
  const bool is_json = merges_file.empty();
  const std::vector<TokenEntry> tokens =
      is_json ? read_tokenizer_json(fs, tokens_file).tokens : read_encoder_json(fs, tokens_file);
  if (tokens.empty()) throw InputError(str("[", tokens_file.string(), "] has no tokens"));
  return static_cast<Index>(num_ids(tokens_file, tokens, is_json ? kMaxHoles : 0));
}

BpeVocabulary load_bpe_vocabulary(io::Fs& fs, const io::Path& vocab_dir) {
  const auto [tokens_file, merges_file] = vocabulary_paths(fs, vocab_dir);
  if (merges_file.empty()) return load_tokenizer_json(fs, tokens_file);
  const ByteAlphabet alphabet;
  BpeVocabulary vocabulary;
  const std::vector<TokenEntry> tokens = read_encoder_json(fs, tokens_file);
  const IdByBytes ids = index_and_hash(tokens_file, tokens, alphabet, 0, vocabulary);
  vocabulary.is_added[static_cast<std::size_t>(vocabulary.end_of_document)] = true;
  read_merges_file(fs, merges_file, tokens, alphabet, ids, vocabulary);
  return vocabulary;
}

}  // namespace megalith::tokenizer
