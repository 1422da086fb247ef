#include "megalith/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string_view>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"
#include "megalith/tokenizer/pre_tokenizer.h"
#include "megalith/tokenizer/wordpiece.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::json;

/// A value of the file, and its path for errors.
struct Member {
  const io::Path& file;
  std::string path;
  const json& value;

  Member at(const std::string& key) const {
    static const json kMissing;
    const auto found = value.is_object() ? value.find(key) : value.end();
    return {file, path.empty() ? key : str(path, '.', key), found == value.end() ? kMissing : *found};
  }
  template <class F>
  void each(F&& f) const {
    if (!value.is_array()) refuse("must be a list");
    for (std::size_t i = 0; i < value.size(); ++i) f(Member{file, str(path, '[', i, ']'), value[i]});
  }
  bool is_null() const { return value.is_null(); }
  /// Refuses members of other names: they may change ids.
  void has_only(std::initializer_list<std::string_view> known) const {
    if (!value.is_object()) refuse("must be an object");
    for (const auto& [key, member] : value.items()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      std::string names;
      for (const std::string_view name : known) names += str(names.empty() ? "" : ", ", name);
      at(key).refuse(str("this program does not know what it does to ids; members are ", names));
    }
  }
  /// True or false; `otherwise` if it is missing or null.
  bool flag(bool otherwise) const {
    if (is_null()) return otherwise;
    if (!value.is_boolean()) refuse("must be true or false");
    return value.get<bool>();
  }
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

/// A member that must be missing, null, or this value.
struct Neutral {
  const char* key;
  json value;
  const char* rule;
};

void check_neutral(const Member& parent, const std::vector<Neutral>& neutrals) {
  for (const Neutral& neutral : neutrals) {
    const Member member = parent.at(neutral.key);
    if (!member.is_null() && member.value != neutral.value) member.refuse(neutral.rule);
  }
}

/// The last step of the library. It may move offsets, and add tokens on request.
void check_post_processor(const Member& processor) {
  if (processor.is_null()) return;
  const Member type = processor.at("type");
  if (type.is("Sequence")) {
    processor.has_only({"type", "processors"});
    return processor.at("processors").each(check_post_processor);
  }
  if (type.is("ByteLevel")) return processor.has_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (type.is("TemplateProcessing")) return processor.has_only({"type", "single", "pair", "special_tokens"});
  if (type.is("BertProcessing")) return processor.has_only({"type", "sep", "cls"});
  if (type.is("RobertaProcessing"))
    return processor.has_only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  type.refuse("must be ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing or a Sequence of them");
}

/// Checks the members that all kinds of models have.
void check_root(const Member& root) {
  root.has_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                 "decoder", "model"});
  if (!root.at("version").is_null()) (void)root.at("version").text();
  check_neutral(
      root, {{"truncation", nullptr, "must be null: it cuts the ids of a text off, and no command does; edit the file"},
             {"padding", nullptr, "must be null: it adds ids to a text, and no command does; edit the file"}});
  // It does not change ids.
  if (!root.at("decoder").is_null() && !root.at("decoder").value.is_object())
    root.at("decoder").refuse("must be an object");
  check_post_processor(root.at("post_processor"));
}

/// NFC, or nothing. True for NFC.
bool read_bpe_normalizer(const Member& normalizer) {
  if (normalizer.is_null()) return false;
  const Member type = normalizer.at("type");
  if (type.is("NFC")) {
    normalizer.has_only({"type"});
    return true;
  }
  if (!type.is("Sequence")) type.refuse("must be NFC, or normalizer null: others are not built in");
  normalizer.has_only({"type", "normalizers"});
  bool compose = false;
  normalizer.at("normalizers").each([&](const Member& step) { compose = read_bpe_normalizer(step) || compose; });
  return compose;
}

SplitRule::Behavior read_behavior(const Member& member) {
  constexpr std::pair<const char*, SplitRule::Behavior> kBehaviors[] = {
      {"Isolated", SplitRule::Behavior::isolated},
      {"Removed", SplitRule::Behavior::removed},
      {"MergedWithPrevious", SplitRule::Behavior::merged_with_previous},
      {"MergedWithNext", SplitRule::Behavior::merged_with_next},
      {"Contiguous", SplitRule::Behavior::contiguous}};
  for (const auto& [name, behavior] : kBehaviors)
    if (member.is(name)) return behavior;
  member.refuse("must be Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

SplitRule read_split(const Member& split) {
  SplitRule rule;
  split.has_only({"type", "pattern", "behavior", "invert"});
  const Member pattern = split.at("pattern");
  pattern.has_only({"String", "Regex"});
  if (pattern.value.size() != 1) pattern.refuse("must have one member, String or Regex");
  if (!pattern.at("String").value.is_null()) {
    for (const char c : pattern.at("String").text()) {
      const bool is_plain = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
      if (!is_plain && (c & 0x80) == 0 && (c < '0' || c > '9')) rule.pattern += '\\';
      rule.pattern += c;
    }
  } else {
    rule.pattern = pattern.at("Regex").text();
  }
  rule.invert = split.at("invert").flag(false);
  rule.behavior = read_behavior(split.at("behavior"));
  try {
    PreTokenizer({rule});
  } catch (const InputError& error) {
    pattern.refuse(error.what());
  }
  return rule;
}

/// Splits, and ByteLevel after them.
void read_bpe_pre_tokenizer(const Member& pre, TokenizerJson& out) {
  const auto read_byte_level = [&](const Member& step) {
    step.has_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    (void)step.at("trim_offsets").flag(true);
    check_neutral(step, {{"add_prefix_space", false, "must be false: a text is encoded as it stands"}});
    if (step.at("use_regex").flag(true)) out.splits.push_back(gpt2_split());
  };
  if (pre.at("type").is("ByteLevel")) return read_byte_level(pre);
  if (!pre.at("type").is("Sequence"))
    pre.at("type").refuse("must be \"ByteLevel\", or a \"Sequence\" of Split, Digits and, at the end, ByteLevel");
  pre.has_only({"type", "pretokenizers"});
  bool is_last = false;
  pre.at("pretokenizers").each([&](const Member& step) {
    const Member type = step.at("type");
    if (is_last) type.refuse("must not follow ByteLevel");
    if (type.is("ByteLevel")) {
      is_last = true;
      read_byte_level(step);
    } else if (type.is("Split")) {
      out.splits.push_back(read_split(step));
    } else if (type.is("Digits")) {
      step.has_only({"type", "individual_digits"});
      out.splits.push_back({.pattern = step.at("individual_digits").flag(false) ? R"(\p{N})" : R"(\p{N}+)"});
    } else {
      type.refuse("must be Split, Digits or ByteLevel");
    }
  });
  if (!is_last) pre.at("pretokenizers").refuse("must end with ByteLevel: the tokens are written in its characters");
}

/// The vocabulary's tokens and the added ones.
void read_tokens(const Member& root, TokenizerJson& out) {
  const Member vocabulary = root.at("model").at("vocab"), extra = root.at("added_tokens");
  if (!vocabulary.value.is_object()) vocabulary.refuse("must be an object");
  std::map<std::string, std::uint64_t> added;
  const auto add_extra = [&](const Member& token) {
    token.has_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const std::string& content = token.at("content").text();
    if (content.empty()) token.at("content").refuse("must not be empty");
    for (const char* name : {"single_word", "lstrip", "rstrip", "normalized", "special"})
      (void)token.at(name).flag(false);
    const std::uint64_t id = added[content] = token.at("id").id();
    const auto known = vocabulary.value.find(content);
    if (known != vocabulary.value.end() && *known != id)
      token.at("id").refuse(str("the vocabulary has this token under ", known->dump()));
    if (token.at("special").flag(true)) return;
    check_neutral(token, {{"single_word", false, "must be false for a token that is not special"},
                          {"lstrip", false, "must be false for a token that is not special"},
                          {"rstrip", false, "must be false for a token that is not special"}});
    out.literals.push_back({.spelling = content, .id = id, .normalized = token.at("normalized").flag(true)});
  };
  if (!extra.is_null()) extra.each(add_extra);
  for (const auto& [spelling, id] : vocabulary.value.items())
    out.tokens.push_back({spelling, vocabulary.at(spelling).id(), out.tokens.size() + 1, added.contains(spelling)});
  for (const auto& [spelling, id] : added) {
    if (!vocabulary.value.contains(spelling)) out.tokens.push_back({spelling, id, out.tokens.size() + 1, true});
  }
}

/// The JSON of a file.
json read_tree(io::Fs& fs, const io::Path& file) {
  const io::MappedFile mapped = fs.map(file);
  json tree = io::read_json(mapped.text(), {.name = file.string()});
  if (!tree.is_object()) throw InputError(str("[", file.string(), "] must be a JSON object"));
  return tree;
}

}  // namespace

TokenizerJson read_tokenizer_json(io::Fs& fs, const io::Path& file) {
  const json tree = read_tree(fs, file);
  const Member root{file, "", tree}, model = root.at("model");
  // Files of the library's first versions, GPT-2's among them, name no type.
  if (!model.at("type").is("BPE") && !(model.at("type").is_null() && model.at("merges").value.is_array()))
    model.at("type").refuse("must be \"BPE\"");
  check_root(root);
  model.has_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (!model.at("unk_token").is_null()) (void)model.at("unk_token").text();  // every byte has a token
  (void)model.at("fuse_unk").flag(false);
  check_neutral(model, {{"dropout", 0, "must be null or 0: ids would be random"},
                        {"continuing_subword_prefix", "", "must be empty: byte-level BPE has none"},
                        {"end_of_word_suffix", "", "must be empty: byte-level BPE has none"},
                        {"byte_fallback", false, "must be false: every byte has a token"}});
  TokenizerJson found;
  found.compose = read_bpe_normalizer(root.at("normalizer"));
  found.ignore_merges = model.at("ignore_merges").flag(false);
  read_bpe_pre_tokenizer(root.at("pre_tokenizer"), found);
  read_tokens(root, found);
  model.at("merges").each([&](const Member& merge) {
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

WordPieceVocabulary read_wordpiece_json(io::Fs& fs, const io::Path& file) {
  const json tree = read_tree(fs, file);
  const Member root{file, "", tree}, model = root.at("model"), normalizer = root.at("normalizer");
  const Member pre = root.at("pre_tokenizer").at("type");
  if (!model.at("type").is("WordPiece")) model.at("type").refuse("must be \"WordPiece\"");
  if (!normalizer.at("type").is("BertNormalizer")) normalizer.at("type").refuse("must be \"BertNormalizer\"");
  if (!pre.is("BertPreTokenizer")) pre.refuse("must be \"BertPreTokenizer\"");
  check_root(root);
  normalizer.has_only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  root.at("pre_tokenizer").has_only({"type"});
  model.has_only({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceVocabulary vocabulary;
  vocabulary.text.clean_text = normalizer.at("clean_text").flag(true);
  vocabulary.text.handle_chinese_chars = normalizer.at("handle_chinese_chars").flag(true);
  vocabulary.text.lowercase = normalizer.at("lowercase").flag(true);
  vocabulary.text.strip_accents = normalizer.at("strip_accents").flag(vocabulary.text.lowercase);
  if (!model.at("unk_token").value.is_null()) vocabulary.unknown = model.at("unk_token").text();
  if (!model.at("continuing_subword_prefix").value.is_null())
    vocabulary.continuation = model.at("continuing_subword_prefix").text();
  if (!model.at("max_input_chars_per_word").value.is_null())
    vocabulary.max_characters = model.at("max_input_chars_per_word").id();

  TokenizerJson found;
  read_tokens(root, found);
  if (!found.literals.empty())
    throw InputError(str("[", file.string(), "] added token \"", io::printable(found.literals[0].spelling),
                         "\": must be special: a text that holds it would get its id before anything else"));
  vocabulary.tokens.resize(found.tokens.size());
  for (TokenEntry& token : found.tokens) {
    const auto refuse = [&](std::string_view rule) {
      throw InputError(
          str("[", file.string(), "] token \"", io::printable(token.spelling), "\", id = ", token.id, ": ", rule));
    };
    if (token.spelling.empty()) refuse("must not be empty");
    if (token.id >= vocabulary.tokens.size())
      refuse(str("the ids of ", found.tokens.size(), " tokens must be 0 to ", found.tokens.size() - 1, ", each once"));
    if (!vocabulary.tokens[token.id].empty()) refuse("two tokens have this id; ids must be distinct");
    vocabulary.tokens[token.id] = std::move(token.spelling);
  }
  return vocabulary;
}

}  // namespace megalith::tokenizer
