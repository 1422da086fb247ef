#include "megalith/convert/hf_tokenizer.h"

#include <string>

#include <nlohmann/json.hpp>

namespace megalith::convert {
namespace {

using nlohmann::ordered_json;

/// UTF-8 of a code point below 0x800.
std::string utf8(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

/// The character that byte-level vocabularies write for each byte: itself where it is a visible one of Latin-1, else
/// the next of those from U+0100 on. Source: openai/gpt-2, encoder.py, bytes_to_unicode.
std::vector<std::string> byte_characters() {
  std::vector<std::string> characters;
  unsigned others = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    characters.push_back(utf8(visible ? byte : 0x100 + others++));
  }
  return characters;
}

/// The byte tokenizer as the tokenizers library keeps one: a BPE without merges.
std::string byte_tokenizer_json() {
  const std::vector<std::string> characters = byte_characters();
  ordered_json vocab = ordered_json::object();
  for (std::size_t byte = 0; byte < characters.size(); ++byte) vocab[characters[byte]] = byte;
  const ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return ordered_json{{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", ordered_json::array()},
                      {"normalizer", nullptr},
                      {"pre_tokenizer", byte_level},
                      {"post_processor", nullptr},
                      {"decoder", byte_level},
                      {"model",
                       {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"vocab", vocab},
                        {"merges", ordered_json::array()}}}}
      .dump(1);
}

}  // namespace

void export_hf_tokenizer(io::Fs& fs, const io::Path& folder, const data::Tokenizer& tokenizer,
                         std::span<const data::VocabularyFile> files, Index seq_len) {
  const std::string_view name = tokenizer.name();
  for (const data::VocabularyFile& file : files) io::write_file(fs, folder / file.name, file.text);
  if (name == "byte") io::write_file(fs, folder / "tokenizer.json", byte_tokenizer_json() + "\n");
  ordered_json config = {{"model_max_length", seq_len}, {"clean_up_tokenization_spaces", false}};
  const bool has_two_files = !files.empty() && files.front().name == "vocab.json";
  if (has_two_files) {
    const std::string end(tokenizer.token_bytes(tokenizer.end_of_document()));
    config["tokenizer_class"] = "GPT2Tokenizer";
    config["add_prefix_space"] = false;
    for (const char* role : {"bos_token", "eos_token", "unk_token"}) config[role] = end;
  } else if (name.starts_with("bert-")) {
    config["tokenizer_class"] = "BertTokenizer";
    config["do_lower_case"] = name == "bert-uncased";
  } else if (name == "sentencepiece") {
    config["tokenizer_class"] = "LlamaTokenizer";
    config["legacy"] = false;
  } else {
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    if (name != "byte") config["eos_token"] = tokenizer.token_bytes(tokenizer.end_of_document());
  }
  io::write_file(fs, folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace megalith::convert
