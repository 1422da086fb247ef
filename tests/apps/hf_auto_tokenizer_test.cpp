#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/apps/transformers_python.h"
#include "tests/test_data.h"

// The tokenizer beside an exported model, of every family: its files, and what the transformers library makes of them.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;
using ::testing::HasSubstr;

/// A family by its model_type, and the settings that make a model of it.
struct Family {
  std::string model_type, settings;
};
std::vector<Family> families() {
  const std::string llama = "--set model.family=llama --set model.num_heads=2 ";
  const std::string experts = llama + "--set moe.num_experts=4 --set moe.top_k=2 ";
  return {
      {"gpt2", ""},
      {"llama", llama},
      {"mixtral", experts + "--set moe.normalize_top_k=true "},
      {"olmoe", experts + "--set model.qk_norm=all "},
      {"qwen2_moe", experts + "--set moe.shared_ffn_hidden_size=8 --set moe.shared_gate=true --set model.bias=qkv "},
      {"qwen3_moe", experts + "--set model.qk_norm=head "}};
}

/// A vocabulary: the tokenizer's name and its folder, "" for that of the program.
struct Vocabulary {
  std::string name, tokenizer, folder, ids;

  std::string words() const { return folder.empty() ? tokenizer : tokenizer + " --vocab-dir " + folder; }
};

/// What may be cut otherwise: white space, in front, too, marks, scripts, names of special tokens.
nlohmann::json varied_texts() {
  return {
      "",
      " ",
      "Hello world",
      " Hello",
      "  two  spaces ",
      "\ttab\n\n new\r\nline  ",
      "it's they'LL 3rd 1234567 x2",
      "caf\u00E9 cafe\u0301 \u00C5ngstr\u00F6m \u212B stra\u00DFe \uFB01n",
      "\u4E2D\u6587\u5B57 \u65E5\u672C\u8A9E \uD55C\uAD6D\uC5B4",
      "\u0627\u0644\u0639\u0631\u0628\u064A\u0629 \u05E2\u05D1\u05E8\u05D9\u05EA \u0939\u093F\u0928\u094D\u0926\u0940",
      "\U0001F600\U0001F468\u200D\U0001F469\u200D\U0001F467 \U0001F1E9\U0001F1EA",
      "a\u00A0b\u2003c\u2028d\u3000e\uFEFFf",
      "\u0001\u007F\u0085",
      "if (a<b) { return a[0]->x; }  // ---",
      "the 5th line of a text that says little, 3 times.",
      "<|endoftext|>",
      " a <|endoftext|> b <|pad|>",
      "<|endoftext|><|endoftext|>",
      "[SEP] [CLS] [MASK] </s> <s> <unk>"};
}

class AutoTokenizer : public Program {
 protected:
  /// A vocabulary of the test's own text, of these files only.
  std::string own_bpe(const std::string& name, const std::string& files, const std::string& more = "") const {
    const Finished made = run_shell("megalith tokenizer train --type bpe --vocab-size 290 " + more + " --input " +
                                    out("text.txt") + " --output " + out(name + "_all") + " && mkdir " + out(name) +
                                    " && cd " + out(name + "_all") + " && cp " + files + " " + out(name));
    EXPECT_EQ(made.code, 0) << made.err;
    return out(name);
  }
  /// A trained model of a family with a vocabulary, exported into the returned folder.
  std::string exported(const Family& family, const Vocabulary& vocabulary) const {
    const std::string run = vocabulary.name + "_" + family.model_type, folder = run + "_hf";
    const Finished made =
        run_shell(train(run, family.settings + "--set train.steps=1 --set train.eval_interval=0 " +
                                 "--set data.tokenizer=" + vocabulary.tokenizer +
                                 " --set model.vocab_size=" + std::to_string(vocabulary_size(vocabulary)) +
                                 (vocabulary.folder.empty() ? "" : " --set data.vocab_dir=" + vocabulary.folder)) +
                  " && megalith checkpoint export-hf " + out(run) + " --out " + out(folder));
    EXPECT_EQ(made.code, 0) << made.err;
    const nlohmann::json config = nlohmann::json::parse(read_all(out(folder) + "/config.json"));
    EXPECT_EQ(config.at("model_type"), family.model_type);
    return out(folder);
  }

 private:
  static int vocabulary_size(const Vocabulary& vocabulary) {
    if (vocabulary.tokenizer == "gpt2") return 50257;
    if (vocabulary.tokenizer == "sentencepiece") return 300;
    return vocabulary.tokenizer == "bpe" ? 290 : vocabulary.tokenizer == "byte" ? 256 : 30522;
  }
};

TEST_F(AutoTokenizer, OfTwoFilesHasTokenizerJsonBesideAllFamiliesButGpt2) {
  const Vocabulary two_files = {"own", "bpe", own_bpe("own", "vocab.json merges.txt"), {}};
  for (const Family& family : families()) {
    SCOPED_TRACE(family.model_type);
    const std::string hf = exported(family, two_files);
    const bool is_gpt2 = family.model_type == "gpt2";
    EXPECT_EQ(run_shell("ls " + hf).out, std::string("config.json\nmerges.txt\nmodel.safetensors\n") +
                                             (is_gpt2 ? "" : "tokenizer.json\n") +
                                             "tokenizer_config.json\nvocab.json\n");
    if (is_gpt2) continue;
    // An import takes it, and it alone gives the ids of the two files.
    const Finished imported = run_shell("megalith checkpoint import-hf " + hf + " --out " + hf + "_in");
    EXPECT_EQ(imported.code, 0) << imported.err;
    EXPECT_EQ(imported.err, "");
    const std::string texts = out("text.txt"), alone = hf + "_alone";
    ASSERT_EQ(run_shell("mkdir " + alone + " && cp " + hf + "/tokenizer.json " + alone).code, 0);
    const Finished ids = run_shell("megalith tokenize --tokenizer bpe --vocab-dir " + alone + " " + texts);
    EXPECT_EQ(ids.code, 0) << ids.err;
    EXPECT_EQ(ids.out,
              run_shell("megalith tokenize --tokenizer bpe --vocab-dir " + two_files.folder + " " + texts).out);
  }
}

/// Files, and their names in tokenizer_config.json: the ids of config.json, and of training, which knows no <s>.
TEST_F(AutoTokenizer, OfSentencepieceBeginsAndEndsTextsWithTheEndOfADocument) {
  const Finished made = run_shell("megalith tokenizer train --type sentencepiece-bpe --vocab-size 300 --input " +
                                  out("text.txt") + " --output " + out("pieces"));
  if (made.err.find("built without the sentencepiece library") != std::string::npos) GTEST_SKIP() << made.err;
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string hf = exported(families()[1], {"pieces", "sentencepiece", out("pieces"), {}});
  const auto read = [&](const char* name) { return nlohmann::json::parse(read_all(hf + name)); };
  const nlohmann::json config = read("/config.json"), tokenizer = read("/tokenizer_config.json");
  EXPECT_EQ(config.at("bos_token_id"), 2);
  EXPECT_EQ(config.at("eos_token_id"), 2);
  EXPECT_EQ(config.at("pad_token_id"), 3);
  EXPECT_EQ(tokenizer.at("tokenizer_class"), "LlamaTokenizer");
  EXPECT_EQ(tokenizer.at("bos_token"), "</s>");
  EXPECT_EQ(tokenizer.at("eos_token"), "</s>");
  EXPECT_EQ(tokenizer.at("pad_token"), "<pad>");
  EXPECT_EQ(tokenizer.at("add_bos_token"), false);
  const std::string python = support::python_with_transformers();
  if (python.empty()) return;  // continuous integration has none; by hand as below
  const Finished compared =
      run_shell("touch " + out("none.jsonl") + " && HF_HUB_OFFLINE=1 " + python +
                " " MEGALITH_TEST_DATA "/../reference/check_hf_tokenizers.py " + hf + " " + out("none.jsonl"));
  EXPECT_EQ(compared.code, 0) << compared.out << compared.err;
}

// Continuous integration has no transformers: it skips this test. By hand, with a Python that has version 5 of it:
//   MEGALITH_TEST_PYTHON=VENV/bin/python build/PRESET/bin/tests_L10 --gtest_filter='AutoTokenizer.*'
TEST_F(AutoTokenizer, GivesTheIdsOfTokenizeForEveryFamily) {
  const std::string python = support::python_with_transformers();
  if (python.empty()) GTEST_SKIP() << support::kNoTransformers;
  std::ofstream texts(dir_ / "texts.jsonl");
  for (const nlohmann::json& text : varied_texts()) texts << nlohmann::json{{"text", text}}.dump() << '\n';
  texts.close();
  Vocabulary vocabularies[] = {{"gpt2", "gpt2", "", {}},
                               {"own", "bpe", own_bpe("own", "vocab.json merges.txt"), {}},
                               {"whole", "bpe", own_bpe("whole", "tokenizer.json", "--special '<|pad|>'"), {}},
                               {"byte", "byte", "", {}},
                               {"bert", "bert-uncased", MEGALITH_TEST_DATA "/../../share/bert-uncased", {}}};
  std::string command = "HF_HUB_OFFLINE=1 " + python + " " MEGALITH_TEST_DATA "/../reference/check_hf_tokenizers.py";
  for (Vocabulary& vocabulary : vocabularies) {
    vocabulary.ids = out(vocabulary.name + ".jsonl");
    const Finished ids = run_shell("megalith tokenize " + out("texts.jsonl") + " --tokenizer " + vocabulary.words() +
                                   " > " + vocabulary.ids);
    ASSERT_EQ(ids.code, 0) << ids.err;
    for (const Family& family : families()) command += " " + exported(family, vocabulary) + " " + vocabulary.ids;
  }
  const Finished compared = run_shell(command);
  EXPECT_EQ(compared.code, 0) << compared.out << compared.err;
  EXPECT_THAT(compared.out, HasSubstr("transformers 5.")) << "of version 5 this is a claim";
}

}  // namespace
}  // namespace megalith
