#include "megalith/data/corpus_builder.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/data/json_object.h"

namespace megalith::data {
namespace {

/// The ids of a block, cut where documents end.
struct EncodedBlock {
  struct Part {
    std::size_t end;  // of its ids
    bool ends_document;
  };
  std::vector<std::int32_t> ids;
  std::vector<Part> parts;
  Index bytes = 0;
};

/// Turns the pieces of a block into ids. One for each thread.
class BlockEncoder {
 public:
  BlockEncoder(const Tokenizer& tokenizer, const CorpusOptions& options) : tokenizer_(tokenizer), options_(options) {}

  void encode(const CorpusBlock& block, EncodedBlock& out) {
    out.ids.clear();
    out.parts.clear();
    out.bytes = block.bytes;
    for (const CorpusPiece& piece : block.pieces) {
      const std::string_view bytes = repaired(piece.bytes);
      if (block.format == CorpusFormat::json_lines) {
        if (bytes.find_first_not_of(" \t\r") == std::string_view::npos) continue;  // an empty line is no document
        read_json_text(bytes, block.file, piece.line, options_.key, text_);
        encode_text(text_, block, piece, out);
      } else {
        encode_text(bytes, block, piece, out);
      }
    }
  }

 private:
  std::string_view repaired(std::string_view bytes) {
    if (options_.invalid_utf8 == InvalidUtf8::fail || valid_utf8_prefix(bytes) == bytes.size()) return bytes;
    repaired_ = repair_utf8(bytes);
    return repaired_;
  }

  void encode_text(std::string_view text, const CorpusBlock& block, const CorpusPiece& piece, EncodedBlock& out) {
    const std::size_t before = out.ids.size();
    const auto fail = [&](std::size_t offset, std::string_view rule) {
      if (block.format == CorpusFormat::json_lines)
        throw InputError(str("[", block.file, "] line ", piece.line, ", byte ", offset, " of the text ", rule));
      throw InputError(str("[", block.file, "] byte ", piece.offset + offset, " ", rule));
    };
    try {
      tokenizer_.encode(text, out.ids);
    } catch (const EncodeError& error) {
      fail(error.offset(), error.rule());
    }
    if (options_.end_of_document == EndOfDocument::append) {
      const std::int32_t end = tokenizer_.end_of_document();
      const auto first = out.ids.begin() + static_cast<std::ptrdiff_t>(before);
      const auto found = std::find(first, out.ids.end(), end);
      if (found != out.ids.end())
        fail(tokenizer_.decode({first, found}).size(),
             str("is token ", end, ", which ends a document: remove it, or append no end of document"));
    }
    out.parts.push_back({out.ids.size(), piece.ends_document});
  }

  const Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  std::string repaired_, text_;
};

/// Threads take blocks in order, encode them side by side, and write them in order: a block's ticket is its turn.
class Pipeline {
 public:
  Pipeline(CorpusReader& reader, const Tokenizer& tokenizer, const CorpusOptions& options, TokenSink& sink)
      : reader_(reader), tokenizer_(tokenizer), options_(options), sink_(sink) {
    counts_.total_bytes = reader.total_bytes();
  }

  CorpusCounts run() {
    {
      std::vector<std::jthread> helpers;
      for (int i = 1; i < options_.threads; ++i) helpers.emplace_back([this] { work(); });
      work();
    }
    if (failure_) std::rethrow_exception(failure_);
    return counts_;
  }

 private:
  void work() {
    BlockEncoder encoder(tokenizer_, options_);
    EncodedBlock encoded;
    for (;;) {
      Index ticket = 0;
      std::exception_ptr failure;
      std::optional<CorpusBlock> block;
      {
        const std::lock_guard lock(read_mutex_);
        if (no_more_) return;
        ticket = tickets_++;
        try {
          block = reader_.next();
        } catch (...) {
          failure = std::current_exception();
        }
        no_more_ = !block;
        if (!block && !failure) return;
      }
      if (block) {
        try {
          encoder.encode(*block, encoded);
        } catch (...) {
          failure = std::current_exception();
        }
      }
      if (!write_in_turn(ticket, encoded, failure)) return;
    }
  }

  /// False when the work is over. Tickets below a failing one have all been taken, so the failure that is kept is the
  /// first in the order of the inputs.
  bool write_in_turn(Index ticket, const EncodedBlock& encoded, std::exception_ptr failure) {
    std::unique_lock lock(write_mutex_);
    my_turn_.wait(lock, [&] { return turn_ == ticket || failure_; });
    if (failure_) return false;
    if (!failure) {
      try {
        write(encoded);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    failure_ = failure;
    ++turn_;
    my_turn_.notify_all();
    return !failure;
  }

  void write(const EncodedBlock& encoded) {
    std::size_t begin = 0;
    for (const EncodedBlock::Part& part : encoded.parts) {
      sink_.add(std::span(encoded.ids).subspan(begin, part.end - begin));
      open_tokens_ += static_cast<Index>(part.end - begin);
      begin = part.end;
      if (part.ends_document) end_document();
    }
    counts_.bytes += encoded.bytes;
    if (options_.progress) options_.progress(counts_);
  }

  void end_document() {
    if (open_tokens_ == 0) {
      ++counts_.empty_documents;
      return;
    }
    if (options_.end_of_document == EndOfDocument::append) {
      const std::int32_t end = tokenizer_.end_of_document();
      sink_.add({&end, 1});
      ++open_tokens_;
    }
    sink_.end_document();
    counts_.tokens += open_tokens_;
    ++counts_.documents;
    open_tokens_ = 0;
  }

  CorpusReader& reader_;
  const Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  TokenSink& sink_;

  std::mutex read_mutex_;  // guards reader_ and these
  Index tickets_ = 0;
  bool no_more_ = false;

  std::mutex write_mutex_;  // guards sink_ and these
  std::condition_variable my_turn_;
  Index turn_ = 0;
  std::exception_ptr failure_;
  Index open_tokens_ = 0;  // of the document that has not ended
  CorpusCounts counts_;
};

class BuilderSink final : public TokenSink {
 public:
  explicit BuilderSink(IndexedDatasetBuilder& builder) : builder_(builder) {}
  void add(std::span<const std::int32_t> ids) override { builder_.add(ids); }
  void end_document() override { builder_.end_document(); }

 private:
  IndexedDatasetBuilder& builder_;
};

}  // namespace

CorpusCounts tokenize_corpus(io::Fs& fs, const std::vector<io::Path>& inputs, const Tokenizer& tokenizer,
                             const CorpusOptions& options, TokenSink& sink) {
  CorpusReader reader(fs, inputs, tokenizer, options.reading);
  return Pipeline(reader, tokenizer, options, sink).run();
}

CorpusCounts build_corpus(io::Fs& fs, const std::vector<io::Path>& inputs, const Tokenizer& tokenizer,
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
