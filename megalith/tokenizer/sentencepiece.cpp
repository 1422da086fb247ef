#include "megalith/tokenizer/sentencepiece.h"

#include <limits>
#include <unordered_map>
#include <utility>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"

namespace megalith::tokenizer {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

/// A piece as text: its marks are spaces, <0x0A> is a byte.
std::string shown_piece(const sentencepiece::SentencePieceProcessor& model, int id) {
  const std::string& piece = model.IdToPiece(id);
  if (model.IsByte(id)) return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
  std::string text;
  for (std::size_t at = 0; at < piece.size();) {
    const bool is_mark = std::string_view(piece).substr(at).starts_with(kSpaceMark);
    text += is_mark ? ' ' : piece[at];
    at += is_mark ? kSpaceMark.size() : 1;
  }
  return text;
}

class SentencePiece final : public Tokenizer {
 public:
  explicit SentencePiece(io::Fs& fs, const io::Path& file) {
    const io::MappedFile mapped = fs.map(file);
    const auto loaded = model_.LoadFromSerializedProto(mapped.text());
    if (!loaded.ok() || model_.GetPieceSize() == 0)
      throw InputError(str("[", file.string(), "] must be a sentencepiece model: ", loaded.ToString()));
    content_hash_ = fnv1a(mapped.text());
    for (int id = 0; id < model_.GetPieceSize(); ++id) shown_.push_back(shown_piece(model_, id));
    if (model_.eos_id() < 0) throw InputError(str("[", file.string(), "] has no </s>: documents end with it"));
    std::vector<std::string> pieces;
    if (model_.Encode("a", &pieces).ok() && !pieces.empty()) gets_space_ = pieces[0].starts_with(kSpaceMark);
  }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid != text.size()) throw EncodeError(name(), valid, "must be UTF-8");
    std::vector<int> found;
    const auto encoded = model_.Encode(text, &found);
    if (!encoded.ok()) throw InputError(str("[sentencepiece tokenizer] ", encoded.ToString()));
    ids.insert(ids.end(), found.begin(), found.end());
  }
  std::size_t next_cut(std::string_view text, std::size_t) const override { return text.size(); }
  std::string_view token_bytes(std::int32_t id) const override { return shown_[static_cast<std::size_t>(id)]; }
  Index vocab_size() const override { return static_cast<Index>(shown_.size()); }
  std::int32_t end_of_document() const override { return model_.eos_id(); }
  std::optional<std::int32_t> special(Special which) const override {
    switch (which) {
      case Special::cls:
        return first_of({"[CLS]"}, model_.bos_id());
      case Special::sep:
        return first_of({"[SEP]"}, model_.eos_id());
      case Special::mask:
        return first_of({"[MASK]", "<mask>"}, -1);
      case Special::pad:
        return first_of({"[PAD]", "<pad>"}, model_.pad_id());
      case Special::unk:
        return first_of({}, model_.unk_id());
    }
    return std::nullopt;
  }
  std::vector<std::int32_t> added_tokens() const override {
    // The library does not return which pieces are user-defined. Its trainer writes them before the bytes.
    int first_byte = 0;
    while (first_byte < model_.GetPieceSize() && !model_.IsByte(first_byte)) ++first_byte;
    const bool has_bytes = first_byte < model_.GetPieceSize();
    std::vector<std::int32_t> ids;
    for (int id = 0; id < model_.GetPieceSize(); ++id)
      if (model_.IsControl(id) || model_.IsUnknown(id) || (has_bytes && id < first_byte)) ids.push_back(id);
    return ids;
  }
  bool starts_word(std::int32_t id) const override {
    return model_.IsControl(id) || model_.IsUnknown(id) || shown_[static_cast<std::size_t>(id)].starts_with(' ');
  }
  std::string_view name() const override { return "sentencepiece"; }
  std::uint64_t content_hash() const override { return content_hash_; }

 protected:
  bool text_gets_space() const override { return gets_space_; }

 private:
  std::optional<std::int32_t> first_of(std::initializer_list<const char*> pieces, int otherwise) const {
    for (const char* piece : pieces)
      if (const int id = model_.PieceToId(piece); !model_.IsUnknown(id)) return id;
    if (otherwise < 0) return std::nullopt;
    return otherwise;
  }

  sentencepiece::SentencePieceProcessor model_;
  std::vector<std::string> shown_;
  std::uint64_t content_hash_ = 0;
  bool gets_space_ = false;
};

constexpr std::size_t kLongestSentence = 4096;

/// Adds the lines of a text. Long ones are cut at a space, or between characters if there is none.
void add_sentences(std::string_view text, WordCounts& sentences) {
  while (!text.empty()) {
    std::size_t size = text.substr(0, kLongestSentence).find('\n');
    std::size_t after = size + 1;
    if (size == std::string_view::npos) {
      size = std::min(text.size(), kLongestSentence);
      if (size < text.size()) {
        const std::size_t space = text.substr(0, size).rfind(' ');
        if (space != std::string_view::npos && space > 0) size = space;
        while (size > 1 && (text[size] & 0xC0) == 0x80) --size;
      }
      after = size;
    }
    if (size > 0) sentences.add(text.substr(0, size));
    text.remove_prefix(std::min(after, text.size()));
  }
}

/// Where the line ends.
std::size_t next_line_end(std::string_view text, std::size_t from) {
  return std::min(text.find('\n', from == 0 ? 1 : from), text.size());
}

/// Returns each sentence to the library as often as it was counted.
class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const WordCounts& counts) : counts_(counts) { set_value(); }
  bool done() const override { return at_ == counts_.size(); }
  void Next() override {
    if (++times_ == counts_[at_].count) {
      ++at_;
      times_ = 0;
      set_value();
    }
  }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void set_value() {
    if (!done()) value_ = counts_[at_].text;
  }
  const WordCounts& counts_;
  std::size_t at_ = 0;
  std::uint64_t times_ = 0;
  std::string value_;
};

}  // namespace

std::shared_ptr<const Tokenizer> load_sentencepiece(io::Fs& fs, const io::Path& vocab_dir) {
  return std::make_shared<SentencePiece>(fs, sentencepiece_path(fs, vocab_dir));
}

TrainedTokenizer train_sentencepiece(const TrainerOptions& options, const CountWords& count) {
  TrainedTokenizer trained;
  TrainerReport& report = trained.report;
  const double start = monotonic_s();
  const std::uint64_t memory_bytes = options.memory_bytes / 8;  // the library keeps several copies
  const WordCounts sentences =
      count_words(count, {next_line_end, [] { return WordCutter(add_sentences); }, memory_bytes}, report);
  report.read_s = monotonic_s() - start;
  std::string specials;
  for (const std::string& special : options.specials) {
    if (special.find(',') != std::string::npos)
      throw ConfigError(str("--special ", special, ": must hold no comma: the sentencepiece library takes a list"));
    specials += (specials.empty() ? "" : ",") + special;
  }
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", options.type == TokenizerType::sentencepiece_bpe ? "bpe" : "unigram"},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"normalization_rule_name", options.lowercase ? "nmt_nfkc_cf" : "nmt_nfkc"},
      {"byte_fallback", "true"},
      {"pad_id", "3"},
      {"user_defined_symbols", specials},
      {"num_threads", "16"},
      {"minloglevel", "2"}};
  sentencepiece::SetRandomGeneratorSeed(1);
  Sentences iterator(sentences);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &iterator, &model);
  if (!status.ok())
    throw InputError(str("[sentencepiece] no vocabulary of ", options.vocab_size, " pieces from ", report.text_bytes,
                         " bytes: ", status.ToString()));
  report.tokens = options.vocab_size;
  report.learn_s = monotonic_s() - start - report.read_s;
  trained.files.push_back({"tokenizer.model", std::move(model)});
  return trained;
}

}  // namespace megalith::tokenizer
