#include "megalith/convert/hf_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/convert/hf_family.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"
#include "megalith/tokenizer/bpe_vocabulary.h"
#include "megalith/tokenizer/tokenizer_files.h"

namespace megalith::convert {
namespace {

using nlohmann::ordered_json;

/// The spelling of each byte.
std::vector<std::string> byte_spellings() {
  std::vector<std::string> spellings;
  for (int byte = 0; byte < 256; ++byte)
    spellings.push_back(tokenizer::byte_spelling(static_cast<unsigned char>(byte)));
  return spellings;
}

/// Such text is its own spelling.
bool is_visible_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '!' && c <= '~'; });
}

/// The byte tokenizer as the tokenizers library keeps one: a BPE without merges.
ordered_json byte_tokenizer_json() {
  const ordered_json none = ordered_json::array();
  return tokenizer::byte_level_bpe_json(
      tokenizer::ByteLevelCut::whole,
      {.added_tokens = none, .vocab = tokenizer::vocab_object(byte_spellings()), .merges = none});
}

/// vocab.json and merges.txt in one file. The end of a document is a special token, which stands as it is.
ordered_json two_files_json(const tokenizer::Tokenizer& tokenizer, const tokenizer::VocabularyFile& merges_txt) {
  const std::vector<std::string> spellings = byte_spellings();
  const std::int32_t end = tokenizer.end_of_document();
  std::vector<std::string> tokens(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(static_cast<std::int32_t>(id));
    if (std::cmp_equal(id, end)) {
      tokens[id] = bytes;
    } else {
      for (const char byte : bytes) tokens[id] += spellings[static_cast<unsigned char>(byte)];
    }
  }
  const auto end_id = static_cast<std::size_t>(end);
  const ordered_json added = ordered_json::array({tokenizer::special_token(end_id, tokens[end_id])});
  ordered_json merges = ordered_json::array();  // of texts: versions before 0.20 do not read pairs
  tokenizer::each_merge(std::as_bytes(std::span(merges_txt.text)), merges_txt.name,
                        [&](std::string_view merge, std::uint64_t) { merges.push_back(merge); });
  return tokenizer::byte_level_bpe_json(
      tokenizer::ByteLevelCut::gpt2,
      {.added_tokens = added, .vocab = tokenizer::vocab_object(tokens), .merges = merges});
}

/// vocab.txt as a tokenizer.json, with BERT's special tokens.
ordered_json vocab_txt_json(const tokenizer::Tokenizer& tokenizer, const tokenizer::VocabularyFile& vocab_txt) {
  std::vector<std::string> tokens;
  io::Reader lines(std::as_bytes(std::span(vocab_txt.text)), vocab_txt.name);
  while (const auto line = lines.next_line()) tokens.emplace_back(*line);
  ordered_json added = ordered_json::array();
  for (const char* name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    const auto found = std::ranges::find(tokens, name);
    if (found != tokens.end())
      added.push_back(tokenizer::special_token(static_cast<std::size_t>(found - tokens.begin()), name));
  }
  return tokenizer::wordpiece_json(
      tokens, added, tokenizer.name() == "bert-uncased" ? tokenizer::LetterCase::lowered : tokenizer::LetterCase::kept);
}

/// A tokenizer.json of BERT's as a vocab.txt. Nothing where a vocab.txt would be read with other options, or has no
/// line for an id.
std::optional<std::string> vocab_txt_of(const tokenizer::VocabularyFile& tokenizer_json) {
  const nlohmann::json root = io::read_json(tokenizer_json.text, {.name = tokenizer_json.name});
  const nlohmann::json &model = root.at("model"), &normalizer = root.at("normalizer");
  const bool lowercase = normalizer.value("lowercase", true);
  const auto strip = normalizer.find("strip_accents");
  const bool is_usual = model.value("continuing_subword_prefix", "##") == "##" &&
                        model.value("unk_token", "[UNK]") == "[UNK]" && normalizer.value("clean_text", true) &&
                        normalizer.value("handle_chinese_chars", true) &&
                        (strip == normalizer.end() || strip->is_null() || *strip == lowercase);
  if (!is_usual) return std::nullopt;
  std::vector<std::string> tokens;
  const auto add = [&](const std::string& token, std::size_t id) {
    if (tokens.size() <= id) tokens.resize(id + 1);
    tokens[id] = token;
  };
  for (const auto& [token, id] : model.at("vocab").items()) add(token, id.get<std::size_t>());
  for (const nlohmann::json& token : root.value("added_tokens", nlohmann::json::array()))
    add(token.at("content"), token.at("id"));
  std::string text;
  for (const std::string& token : tokens) {
    if (token.empty() || token.find('\n') != std::string::npos) return std::nullopt;
    text += token + '\n';
  }
  return text;
}

}  // namespace

void export_hf_tokenizer(io::Fs& fs, const io::Path& folder, const HfTokenizerExport& exported) {
  const tokenizer::Tokenizer& tokenizer = exported.tokenizer;
  const std::string_view name = tokenizer.name();
  const auto write_json = [&](const ordered_json& whole) {
    io::write_file(fs, folder / "tokenizer.json", whole.dump(1) + "\n");
  };
  for (const tokenizer::VocabularyFile& file : exported.files) io::write_file(fs, folder / file.name, file.text);
  if (name == "byte") write_json(byte_tokenizer_json());
  ordered_json config = {{"model_max_length", exported.seq_len}, {"clean_up_tokenization_spaces", false}};
  const std::string_view first = exported.files.empty() ? "" : std::string_view(exported.files.front().name);
  const bool has_two_files = first == "vocab.json";
  const std::string end(tokenizer.token_bytes(tokenizer.end_of_document()));
  // The library has classes that read these files, but does not take them for models of every family. It looks for the
  // end of a document as it is, where vocab.json has it in characters of bytes.
  const bool is_gpt2 = &exported.family == &kHfGpt2;
  if (has_two_files && (!is_gpt2 || !is_visible_ascii(end)))
    write_json(two_files_json(tokenizer, exported.files.back()));
  if (first == "vocab.txt" && !is_gpt2) write_json(vocab_txt_json(tokenizer, exported.files.front()));
  if (first == "tokenizer.json" && name.starts_with("bert-")) {
    if (const auto text = vocab_txt_of(exported.files.front())) io::write_file(fs, folder / "vocab.txt", *text);
  }
  if (has_two_files) {
    config["tokenizer_class"] = "GPT2Tokenizer";
    config["add_prefix_space"] = false;
    for (const char* role : {"bos_token", "eos_token", "unk_token"}) config[role] = end;
  } else if (name.starts_with("bert-")) {
    config["tokenizer_class"] = "BertTokenizer";
    config["do_lower_case"] = name == "bert-uncased";
  } else if (name == "sentencepiece") {
    // The class would begin texts with <s>, some versions of it in every call: the model has met none in training.
    config["tokenizer_class"] = "LlamaTokenizer";
    config["legacy"] = false;
    config["add_bos_token"] = false;
    for (const char* role : {"bos_token", "eos_token"}) config[role] = end;
    if (const auto pad = tokenizer.special(tokenizer::Special::pad)) config["pad_token"] = tokenizer.token_bytes(*pad);
  } else {
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    if (name != "byte") config["eos_token"] = end;
  }
  if (exported.chat_template && name != "byte") {
    const data::ChatTemplate chat = *exported.chat_template;
    config["eos_token"] = end;
    if (chat == data::ChatTemplate::llama3) config["bos_token"] = data::kLlama3Begin;
    io::write_file(fs, folder / "chat_template.jinja", std::string(data::jinja_of(chat)));
  }
  io::write_file(fs, folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace megalith::convert
