#include "megalith/convert/hf_tokenizer.h"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/convert/hf_family.h"
#include "megalith/tokenizer/bpe_vocabulary.h"

#include "tests/io/temp_dir.h"
#include "tests/tokenizer/tokenizers.h"

// tests/apps/hf_auto_tokenizer_test.cpp asks the transformers library for ids.
namespace megalith::convert {
namespace {

TEST(HfTokenizer, OfGpt2IsItsVocabularyAndWhatItIsCalled) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  const tokenizer::VocabularyFiles files = tokenizer::read_vocabulary_files(*fs, "gpt2", tokenizer::gpt2_dir());
  export_hf_tokenizer(*fs, dir.path(), {*tokenizer::gpt2(), *files, kHfGpt2, 64});
  EXPECT_EQ(fs->list(dir.path()), (std::vector<std::string>{"merges.txt", "tokenizer_config.json", "vocab.json"}));
  EXPECT_EQ(read_all(dir / "vocab.json"), read_all(tokenizer::gpt2_dir() / "encoder.json"));
  EXPECT_EQ(read_all(dir / "merges.txt"), read_all(tokenizer::gpt2_dir() / "vocab.bpe"));
  EXPECT_EQ(nlohmann::json::parse(read_all(dir / "tokenizer_config.json")), nlohmann::json::parse(R"({
    "model_max_length": 64, "clean_up_tokenization_spaces": false, "tokenizer_class": "GPT2Tokenizer",
    "add_prefix_space": false,
    "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"})"));
}

/// The tokenizer of a tokenizer.json alone.
std::shared_ptr<const tokenizer::Tokenizer> alone(const io::Path& file, const char* name = "bpe") {
  const TempDir dir;
  std::filesystem::copy(file, dir / "tokenizer.json");
  return tokenizer::make_tokenizer(name, dir.path(), *io::posix_fs());
}

TEST(HfTokenizer, BesideOtherFamiliesTwoFilesAreAlsoOneWithTheSameIds) {
  const auto fs = io::posix_fs();
  const tokenizer::VocabularyFiles files = tokenizer::read_vocabulary_files(*fs, "gpt2", tokenizer::gpt2_dir());
  for (const HfFamily* family : hf_families()) {
    if (family == &kHfGpt2) continue;
    SCOPED_TRACE(family->name);
    const TempDir dir;
    export_hf_tokenizer(*fs, dir.path(), {*tokenizer::gpt2(), *files, *family, 64});
    EXPECT_EQ(fs->list(dir.path()),
              (std::vector<std::string>{"merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.json"}));
    if (family != &kHfMixtral) continue;
    const auto whole = alone(dir / "tokenizer.json");
    EXPECT_EQ(whole->content_hash(), tokenizer::gpt2()->content_hash());
    EXPECT_EQ(whole->added_tokens(), (std::vector<std::int32_t>{50256}));
    const nlohmann::json root = nlohmann::json::parse(read_all(dir / "tokenizer.json"));
    EXPECT_EQ(root.at("model").at("vocab"), nlohmann::json::parse(read_all(tokenizer::gpt2_dir() / "encoder.json")));
    EXPECT_EQ(root.at("model").at("merges").size(), 50000u);
    EXPECT_EQ(root.at("model").at("merges").at(0), "\u0120 t");
    EXPECT_EQ(root.at("pre_tokenizer").at("use_regex"), true);
    std::ifstream cases(std::filesystem::path(MEGALITH_TEST_DATA) / "gpt2" / "encode_cases.jsonl");
    for (std::string line; std::getline(cases, line);) {
      const nlohmann::json one = nlohmann::json::parse(line);
      EXPECT_EQ(whole->encode(one.at("text").get<std::string>()), one.at("ids").get<std::vector<std::int32_t>>())
          << line;
    }
  }
}

/// A vocabulary of the bytes, "ab" and an end of document in characters outside Latin-1, without "#version".
TEST(HfTokenizer, TheEndOfADocumentIsWrittenAsItIs) {
  const std::string end = "<\uFF5Cend\u2581of\u2581sentence\uFF5C>";
  nlohmann::json vocab;
  const auto spelling = [](std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) text += tokenizer::byte_spelling(static_cast<unsigned char>(byte));
    return text;
  };
  for (int byte = 0; byte < 256; ++byte) vocab[tokenizer::byte_spelling(static_cast<unsigned char>(byte))] = 257 - byte;
  vocab["ab"] = 0;
  vocab[spelling(end)] = 1;
  const TempDir own;
  const auto fs = io::posix_fs();
  io::write_file(*fs, own / "vocab.json", vocab.dump());
  io::write_file(*fs, own / "merges.txt", "a b\n");
  const auto tokenizer = tokenizer::make_tokenizer("bpe", own.path(), *fs);
  ASSERT_EQ(tokenizer->end_of_document(), 1);
  // GPT-2, too, has it: the library's class for the two files would make another token of the end.
  for (const HfFamily* family : {&kHfOlmoe, &kHfGpt2}) {
    const TempDir dir;
    export_hf_tokenizer(*fs, dir.path(),
                        {*tokenizer, *tokenizer::read_vocabulary_files(*fs, "bpe", own.path()), *family, 64});
    const nlohmann::json root = nlohmann::json::parse(read_all(dir / "tokenizer.json"));
    EXPECT_EQ(root.at("model").at("vocab").at(end), 1);
    EXPECT_EQ(root.at("added_tokens"),
              nlohmann::json::parse(R"([{"id": 1, "content": ")" + end + R"(", "single_word": false,
    "lstrip": false, "rstrip": false, "normalized": false, "special": true}])"));
    EXPECT_EQ(root.at("model").at("merges"), nlohmann::json::array({"a b"}));
    const auto whole = alone(dir / "tokenizer.json");
    EXPECT_EQ(whole->content_hash(), tokenizer->content_hash());
    EXPECT_EQ(whole->end_of_document(), 1);
    EXPECT_EQ(whole->encode("cab" + end), tokenizer->encode("cab" + end));
  }
}

TEST(HfTokenizer, BesideOtherFamiliesVocabTxtIsAlsoATokenizerJsonWithTheSameIds) {
  const auto fs = io::posix_fs();
  for (const char* const name : {"bert-uncased", "bert-cased"}) {
    const io::Path share = tokenizer::gpt2_dir() / ".." / name;
    const auto tokenizer = tokenizer::make_tokenizer(name, share, *fs);
    const tokenizer::VocabularyFiles files = tokenizer::read_vocabulary_files(*fs, name, share);
    const TempDir gpt2, dir;
    export_hf_tokenizer(*fs, gpt2.path(), {*tokenizer, *files, kHfGpt2, 64});
    EXPECT_EQ(fs->list(gpt2.path()), (std::vector<std::string>{"tokenizer_config.json", "vocab.txt"}));
    export_hf_tokenizer(*fs, dir.path(), {*tokenizer, *files, kHfMixtral, 64});
    EXPECT_EQ(fs->list(dir.path()), (std::vector<std::string>{"tokenizer.json", "tokenizer_config.json", "vocab.txt"}));
    EXPECT_EQ(alone(dir / "tokenizer.json", name)->content_hash(), tokenizer->content_hash());
    const nlohmann::json root = nlohmann::json::parse(read_all(dir / "tokenizer.json"));
    std::vector<std::string> special;
    for (const nlohmann::json& token : root.at("added_tokens")) special.push_back(token.at("content"));
    EXPECT_EQ(special, (std::vector<std::string>{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}));
  }
}

TEST(HfTokenizer, OfBytesHasATokenForEach) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  export_hf_tokenizer(*fs, dir.path(), {*tokenizer::bytes(), {}, kHfGpt2, 16});
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
  const nlohmann::json gpt2 = nlohmann::json::parse(read_all(tokenizer::gpt2_dir() / "encoder.json"));
  std::vector<bool> seen(256);
  for (const auto& [character, id] : model.at("vocab").items()) {
    const std::string_view bytes = tokenizer::gpt2()->token_bytes(gpt2.at(character).get<std::int32_t>());
    ASSERT_EQ(bytes.size(), 1u) << character;
    EXPECT_EQ(static_cast<unsigned char>(bytes[0]), id.get<unsigned>()) << character;
    seen.at(id.get<std::size_t>()) = true;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 256);
}

}  // namespace
}  // namespace megalith::convert
