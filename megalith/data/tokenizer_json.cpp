#include "megalith/data/tokenizer_json.h"

#include <map>
#include <string_view>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::data {
namespace {

using nlohmann::json;

/// A value of the file, and its path: what errors name.
struct Member {
  const io::Path& file;
  std::string path;
  const json& value;

  Member at(const std::string& key) const {
    static const json kNone;
    const auto found = value.is_object() ? value.find(key) : value.end();
    return {file, path.empty() ? key : str(path, '.', key), found == value.end() ? kNone : *found};
  }
  template <class F>
  void each(F&& f) const {
    if (!value.is_array()) refuse("must be a list");
    for (std::size_t i = 0; i < value.size(); ++i) f(Member{file, str(path, '[', i, ']'), value[i]});
  }
  bool is_empty() const { return value.empty() || value == ""; }
  bool is(const char* text) const { return value == text; }
  const std::string& text() const {
    if (!value.is_string()) refuse("must be a text");
    return value.get_ref<const std::string&>();
  }
  std::uint64_t id() const {
    if (!value.is_number_unsigned()) refuse("an id must be a whole number that is not negative");
    return value.get<std::uint64_t>();
  }
  [[noreturn]] void refuse(std::string_view rule) const {
    throw InputError(str("[", file.string(), "] ", path, " = ", io::printable(value.dump(), 60), ": ", rule));
  }
};

/// A member that must be missing, null, empty, or this value.
struct Neutral {
  const char *parent, *key;
  json value;
  const char* rule;
};

/// The last step of the library's: it may only move offsets.
void check_post_processor(const Member& processor) {
  if (processor.is_empty() || processor.at("type").is("ByteLevel")) return;
  if (processor.at("type").is("Sequence")) return processor.at("processors").each(check_post_processor);
  if (!processor.at("type").is("TemplateProcessing"))
    processor.at("type").refuse("must be ByteLevel: others add tokens to every text");
  processor.at("single").each([](const Member& piece) {
    if (!piece.at("SpecialToken").value.is_null()) piece.refuse("must not be there: it adds a token to every text");
  });
}

void check_pipeline(const Member& root) {
  const Member model = root.at("model"), pre = root.at("pre_tokenizer");
  if (!model.at("type").is("BPE")) model.at("type").refuse("must be \"BPE\"");
  if (!pre.at("type").is("ByteLevel")) pre.at("type").refuse("must be \"ByteLevel\"");
  const Neutral neutrals[] = {
      {"", "truncation", nullptr, "must be null: it would cut ids off"},
      {"", "padding", nullptr, "must be null: it would add ids"},
      {"", "normalizer", nullptr, "must be null: GPT-2 changes no text"},
      {"pre_tokenizer", "add_prefix_space", false, "must be false: GPT-2 adds no space"},
      {"pre_tokenizer", "use_regex", true, "must be true: GPT-2 cuts text into words"},
      {"model", "dropout", 0, "must be null or 0: ids would be random"},
      {"model", "continuing_subword_prefix", "", "must be empty: GPT-2 has none"},
      {"model", "end_of_word_suffix", "", "must be empty: GPT-2 has none"},
      {"model", "byte_fallback", false, "must be false: every byte has a token"},
      {"model", "ignore_merges", false, "must be false: tokens come from merges alone"},
  };
  for (const Neutral& neutral : neutrals) {
    const Member member = (*neutral.parent == '\0' ? root : root.at(neutral.parent)).at(neutral.key);
    if (!member.is_empty() && member.value != neutral.value) member.refuse(neutral.rule);
  }
  check_post_processor(root.at("post_processor"));
}

void read_tokens(const Member& root, TokenizerJson& out) {
  const Member vocabulary = root.at("model").at("vocab"), extra = root.at("added_tokens");
  if (!vocabulary.value.is_object()) vocabulary.refuse("must be an object");
  std::map<std::string, std::uint64_t> added;
  const auto add_extra = [&](const Member& token) {
    const std::string& content = token.at("content").text();
    const std::uint64_t id = added[content] = token.at("id").id();
    if (token.at("special").value == false)
      token.at("special").refuse("must be true: a text that holds this token would get its id before any merge");
    const auto known = vocabulary.value.find(content);
    if (known != vocabulary.value.end() && *known != id)
      token.at("id").refuse(str("the vocabulary has this token under ", known->dump()));
  };
  if (!extra.is_empty()) extra.each(add_extra);
  for (const auto& [spelling, id] : vocabulary.value.items())
    out.tokens.push_back({spelling, vocabulary.at(spelling).id(), out.tokens.size() + 1, added.contains(spelling)});
  for (const auto& [spelling, id] : added) {
    if (!vocabulary.value.contains(spelling)) out.tokens.push_back({spelling, id, out.tokens.size() + 1, true});
  }
}

}  // namespace

TokenizerJson read_tokenizer_json(io::Fs& fs, const io::Path& file) {
  const io::MappedFile mapped = fs.map(file);
  const json tree = io::read_json(mapped.text(), {.name = file.string()});
  if (!tree.is_object()) throw InputError(str("[", file.string(), "] must be a JSON object"));
  const Member root{file, "", tree};
  check_pipeline(root);
  TokenizerJson found;
  read_tokens(root, found);
  root.at("model").at("merges").each([&](const Member& merge) {
    const json& pair = merge.value;
    if (pair.is_string()) {
      found.merges.push_back(pair.get<std::string>());
    } else if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string()) {
      found.merges.push_back(str(pair[0].get<std::string>(), ' ', pair[1].get<std::string>()));
    } else {
      merge.refuse("must be \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
    }
  });
  return found;
}

}  // namespace megalith::data
