#include "megalith/data/tokenizer_training.h"

#include <utility>

#include "megalith/base/clock.h"
#include "megalith/base/problems.h"
#include "megalith/data/ordered_work.h"

namespace megalith::data {
namespace {

/// The counts of one block.
struct BlockWords {
  tokenizer::WordCounts words;
  std::uint64_t documents = 0, text_bytes = 0;
};

tokenizer::WordCounts count_words_of(io::Fs& fs, const TrainingText& text, const tokenizer::TrainerOptions& options,
                                     const tokenizer::WordCutting& cutting, tokenizer::TrainerReport& report) {
  CorpusReader::Options reading = text.reading;
  reading.key = text.key;
  CorpusReader reader(fs, text.inputs, cutting.next_cut, reading);
  report.stored_bytes = static_cast<std::uint64_t>(reader.total_bytes());
  for (const io::Path& input : text.inputs) report.files.push_back({.file = input.string()});
  double added_s = monotonic_s();
  tokenizer::WordCounts all(cutting.memory_bytes);
  std::uint64_t read = 0;
  struct Counted {
    BlockWords words;
    std::size_t file = 0;
    std::uint64_t stored = 0;
  };
  work_in_order<Counted>(
      text.threads, [&] { return reader.next(); },
      [&] {
        return [cut = cutting.make_cutter(), texts = CorpusText(text.key)](const CorpusBlock& block,
                                                                           Counted& out) mutable {
          out.words.words.clear();
          out.words.documents = out.words.text_bytes = 0;
          out.file = block.file_number;
          out.stored = static_cast<std::uint64_t>(block.bytes);
          for (const CorpusPiece& piece : block.pieces) {
            const std::string_view bytes = texts.of(block, piece);
            cut(bytes, out.words.words);
            out.words.documents += piece.ends_document ? 1 : 0;
            out.words.text_bytes += bytes.size();
          }
        };
      },
      [&](const Counted& out) {
        all.add(out.words.words);
        report.documents += out.words.documents;
        report.text_bytes += out.words.text_bytes;
        read += out.stored;
        tokenizer::TrainerFileCounts& file = report.files[out.file];
        file.documents += out.words.documents;
        file.text_bytes += out.words.text_bytes;
        file.stored_bytes += out.stored;
        const double now = monotonic_s();
        file.seconds += now - std::exchange(added_s, now);
        if (options.progress) options.progress(read, report.stored_bytes, "bytes");
      });
  return all;
}

}  // namespace

tokenizer::TrainedTokenizer train_tokenizer(io::Fs& fs, const TrainingText& text,
                                            const tokenizer::TrainerOptions& options) {
  Problems problems;
  problems.require(!text.inputs.empty(), "--input", "", "must name at least one file");
  check(options, problems);
  problems.require(text.threads >= 1, "--threads", text.threads, "must be at least 1");
  problems.throw_if_any("tokenizer train");
  return tokenizer::train_tokenizer(options,
                                    [&](const tokenizer::WordCutting& cutting, tokenizer::TrainerReport& report) {
                                      return count_words_of(fs, text, options, cutting, report);
                                    });
}

}  // namespace megalith::data
