#include "apps/eval/prompts.h"

#include <algorithm>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text_lines.h"
#include "megalith/base/utf8.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/json_object.h"

namespace megalith::apps {
namespace {

/// The ids of a text. Throws InputError that states the broken rule and the fix, without a place.
std::vector<std::int32_t> encoded(const std::string& text, const PromptRules& rules) {
  std::vector<std::int32_t> ids = rules.tokenizer.encode(text);
  const auto count = static_cast<Index>(ids.size());
  if (count > rules.seq_len) {
    throw InputError(
        str("has ", count, " tokens: must have at most model.seq_len = ", rules.seq_len, "; leave out its beginning"));
  }
  const auto largest = std::ranges::max_element(ids);
  if (largest != ids.end() && *largest >= rules.vocab_size) {
    throw InputError(str("has token ", *largest, ": must be below model.vocab_size = ", rules.vocab_size,
                         "; use the tokenizer that the model was trained with"));
  }
  return ids;
}

/// Throws InputError, which names the line.
Prompt prompt_of(std::string_view json, const std::string& file, std::size_t line, const PromptRules& rules) {
  Prompt prompt;
  std::optional<std::string> text;
  bool is_text = true;
  io::visit_json_object(json, file, line, [&](io::JsonMember& member) {
    const bool has_text = member.kind == io::JsonMember::Kind::text;
    if (member.key == "name" && has_text) prompt.name = std::move(*member.text);
    if (member.key != "prompt") return;
    is_text = has_text;
    if (has_text) text = std::move(*member.text);
  });
  const std::string place = str("[", file, "] line ", line, ": prompt");
  if (!is_text) throw InputError(place + " must be a string");
  if (!text) throw InputError(place + " is missing; give {\"prompt\": \"the text to continue\"}");
  if (text->empty()) throw InputError(place + " = \"\": must not be empty; remove the line");
  prompt.text = std::move(*text);
  try {
    prompt.ids = encoded(prompt.text, rules);
  } catch (const InputError& error) {
    throw InputError(str(place, ' ', error.what()));
  }
  return prompt;
}

}  // namespace

std::vector<Prompt> read_prompts(io::Fs& fs, const std::string& file, const PromptRules& rules) {
  data::require_file(fs, file, "--prompts");
  const io::MappedFile mapped = fs.map(file);
  std::vector<Prompt> prompts;
  std::vector<std::string> problems;
  for_each_line(mapped.text(), [&](std::string_view json, std::size_t line) {
    if (json.find_first_not_of(" \t\r") == std::string_view::npos) return;
    try {
      prompts.push_back(prompt_of(json, file, line, rules));
    } catch (const InputError& error) {
      problems.emplace_back(error.what());
    }
  });
  if (prompts.empty() && problems.empty())
    problems.push_back(str("[", file, "] holds no prompts: must have lines as {\"prompt\": \"the text to continue\"}"));
  io::throw_file_problems(file, problems);
  return prompts;
}

Prompt one_prompt(const std::string& text, const PromptRules& rules) {
  if (const std::size_t good = valid_utf8_prefix(text); good != text.size())
    throw ConfigError(str("--prompt has byte ", good, ": must be UTF-8; convert the text, as by iconv"));
  Prompt prompt{.name = {}, .text = text, .ids = {}};
  try {
    prompt.ids = encoded(text, rules);
  } catch (const InputError& error) {
    throw ConfigError(str("--prompt ", error.what()));
  }
  if (prompt.ids.empty()) prompt.ids.push_back(rules.tokenizer.end_of_document());
  return prompt;
}

}  // namespace megalith::apps
