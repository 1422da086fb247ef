#include "megalith/tokenizer/tokenizer_files.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace megalith::tokenizer {

using nlohmann::ordered_json;

ordered_json vocab_object(std::span<const std::string> tokens) {
  ordered_json vocab = ordered_json::object();
  auto& members = vocab.get_ref<ordered_json::object_t&>();
  members.reserve(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) members.emplace_back(tokens[id], id);
  return vocab;
}

ordered_json special_token(std::size_t id, std::string_view content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

ordered_json byte_level_bpe_json(ByteLevelCut cut, const BpeParts& parts) {
  const bool is_cut = cut == ByteLevelCut::gpt2;
  const ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", is_cut}};
  ordered_json model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false}};
  if (is_cut) model["ignore_merges"] = false;  // only where it matters: older versions of the library do not know it
  model["vocab"] = parts.vocab;
  model["merges"] = parts.merges;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", parts.added_tokens},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", model}};
}

namespace {

/// "[CLS] text [SEP]", and for two texts "[CLS] text [SEP] text [SEP]".
ordered_json cls_and_sep(std::span<const std::string> tokens) {
  const auto found = [&](std::string_view token) { return std::ranges::find(tokens, token); };
  if (found("[CLS]") == tokens.end() || found("[SEP]") == tokens.end()) return nullptr;
  const auto piece = [](const char* kind, const char* id, int type) {
    return ordered_json{{kind, {{"id", id}, {"type_id", type}}}};
  };
  const auto special = [&](const char* token) {
    return ordered_json{{"id", token}, {"ids", {found(token) - tokens.begin()}}, {"tokens", {token}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", {piece("SpecialToken", "[CLS]", 0), piece("Sequence", "A", 0), piece("SpecialToken", "[SEP]", 0)}},
          {"pair",
           {piece("SpecialToken", "[CLS]", 0), piece("Sequence", "A", 0), piece("SpecialToken", "[SEP]", 0),
            piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)}},
          {"special_tokens", {{"[CLS]", special("[CLS]")}, {"[SEP]", special("[SEP]")}}}};
}

}  // namespace

ordered_json wordpiece_json(std::span<const std::string> tokens, const ordered_json& added_tokens, LetterCase letters) {
  constexpr const char* kContinuation = "##";
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", letters == LetterCase::lowered}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", cls_and_sep(tokens)},
          {"decoder", {{"type", "WordPiece"}, {"prefix", kContinuation}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", kContinuation},
            {"max_input_chars_per_word", 100},
            {"vocab", vocab_object(tokens)}}}};
}

}  // namespace megalith::tokenizer
