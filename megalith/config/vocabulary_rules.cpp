#include "megalith/config/vocabulary_rules.h"

#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/plan_rules.h"

namespace megalith::config {
namespace {

constexpr Index kBytes = 256, kGpt2Ids = 50'257;

/// Without a file: bytes, and the vocabulary of GPT-2 that comes with the program.
std::optional<Index> known_ids(const RunConfig::Data& data) {
  if (data.tokenizer == "byte") return kBytes;
  if (data.tokenizer == "gpt2" && data.vocab_dir.value_or("").empty()) return kGpt2Ids;
  return std::nullopt;
}

std::optional<Index> ids_of(const RunConfig::Data& data, const CountIds& count_ids) {
  if (const std::optional<Index> known = known_ids(data)) return known;
  if (!count_ids) return std::nullopt;
  return count_ids(*data.tokenizer, data.vocab_dir.value_or(""));
}

/// A recipe that has the key needs no file to be planned.
std::optional<Index> ids_if_readable(const RunConfig::Data& data, const CountIds& count_ids) {
  try {
    return ids_of(data, count_ids);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void warn_of_idle_ids(Index vocab_size, Index ids, const std::string& tokenizer, RunPlan& plan) {
  if (5 * vocab_size <= 6 * ids) return;
  plan.recipe_warnings.push_back(str("model.vocab_size = ", vocab_size, ": data.tokenizer = ", tokenizer, " has ", ids,
                                     " ids; the other ", vocab_size - ids,
                                     " take memory and time, and stand for no text"));
}

}  // namespace

VocabularySize derive_vocab_size(RunConfig& c, const BrokenKeys& broken, const CountIds& count_ids, RunPlan& plan,
                                 Problems& out) {
  if (broken.any("data.") || broken.has("model.vocab_size")) {
    set_default(c.model.vocab_size, known_ids(c.data).value_or(kGpt2Ids));
    return {};
  }
  if (c.model.vocab_size) {
    if (const std::optional<Index> ids = ids_if_readable(c.data, count_ids)) {
      // Without count_ids there is no text: a model is measured, or runs a tokenizer of its own.
      out.require(!count_ids || *ids <= *c.model.vocab_size, "model.vocab_size", *c.model.vocab_size,
                  str("must be at least ", *ids, ", the ids of data.tokenizer = ", *c.data.tokenizer));
      warn_of_idle_ids(*c.model.vocab_size, *ids, *c.data.tokenizer, plan);
    }
    return {};
  }
  const std::string unset =
      str("model.vocab_size is not set, and its default, the number of ids of data.tokenizer = ", *c.data.tokenizer,
          ", is not known; give it, or name the files by data.vocab_dir");
  VocabularySize size;
  try {
    c.model.vocab_size = ids_of(c.data, count_ids);
    if (!c.model.vocab_size) out.add_line(unset);
  } catch (const ConfigError& error) {
    out.add_line(str(unset, ": ", error.what()));
  } catch (Error& error) {
    error.put_in_front(unset + ": ");
    size.unread = std::current_exception();
  }
  size.is_known = c.model.vocab_size.has_value();
  set_default(c.model.vocab_size, kGpt2Ids);
  return size;
}

}  // namespace megalith::config
