#include "apps/eval/eval_data.h"

#include <memory>
#include <optional>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/data/corpus_builder.h"
#include "megalith/data/document_reader.h"
#include "megalith/data/input_files.h"
#include "megalith/data/json_text.h"
#include "megalith/eval/detokenize.h"
#include "megalith/eval/whole_text.h"
#include "megalith/io/file_problems.h"

namespace megalith::apps {
namespace {

/// Ids of one text.
class LossSink final : public data::TokenSink {
 public:
  explicit LossSink(eval::LossText& text) : text_(text) {}
  void add(std::span<const std::int32_t> ids) override { text_.add_ids(ids); }
  void end_document() override {}

 private:
  eval::LossText& text_;
};

eval::EvalSet loss_of_text(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer,
                           const eval::ScannedText& scanned) {
  eval::EvalSet bad;
  if (scanned.is_blank)
    bad.refuse(str("[", task.data, "] is empty: must hold text; is it the right file?"));
  else if (scanned.bad_byte)
    bad.refuse(str("[", task.data, "] line ", scanned.bad_line, ", byte ", *scanned.bad_byte,
                   " of the file: must be UTF-8; convert the file, as by iconv"));
  if (!bad.problems.empty()) return bad;
  data::CorpusOptions options{.end_of_document = data::EndOfDocument::omit};
  options.reading.format = data::CorpusFormat::text;
  options.reading.max_line_bytes = static_cast<Index>(task.max_line);
  eval::LossText text(tokenizer);
  text.expect_text(scanned.bytes);
  LossSink sink(text);
  data::tokenize_corpus(fs, {task.data}, tokenizer, options, sink);
  text.end_document(scanned.bytes);
  return text.finish(task.data, task.window, task.stride);
}

/// Ids of JSON lines or of rows of Parquet.
eval::EvalSet loss_of_documents(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer,
                                data::CorpusFormat format) {
  const bool is_json = format == data::CorpusFormat::json_lines;
  data::DocumentReader reader(fs, task.data, {.format = format, .max_document_bytes = task.max_line});
  data::JsonText json("text", {}, eval::kLineFix);
  data::DocumentText row("text");
  eval::LossText loss(tokenizer);
  eval::EvalSet bad;
  while (const std::optional<data::DocumentBlock> block = reader.next()) {
    for (const data::RawDocument& document : block->documents) {
      try {
        const std::string_view text =
            is_json
                ? json.read(document.bytes, {.file = task.data, .number = document.line, .readable = block->held.bytes})
                : row.of(*block, document);
        if (eval::strip(text).empty())
          bad.refuse(str("[", task.data, is_json ? "] line " : "] row ", document.line,
                         ": text is empty: must hold text; remove the ", is_json ? "line" : "row"));
        else if (bad.problems.empty())
          loss.add(text);
      } catch (const InputError& error) {
        bad.refuse(error.what());
      }
    }
  }
  if (!bad.problems.empty()) return bad;
  if (reader.documents() == 0) bad.refuse(str("[", task.data, "] is empty: must hold text; is it the right file?"));
  return bad.problems.empty() ? loss.finish(task.data, task.window, task.stride) : std::move(bad);
}

EvalData read_choice_data(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer) {
  eval::ChoiceData read = eval::read_choice_data(
      fs, {.data = task.data, .options = task.choice, .max_bytes = task.max_line}, tokenizer, task.window);
  return {.set = std::move(read.set), .checksum = std::move(read.checksum), .more_files = std::move(read.more_files)};
}

eval::EvalSet set_of(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer,
                     const eval::ScannedText& scanned) {
  const data::CorpusFormat format = data::format_of(fs, task.data, data::CorpusFormat::by_name);
  if (task.task == eval::Task::loss)
    return format == data::CorpusFormat::text ? loss_of_text(fs, task, tokenizer, scanned)
                                              : loss_of_documents(fs, task, tokenizer, format);
  if (format == data::CorpusFormat::parquet)
    throw InputError(str("[", task.data, "] is a Parquet file: --task loss takes one; ",
                         task.task == eval::Task::lambada ? "for lambada write its rows as lines of JSON"
                                                          : "wikitext takes the text as it was published"));
  const std::string text = eval::read_whole_text(fs, task.data, scanned, {.max_bytes = task.max_line});
  const eval::SourceText source{text, task.data};
  switch (task.task) {
    case eval::Task::wikitext_paper:
      return eval::wikitext_paper_set(source, tokenizer, task.window, task.stride);
    case eval::Task::wikitext_harness:
      return eval::wikitext_harness_set(source, tokenizer, task.window);
    case eval::Task::lambada:
      return eval::lambada_set(source, tokenizer, task.window);
    case eval::Task::loss:
    case eval::Task::masked_loss:  // read_held_out()
    case eval::Task::choice:       // read_choice_data()
      break;
  }
  throw InternalError("[read_eval_data] task: is none of those that there are");
}

EvalData read_text_data(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer) {
  data::require_file(fs, task.data, "--data");
  data::refuse_table(task.data);
  const eval::ScannedText scanned = eval::scan_text(fs, task.data);
  return {.set = set_of(fs, task, tokenizer, scanned), .checksum = scanned.checksum.hex()};
}

}  // namespace

EvalData read_eval_data(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer) {
  EvalData data =
      task.task == eval::Task::choice ? read_choice_data(fs, task, tokenizer) : read_text_data(fs, task, tokenizer);
  io::throw_file_problems(task.data, data.set.problems, data.set.more_problems);
  return data;
}

EvalData read_held_out(io::Fs& fs, const EvalTask& task, const tokenizer::Tokenizer& tokenizer,
                       const data::BertMaking& making) {
  const data::BertVocabulary vocabulary = data::bert_vocabulary(tokenizer);
  const data::SentenceSourcePtr source =
      data::open_sentences(fs, {task.data}, tokenizer, "--data", {.max_line = static_cast<Index>(task.max_line)});
  data::BertSamples samples(source, {0, source->num_documents()}, vocabulary, making.config, making.seed);
  EvalData data{.set = {}, .checksum = hex64(source->fingerprint())};
  const Index without = samples.documents_without_samples();
  data.held_out = std::make_shared<const eval::HeldOutSamples>(std::move(samples));
  data.set.counts = {{"documents", source->num_documents()},
                     {"documents_without_samples", without},
                     {"tokens", source->num_tokens()},
                     {"samples", data.held_out->count()}};
  return data;
}

}  // namespace megalith::apps
