#include "megalith/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "megalith/base/hash.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/utf8.h"
#include "megalith/tokenizer/byte_level_bpe.h"
#include "megalith/tokenizer/sentencepiece.h"
#include "megalith/tokenizer/vocabulary_files.h"
#include "megalith/tokenizer/wordpiece.h"

namespace megalith::tokenizer {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"gpt2",       "bpe",           "bert-uncased",
                                                    "bert-cased", "sentencepiece", "byte"};

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i);
  }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::size_t next_cut(std::string_view text, std::size_t from) const override {
    // Any place keeps the ids. But repair_utf8 reads pieces one by one, so none may end inside a character.
    std::size_t p = std::min(from, text.size());
    while (p < text.size() && (text[p] & 0xC0) == 0x80) ++p;
    return p;
  }
  std::string_view token_bytes(std::int32_t id) const override { return {&bytes_[static_cast<std::size_t>(id)], 1}; }
  Index vocab_size() const override { return static_cast<Index>(bytes_.size()); }
  std::int32_t end_of_document() const override { return 0; }
  std::string_view name() const override { return "byte"; }
  std::uint64_t content_hash() const override { return fnv1a("byte"); }

 private:
  std::array<char, 256> bytes_{};
};

std::string_view checked_bytes(const Tokenizer& tokenizer, std::int32_t id, std::size_t place) {
  if (id < 0 || id >= tokenizer.vocab_size())
    throw InputError(str("[", tokenizer.name(), " tokenizer] ids[", place, "] = ", id, ": must be 0 to ",
                         tokenizer.vocab_size() - 1));
  return tokenizer.token_bytes(id);
}

/// Throws ConfigError for an unknown name, and if a tokenizer with files has no folder.
void require_known(std::string_view name, const io::Path& vocab_dir) {
  if (std::ranges::find(kNames, name) == kNames.end()) {
    const std::string_view near = nearest(name, kNames);
    throw ConfigError(str("tokenizer = \"", name, "\": must be ", tokenizer_names_text(),
                          near.empty() ? std::string() : str("; did you mean ", near, "?")));
  }
  if (vocab_dir.empty() && name != "byte")
    throw ConfigError(
        str("vocab_dir is not set: the ", name, " tokenizer reads ", vocabulary_file_names(name), " from that folder"));
}

}  // namespace

EncodeError::EncodeError(std::string_view tokenizer, std::size_t offset, std::string rule)
    : InputError(str("[", tokenizer, " tokenizer] byte ", offset, " of the text ", rule)),
      offset_(offset),
      rule_(std::move(rule)) {}

void Tokenizer::encode_cut(const CutText&, std::vector<std::int32_t>&) const {
  throw InternalError(str("[", name(), " tokenizer] cuts no texts that come in parts"));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encode(text, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) text += checked_bytes(*this, ids[i], i);
  if (text_gets_space() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::span<const std::string_view> tokenizer_names() { return kNames; }

std::string tokenizer_names_text() {
  std::string text(kNames[0]);
  for (std::size_t i = 1; i < kNames.size(); ++i) text += str(i + 1 == kNames.size() ? " or " : ", ", kNames[i]);
  return text;
}

std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, const io::Path& vocab_dir, io::Fs& fs) {
  require_known(name, vocab_dir);
  if (name == "byte") return std::make_shared<ByteTokenizer>();
  if (name.starts_with("bert-")) return load_wordpiece(fs, name, vocab_dir);
  if (name == "sentencepiece") return load_sentencepiece(fs, vocab_dir);
  BpeVocabulary vocabulary = load_bpe_vocabulary(fs, vocab_dir);
  if (!vocabulary.warning.empty()) log::warning(vocabulary.warning);
  return std::make_shared<ByteLevelBpe>(std::move(vocabulary), std::string(name));
}

Index count_ids(std::string_view name, const io::Path& vocab_dir, io::Fs& fs) {
  require_known(name, vocab_dir);
  const bool is_bpe = name == "gpt2" || name == "bpe";
  return is_bpe ? count_bpe_ids(fs, vocab_dir) : make_tokenizer(name, vocab_dir, fs)->vocab_size();
}

std::string StreamDecoder::push(std::int32_t id) {
  held_ += checked_bytes(*tokenizer_, id, 0);
  const std::size_t whole = held_.size() - incomplete_utf8_tail(held_);
  std::string shown = repair_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return shown;
}

std::string StreamDecoder::finish() { return repair_utf8(std::exchange(held_, {})); }

}  // namespace megalith::tokenizer
