#include "apps/eval_data.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/byte_source.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/data/json_text.h"
#include "megalith/eval/detokenize.h"
#include "megalith/io/checksum.h"

#include "apps/file_problems.h"

namespace megalith::apps {
namespace {

std::string read_all(io::Fs& fs, const std::string& file) {
  data::require_file(fs, file, "--data");
  const std::unique_ptr<data::ByteSource> source = data::open_bytes(fs, file);
  while (source->extend()) {
  }
  return std::string(source->window());
}

eval::EvalSet loss_of_lines(const std::string& text, const EvalTask& task, const data::Tokenizer& tokenizer) {
  data::JsonText json("text", {}, eval::kLineFix);
  std::vector<std::string> texts;
  eval::EvalSet bad;
  std::uint64_t number = 1;
  for (std::string_view rest = text; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (eval::strip(line).empty()) continue;
    try {
      const std::string_view document = json.read(line, {.file = task.data, .number = number});
      if (eval::strip(document).empty())
        bad.refuse(str("[", task.data, "] line ", number, ": text is empty: must hold text; remove the line"));
      else if (bad.problems.empty())
        texts.emplace_back(document);
    } catch (const InputError& error) {
      bad.refuse(error.what());
    }
  }
  if (!bad.problems.empty()) return bad;
  std::vector<eval::SourceText> documents;
  for (const std::string& one : texts) documents.push_back({one, task.data});
  if (documents.empty()) documents.push_back({"", task.data});
  return eval::loss_set(documents, tokenizer, task.window, task.stride);
}

eval::EvalSet set_of(const std::string& text, const EvalTask& task, const data::Tokenizer& tokenizer) {
  const eval::SourceText source{text, task.data};
  switch (task.task) {
    case eval::Task::loss:
      if (data::names_json_lines(task.data)) return loss_of_lines(text, task, tokenizer);
      return eval::loss_set({source}, tokenizer, task.window, task.stride);
    case eval::Task::wikitext_paper:
      return eval::wikitext_paper_set(source, tokenizer, task.window, task.stride);
    case eval::Task::wikitext_harness:
      return eval::wikitext_harness_set(source, tokenizer, task.window);
    case eval::Task::lambada:
      return eval::lambada_set(source, tokenizer, task.window);
  }
  throw InternalError("[read_eval_data] task: is none of those that there are");
}

}  // namespace

EvalData read_eval_data(io::Fs& fs, const EvalTask& task, const data::Tokenizer& tokenizer) {
  const std::string text = read_all(fs, task.data);
  EvalData data{.set = set_of(text, task, tokenizer),
                .checksum = io::checksum(std::as_bytes(std::span(text.data(), text.size()))).hex()};
  throw_file_problems(task.data, data.set.problems, data.set.more_problems);
  return data;
}

}  // namespace megalith::apps
