#include "megalith/convert/hf_tokenizer.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data_pipeline/tokenizers.h"
#include "tests/io/temp_dir.h"

// What the transformers library makes of these files was looked at by hand: 199 of the 200 cases in
// tests/data/gpt2/encode_cases.jsonl have the same ids (the other one holds the text <|endoftext|>), and the byte
// tokenizer's are the bytes of each text.
namespace megalith::convert {
namespace {

TEST(HfTokenizer, OfGpt2IsItsVocabularyAndWhatItIsCalled) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  const data::VocabularyFiles files = data::read_vocabulary_files(*fs, "gpt2", data::gpt2_dir());
  export_hf_tokenizer(*fs, dir.path(), *data::gpt2(), *files, 64);
  EXPECT_EQ(fs->list(dir.path()), (std::vector<std::string>{"merges.txt", "tokenizer_config.json", "vocab.json"}));
  EXPECT_EQ(read_all(dir / "vocab.json"), read_all(data::gpt2_dir() / "encoder.json"));
  EXPECT_EQ(read_all(dir / "merges.txt"), read_all(data::gpt2_dir() / "vocab.bpe"));
  EXPECT_EQ(nlohmann::json::parse(read_all(dir / "tokenizer_config.json")), nlohmann::json::parse(R"({
    "model_max_length": 64, "clean_up_tokenization_spaces": false, "tokenizer_class": "GPT2Tokenizer",
    "add_prefix_space": false,
    "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"})"));
}

TEST(HfTokenizer, OfBytesHasATokenForEach) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  export_hf_tokenizer(*fs, dir.path(), *data::bytes(), {}, 16);
  EXPECT_EQ(fs->list(dir.path()), (std::vector<std::string>{"tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(nlohmann::json::parse(read_all(dir / "tokenizer_config.json")), nlohmann::json::parse(R"({
    "model_max_length": 16, "clean_up_tokenization_spaces": false, "tokenizer_class": "PreTrainedTokenizerFast"})"));
  const nlohmann::json root = nlohmann::json::parse(read_all(dir / "tokenizer.json"));
  const nlohmann::json& model = root.at("model");
  EXPECT_EQ(model.at("type"), "BPE");
  EXPECT_TRUE(model.at("merges").empty());
  EXPECT_EQ(root.at("pre_tokenizer").at("type"), "ByteLevel");
  EXPECT_EQ(root.at("pre_tokenizer").at("use_regex"), false);
  EXPECT_EQ(root.at("decoder").at("type"), "ByteLevel");
  // GPT-2 writes each byte by the same characters.
  const nlohmann::json gpt2 = nlohmann::json::parse(read_all(data::gpt2_dir() / "encoder.json"));
  std::vector<bool> seen(256);
  for (const auto& [character, id] : model.at("vocab").items()) {
    const std::string_view bytes = data::gpt2()->token_bytes(gpt2.at(character).get<std::int32_t>());
    ASSERT_EQ(bytes.size(), 1u) << character;
    EXPECT_EQ(static_cast<unsigned char>(bytes[0]), id.get<unsigned>()) << character;
    seen.at(id.get<std::size_t>()) = true;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 256);
}

}  // namespace
}  // namespace megalith::convert
