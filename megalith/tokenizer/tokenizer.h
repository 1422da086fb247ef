#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/types.h"
#include "megalith/io/fs.h"

namespace megalith::tokenizer {

/// A text that a tokenizer cannot encode. The error names the byte within the text; a caller that knows the file adds
/// it.
class EncodeError : public InputError {
 public:
  EncodeError(std::string_view tokenizer, std::size_t offset, std::string rule);
  std::size_t offset() const { return offset_; }     ///< of the first invalid byte
  const std::string& rule() const { return rule_; }  ///< "must be ..."

 private:
  std::size_t offset_;
  std::string rule_;
};

/// Tokens that stand for no text.
enum class Special { cls, sep, mask, pad, unk };

/// A text, or a part of it, cut into pieces that are encoded one by one.
struct CutText {
  struct Piece {
    std::uint32_t size;    // in bytes
    std::int32_t id = -1;  // the id of a literal token, whose bytes are not in `bytes`
  };
  std::string bytes{};
  std::vector<Piece> pieces{};
};

/// Cuts a text that comes in parts. One thread at a time.
class TextCutter {
 public:
  virtual ~TextCutter() = default;
  /// Appends the decided pieces. `part` must end where a character ends. `ends` marks the last part, with which all is
  /// decided; the next one begins another text. Throws EncodeError as Tokenizer::encode() does, by the byte of the
  /// part.
  virtual void push(std::string_view part, bool ends, CutText& out) = 0;
  /// The size of the text that is not decided yet.
  virtual std::size_t held_bytes() const = 0;
};

/// Text to token ids and back. Every member is const and may be called by any number of threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text` to `ids`. No id is added before or after them, and no special token is recognised in
  /// the text. Throws EncodeError if the text is not UTF-8 (gpt2; repair_utf8 repairs it).
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  std::vector<std::int32_t> encode(std::string_view text) const;

  /// The bytes of the ids. They need not be UTF-8: a token can end inside a character (StreamDecoder). bert-* and
  /// sentencepiece return words with single spaces between them, without a space before the first. Throws InputError
  /// naming the position of an id outside [0, vocab_size()).
  std::string decode(std::span<const std::int32_t> ids) const;

  /// The smallest offset p >= `from` where a text can be cut without changing its ids: encode(text) is encode(text[0,
  /// p)) followed by encode(text[p, end)). Never inside a character. text.size() if there is no such place.
  virtual std::size_t next_cut(std::string_view text, std::size_t from) const = 0;

  /// A cutter for texts that come in parts, if next_cut() cannot cut within a text. Null: next_cut() can, or the
  /// tokenizer needs the whole text. The tokenizer must outlive it.
  virtual std::unique_ptr<TextCutter> make_cutter() const { return nullptr; }
  /// Appends the ids of a result of its cutter. All of them together are the ids of the text.
  virtual void encode_cut(const CutText& cut, std::vector<std::int32_t>& ids) const;

  /// The bytes of one token; valid as long as the tokenizer. The id must be in [0, vocab_size()).
  virtual std::string_view token_bytes(std::int32_t id) const = 0;

  virtual Index vocab_size() const = 0;
  /// The id that ends a document: <|endoftext|> for gpt2, [SEP] for bert-*, byte 0 for byte.
  virtual std::int32_t end_of_document() const = 0;
  /// The id of such a token; nothing if the vocabulary has none. encode() returns unk only.
  virtual std::optional<std::int32_t> special(Special) const { return std::nullopt; }
  /// Whether a word begins with this token, for masking word by word. The id must be in [0, vocab_size()). True for
  /// each special token, and for each byte of "byte".
  virtual bool starts_word(std::int32_t) const { return true; }
  /// Ids of special and added tokens, as the files list them. Empty if the files do not list them.
  virtual std::vector<std::int32_t> added_tokens() const { return {}; }
  virtual std::string_view name() const = 0;
  /// Equal for equal vocabularies, whatever the layout of their files. A checkpoint keeps it.
  virtual std::uint64_t content_hash() const = 0;
  /// The Unicode version of the tables by which it cuts text, "14.0.0". It is a part of the identity, as another
  /// version may cut new characters differently. Empty if there are no tables. A checkpoint keeps it.
  virtual std::string unicode_version() const { return {}; }

 protected:
  /// Whether the bytes of a text's first token begin with a space that the text does not have.
  virtual bool text_gets_space() const { return false; }
};

std::span<const std::string_view> tokenizer_names();
/// "gpt2, bpe, ... or byte".
std::string tokenizer_names_text();

/// Makes a tokenizer.
///   "gpt2"  byte-level BPE from vocab_dir/tokenizer.json, or vocab_dir/encoder.json (or vocab.json) and
///           vocab_dir/vocab.bpe (or merges.txt), with GPT-2's cutting; reads about 1.5 MB in about 50 ms. Source:
///           Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.2.
///   "bpe"   the same, for vocabularies other than GPT-2's.
///   "bert-uncased", "bert-cased"  WordPiece from vocab_dir/vocab.txt, or vocab_dir/tokenizer.json.
///   "sentencepiece"  vocab_dir/tokenizer.model, or the only *.model there, if the program has that library.
///   "byte"  ids 0..255 are the bytes; byte 0 ends a document, so that the vocabulary stays 256. Needs no files.
/// Throws ConfigError for an unknown name or a missing vocab_dir, InputError for files that break a rule (file, line,
/// entry), IoError.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, const io::Path& vocab_dir, io::Fs& fs);

/// vocab_size() of make_tokenizer(name, vocab_dir), which is the highest id plus one. For byte-level BPE only the
/// tokens are read; merges are not checked. Throws the same errors.
Index count_ids(std::string_view name, const io::Path& vocab_dir, io::Fs& fs);

/// Decodes ids one by one to whole characters, for text that is shown while it is generated. Bytes of an incomplete
/// character are kept until it is complete. Bytes that cannot become a character are shown as U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  /// The characters that this id completes; often "". Throws InputError like decode().
  std::string push(std::int32_t id);
  /// The bytes that are still kept, at the end of the text.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace megalith::tokenizer
