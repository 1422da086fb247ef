#include "megalith/tokenizer/wordpiece.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/reader.h"
#include "megalith/tokenizer/tokenizer_json.h"
#include "megalith/tokenizer/unicode_text.h"
#include "megalith/tokenizer/vocabulary_files.h"

namespace megalith::tokenizer {

std::vector<std::string> read_vocab_txt(io::Fs& fs, const io::Path& file) {
  const io::MappedFile mapped = fs.map(file);
  std::vector<std::string> tokens;
  std::unordered_map<std::string_view, std::uint64_t> line_of;
  io::Reader lines(mapped.bytes(), file.string());
  const auto refuse = [&](std::string_view rule) {
    throw InputError(str("[", file.string(), "] line ", lines.line(), ", ", rule));
  };
  while (const auto line = lines.next_line()) {
    if (line->empty()) refuse("must hold a token");
    if (!is_utf8(*line)) refuse("must be UTF-8");
    const auto [known, is_new] = line_of.emplace(*line, lines.line());
    if (!is_new) refuse(str("token \"", io::printable(*line), "\": is on line ", known->second, " too"));
    tokens.emplace_back(*line);
  }
  return tokens;
}

io::Path wordpiece_path(io::Fs& fs, std::string_view name, const io::Path& vocab_dir) {
  for (const std::string& file : {std::string("vocab.txt"), str(name, "-vocab.txt"), std::string("tokenizer.json")})
    if (fs.exists(vocab_dir / file)) return vocab_dir / file;
  throw InputError(
      str("[", vocab_dir.string(), "] has no ", vocabulary_file_names(name), io::looked_for_in(vocab_dir)));
}

std::shared_ptr<const Tokenizer> load_wordpiece(io::Fs& fs, std::string_view name, const io::Path& vocab_dir) {
  const io::Path file = wordpiece_path(fs, name, vocab_dir);
  const bool is_uncased = name == "bert-uncased";
  WordPieceVocabulary vocabulary;
  if (file.extension() == ".json") {
    vocabulary = read_wordpiece_json(fs, file);
    if (vocabulary.text.lowercase != is_uncased)
      throw InputError(str("[", file.string(), "] normalizer.lowercase = ", is_uncased ? "false" : "true", ": must be ",
                           is_uncased ? "true" : "false", " for ", name, "; use ",
                           is_uncased ? "bert-cased" : "bert-uncased"));
  } else {
    vocabulary = {.tokens = read_vocab_txt(fs, file), .text = {.strip_accents = is_uncased, .lowercase = is_uncased}};
  }
  return std::make_shared<WordPiece>(std::string(name), file, std::move(vocabulary));
}

WordPiece::WordPiece(std::string name, const io::Path& file, WordPieceVocabulary vocabulary)
    : name_(std::move(name)), vocabulary_(std::move(vocabulary)) {
  const std::string& continuation = vocabulary_.continuation;
  const BertTextOptions& text = vocabulary_.text;
  content_hash_ = hash_combine(fnv1a("wordpiece"), fnv1a(continuation));
  content_hash_ = hash_combine(content_hash_, vocabulary_.max_characters);
  for (const bool option : {text.clean_text, text.handle_chinese_chars, text.strip_accents, text.lowercase})
    content_hash_ = hash_combine(content_hash_, option ? 1 : 0);
  for (std::size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
    const std::string& token = vocabulary_.tokens[i];
    const auto id = static_cast<std::int32_t>(i);
    content_hash_ = hash_combine(content_hash_, fnv1a(token));
    if (token == vocabulary_.unknown) unknown_ = id;
    if (starts_word(id)) {
      shown_.push_back(token.empty() ? std::string() : " " + token);
    } else {
      shown_.push_back(token.substr(continuation.size()));
      trie_.insert(PieceTrie::kContinuation, shown_.back(), id);
    }
    if (!token.empty()) trie_.insert(PieceTrie::kWord, token, id);  // a word may also begin with "##"
  }
  if (unknown_ < 0)
    throw InputError(
        str("[", file.string(), "] token ", vocabulary_.unknown, " is missing: words of no tokens get it"));
  const std::optional<std::int32_t> end = special(Special::sep);
  if (!end) throw InputError(str("[", file.string(), "] token [SEP] is missing: documents end with it"));
  end_of_document_ = *end;
}

bool WordPiece::starts_word(std::int32_t id) const {
  const std::string& token = vocabulary_.tokens[static_cast<std::size_t>(id)];
  return token.size() <= vocabulary_.continuation.size() || !token.starts_with(vocabulary_.continuation);
}

std::optional<std::int32_t> WordPiece::special(Special which) const {
  const auto find = [&](std::string_view token) -> std::optional<std::int32_t> {
    const auto found = std::ranges::find(vocabulary_.tokens, token);
    if (found == vocabulary_.tokens.end()) return std::nullopt;
    return static_cast<std::int32_t>(found - vocabulary_.tokens.begin());
  };
  switch (which) {
    case Special::cls:
      return find("[CLS]");
    case Special::sep:
      return find("[SEP]");
    case Special::mask:
      return find("[MASK]");
    case Special::pad:
      return find("[PAD]");
    case Special::unk:
      return unknown_;
  }
  return std::nullopt;
}

void WordPiece::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid != text.size()) throw EncodeError(name(), valid, "must be UTF-8");
  auto scratch = pool_.borrow([&] { return std::make_unique<Scratch>(vocabulary_.text); });
  scratch->text.words(
      text, [&](std::string_view word) { scratch->cache.append(word, ids, [&] { encode_word(word, ids); }); });
}

void WordPiece::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  const auto begins_character = [](char c) { return (c & 0xC0) != 0x80; };
  if (word.size() > vocabulary_.max_characters &&
      static_cast<std::size_t>(std::ranges::count_if(word, begins_character)) > vocabulary_.max_characters)
    return ids.push_back(unknown_);
  const std::size_t before = ids.size();
  std::uint32_t root = PieceTrie::kWord;
  for (std::string_view rest = word; !rest.empty();) {
    const PieceTrie::Found piece = trie_.longest(root, rest);
    if (piece.id < 0) {
      ids.resize(before);
      return ids.push_back(unknown_);
    }
    ids.push_back(piece.id);
    rest.remove_prefix(piece.size);
    root = PieceTrie::kContinuation;
  }
}

std::size_t WordPiece::next_cut(std::string_view text, std::size_t from) const { return next_blank(text, from); }

std::string WordPiece::unicode_version() const { return unicode_tables_version(); }

}  // namespace megalith::tokenizer
