#include "megalith/data/corpus_builder.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/ordered_work.h"
#include "megalith/data/sentences.h"

namespace megalith::data {
namespace {

/// The ids of a block, cut where documents end.
struct EncodedBlock {
  struct Part {
    std::size_t end;  // in its ids
    bool ends_sequence, ends_document;
  };
  std::size_t file = 0;
  std::vector<std::int32_t> ids;
  std::vector<Part> parts;
  Index bytes = 0, text_bytes = 0;
};

/// A block of a corpus. If the tokenizer has a cutter, its pieces.
struct TextBlock {
  struct Cut {
    tokenizer::CutText text;
    std::uint64_t offset;  // where it begins in its file, by the bytes of its tokens
  };
  CorpusBlock corpus;
  std::vector<Cut> cuts{};
  Index text_bytes = 0;  // of the cut pieces
};

std::size_t held_bytes(const TextBlock& block) {
  std::size_t bytes = held_bytes(block.corpus);
  for (const TextBlock::Cut& cut : block.cuts) bytes += cut.text.bytes.size();
  return bytes;
}

/// Passes blocks of the reader, in order, through the tokenizer's cutter, if it has one.
class BlockCutter {
 public:
  BlockCutter(CorpusReader& reader, const tokenizer::Tokenizer& tokenizer,
              std::unique_ptr<tokenizer::TextCutter> cutter, const CorpusOptions& options)
      : reader_(reader),
        tokenizer_(tokenizer),
        cutter_(std::move(cutter)),
        text_(text_reader(options)),
        max_held_(static_cast<std::size_t>(options.reading.max_line_bytes)) {}

  static CorpusText text_reader(const CorpusOptions& options) {
    return CorpusText(options.key, options.invalid_utf8 == InvalidUtf8::fail ? CorpusText::Invalid::fail
                                                                             : CorpusText::Invalid::replace);
  }

  std::optional<TextBlock> next() {
    std::optional<CorpusBlock> block = reader_.next();
    if (!block) return std::nullopt;
    TextBlock out{.corpus = std::move(*block)};
    if (cutter_ && out.corpus.format == CorpusFormat::text) cut(out);
    return out;
  }

 private:
  void cut(TextBlock& out) {
    for (CorpusPiece& piece : out.corpus.pieces) {
      if (begins_document_) offset_ = piece.offset;
      TextBlock::Cut& cut = out.cuts.emplace_back(TextBlock::Cut{.text = {}, .offset = offset_});
      const std::string_view text = text_.raw(out.corpus, piece);
      try {
        cutter_->push(text, piece.ends_document, cut.text);
      } catch (const tokenizer::EncodeError& error) {
        CorpusText::fail(out.corpus, piece, error.offset(), error.rule());
      }
      if (cutter_->held_bytes() > max_held_)
        CorpusText::fail(out.corpus, piece, 0,
                         str("comes after over ", max_held_,
                             " bytes that the tokenizer cannot cut, the most that it "
                             "may take at once; ",
                             kMaxLineSetting));
      out.text_bytes += static_cast<Index>(text.size());
      offset_ += cut.text.bytes.size();
      for (const tokenizer::CutText::Piece& literal : cut.text.pieces)
        if (literal.id >= 0) offset_ += tokenizer_.token_bytes(literal.id).size();
      begins_document_ = piece.ends_document;
      piece.bytes = {};
    }
    out.corpus.held = {};
  }

  CorpusReader& reader_;
  const tokenizer::Tokenizer& tokenizer_;
  std::unique_ptr<tokenizer::TextCutter> cutter_;
  CorpusText text_;
  std::size_t max_held_;
  bool begins_document_ = true;
  std::uint64_t offset_ = 0;  // in the document, of what the cutter returned
};

/// Turns the pieces of a block into ids. One per thread.
class BlockEncoder {
 public:
  BlockEncoder(const tokenizer::Tokenizer& tokenizer, const CorpusOptions& options)
      : tokenizer_(tokenizer), options_(options), text_(BlockCutter::text_reader(options)) {}

  void encode(const TextBlock& text, EncodedBlock& out) {
    const CorpusBlock& block = text.corpus;
    out.ids.clear();
    out.parts.clear();
    out.bytes = block.bytes;
    out.text_bytes = text.text_bytes;
    out.file = block.file_number;
    for (std::size_t i = 0; i < block.pieces.size(); ++i) {
      const CorpusPiece& piece = block.pieces[i];
      if (text.cuts.empty())
        encode_text(text_.raw(block, piece), block, piece, out);
      else
        encode_cut(text.cuts[i], block, piece, out);
    }
  }

 private:
  void encode_text(std::string_view text, const CorpusBlock& block, const CorpusPiece& piece, EncodedBlock& out) {
    const std::size_t before = out.ids.size();
    out.text_bytes += static_cast<Index>(text.size());
    const auto encode = [&](std::string_view part) {
      try {
        tokenizer_.encode(part, out.ids);
      } catch (const tokenizer::EncodeError& error) {
        CorpusText::fail(block, piece, static_cast<std::size_t>(part.data() - text.data()) + error.offset(),
                         error.rule());
      }
    };
    if (options_.sequences == Sequences::sentences) {
      for_each_sentence(text, [&](std::string_view sentence) {
        encode(sentence);
        out.parts.push_back({out.ids.size(), true, false});
      });
    } else {
      encode(text);
    }
    end_piece(before, block, piece, out);
  }

  void encode_cut(const TextBlock::Cut& cut, const CorpusBlock& block, CorpusPiece piece, EncodedBlock& out) {
    const std::size_t before = out.ids.size();
    tokenizer_.encode_cut(cut.text, out.ids);
    piece.offset = cut.offset;
    end_piece(before, block, piece, out);
  }

  /// `before`: the number of ids before those of the piece.
  void end_piece(std::size_t before, const CorpusBlock& block, const CorpusPiece& piece, EncodedBlock& out) {
    if (options_.end_of_document == EndOfDocument::append) {
      const std::int32_t end = tokenizer_.end_of_document();
      const auto first = out.ids.begin() + static_cast<std::ptrdiff_t>(before);
      const auto found = std::find(first, out.ids.end(), end);
      if (found != out.ids.end())
        CorpusText::fail(block, piece, tokenizer_.decode({first, found}).size(),
                         str("is token ", end, ", which ends a document: remove it, or append no end of document"));
    }
    out.parts.push_back({out.ids.size(), false, piece.ends_document});
  }

  const tokenizer::Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  CorpusText text_;
};

/// Passes encoded blocks to a sink and counts.
class Writer {
 public:
  Writer(const CorpusReader& reader, const std::vector<io::Path>& inputs, const tokenizer::Tokenizer& tokenizer,
         const CorpusOptions& options, TokenSink& sink)
      : tokenizer_(tokenizer), options_(options), sink_(sink) {
    counts_.total_bytes = reader.total_bytes();
    for (const io::Path& input : inputs) counts_.files.push_back({.file = input.string()});
  }

  void write(const EncodedBlock& encoded) {
    CorpusFileCounts& file = counts_.files[encoded.file];
    std::size_t begin = 0;
    for (const EncodedBlock::Part& part : encoded.parts) {
      sink_.add(std::span(encoded.ids).subspan(begin, part.end - begin));
      open_tokens_ += static_cast<Index>(part.end - begin);
      const std::size_t part_begin = std::exchange(begin, part.end);
      open_sequence_ += static_cast<Index>(part.end - part_begin);
      if (part.ends_sequence && open_sequence_ > 0) end_sequence();
      if (part.ends_document) end_document(file);
    }
    counts_.bytes += encoded.bytes;
    file.stored_bytes += encoded.bytes;
    file.text_bytes += encoded.text_bytes;
    const double now = monotonic_s();
    file.seconds += now - std::exchange(written_s_, now);
    if (options_.progress) options_.progress(counts_);
  }
  const CorpusCounts& counts() const { return counts_; }

 private:
  void end_sequence() {
    sink_.end_sequence();
    ++counts_.sequences;
    open_sequence_ = 0;
  }

  void end_document(CorpusFileCounts& file) {
    if (open_tokens_ == 0) {
      ++counts_.empty_documents;
      ++file.empty_documents;
      return;
    }
    if (options_.end_of_document == EndOfDocument::append) {
      const std::int32_t end = tokenizer_.end_of_document();
      sink_.add({&end, 1});
      ++open_tokens_;
      ++open_sequence_;
    }
    if (open_sequence_ > 0) ++counts_.sequences;
    sink_.end_document();
    counts_.tokens += open_tokens_;
    file.tokens += open_tokens_;
    ++counts_.documents;
    ++file.documents;
    open_tokens_ = open_sequence_ = 0;
  }

  const tokenizer::Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  TokenSink& sink_;
  Index open_tokens_ = 0, open_sequence_ = 0;  // of the open document and the open sequence
  double written_s_ = monotonic_s();
  CorpusCounts counts_;
};

/// The first place >= from where a character begins, or an invalid part that becomes one U+FFFD.
std::size_t next_beginning(std::string_view text, std::size_t from) {
  const std::size_t last = std::min(from + 3, text.size());
  while (from < last && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  return std::min(from, text.size());
}

class BuilderSink final : public TokenSink {
 public:
  explicit BuilderSink(IndexedDatasetBuilder& builder) : builder_(builder) {}
  void add(std::span<const std::int32_t> ids) override { builder_.add(ids); }
  void end_sequence() override { builder_.end_sequence(); }
  void end_document() override { builder_.end_document(); }

 private:
  IndexedDatasetBuilder& builder_;
};

}  // namespace

CorpusCounts tokenize_corpus(io::Fs& fs, const std::vector<io::Path>& inputs, const tokenizer::Tokenizer& tokenizer,
                             const CorpusOptions& options, TokenSink& sink) {
  CorpusReader::Options reading = options.reading;
  reading.key = options.key;
  const bool in_sentences = options.sequences == Sequences::sentences;
  std::unique_ptr<tokenizer::TextCutter> cutter = in_sentences ? nullptr : tokenizer.make_cutter();
  CorpusReader reader(
      fs, inputs,
      [&, cuts = cutter != nullptr](std::string_view text, std::size_t from) {
        return in_sentences ? next_sentence(text, from)
               : cuts       ? next_beginning(text, from)
                            : tokenizer.next_cut(text, from);
      },
      reading);
  BlockCutter blocks(reader, tokenizer, std::move(cutter), options);
  Writer writer(reader, inputs, tokenizer, options, sink);
  work_in_order<EncodedBlock>(
      options.threads, [&] { return blocks.next(); },
      [&] {
        return [encoder = BlockEncoder(tokenizer, options)](const TextBlock& block, EncodedBlock& out) mutable {
          encoder.encode(block, out);
        };
      },
      [&](const EncodedBlock& encoded) { writer.write(encoded); });
  return writer.counts();
}

CorpusCounts build_corpus(io::Fs& fs, const std::vector<io::Path>& inputs, const tokenizer::Tokenizer& tokenizer,
                          const CorpusOptions& options, IndexedDatasetBuilder& builder) {
  BuilderSink sink(builder);
  const CorpusCounts counts = tokenize_corpus(fs, inputs, tokenizer, options, sink);
  if (counts.documents == 0)
    throw InputError(str("[input] no text in ", counts.bytes, " bytes of ", inputs.size(),
                         inputs.size() == 1 ? " file" : " files", ": nothing was built"));
  builder.finish();
  return counts;
}

}  // namespace megalith::data
