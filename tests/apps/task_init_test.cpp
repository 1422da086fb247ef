#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/task_program.h"
#include "tests/convert/hf_cases.h"

// task.init = a Hugging Face folder.
namespace megalith {
namespace {

using support::Finished;
using support::HfCase;
using support::run_shell;
using ::testing::HasSubstr;
using ::testing::Not;

class TaskInit : public support::TaskProgram {
 protected:
  std::string init(const std::string& name) const { return "--set task.init=" + out(name) + " "; }
  /// A copy of a folder of tests/data/hf, with a vocabulary of as many words.
  void copy_case(const std::string& name, const std::string& to) const {
    std::filesystem::copy(HfCase(name).folder, dir_ / to);
    std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nbirds\nthey\nflew\nyes\nno\n";
    for (char letter = 'a'; letter <= 'z'; ++letter) words += std::string(1, letter) + "\n";
    write_all(dir_ / to / "vocab.txt", words);
  }
  /// The numbers of a run's metrics.
  std::vector<std::string> numbers(const std::string& name, const std::string& more) const {
    const Finished run = finetune(name, more);
    EXPECT_EQ(run.code, 0) << run.err;
    std::vector<std::string> lines;
    for (const std::string& line : metrics(name)) lines.push_back(numbers_of(line));
    return lines;
  }
};

TEST_F(TaskInit, AFolderOfHuggingFaceTrainsAsTheCheckpointThatItWasExportedFrom) {
  for (const std::string placement : {"pre", "post"}) {
    SCOPED_TRACE(placement);
    const std::string bert = placement, hf = "hf_" + placement;
    pretrain(bert, "--set model.norm_placement=" + placement);
    ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out(bert) + " --out " + out(hf)).code, 0);
    const std::vector<std::string> want = numbers("own_" + placement, init(bert));
    EXPECT_EQ(want.size(), 8U);
    EXPECT_EQ(numbers("of_hf_" + placement, init(hf)), want);
  }
  int grids = 0;
  for (const std::string grid : {"--set parallel.tp=2 --set parallel.pp=2 --set parallel.ranks=4",
                                 "--ranks 2 --set optimizer.distributed=true"}) {
    const std::string end = "_on_grid" + std::to_string(grids++);
    EXPECT_EQ(numbers("of_hf" + end, init("hf_pre") + grid), numbers("own" + end, init("pre") + grid)) << grid;
  }
}

TEST_F(TaskInit, AResumeDoesNotReadTheFolderAgain) {
  pretrain();
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out("bert") + " --out " + out("hf")).code, 0);
  const std::string more = init("hf") + "--set checkpoint.interval=2 ";
  const std::vector<std::string> whole = numbers("whole", more);
  ASSERT_EQ(
      run_shell("cp -r " + out("whole") + " " + out("half") + " && rm -r " + out("half") + "/checkpoints/step_00000006")
          .code,
      0);
  write_all(dir_ / "hf" / "config.json", "{");
  EXPECT_EQ(numbers("half", more + "--resume"), whole);
  EXPECT_EQ(finetune("again", more).code, 65) << "a new run reads it";
}

TEST_F(TaskInit, WhatAFolderLacksComesFromTheSeedAndIsNamed) {
  copy_case("bert_model", "hf");
  const Finished whole = finetune("whole", init("hf"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.err,
              HasSubstr("task.init: the folder has no head.classes.weight, head.classes.bias: from the seed\n"));
  copy_case("bert_masked_lm", "masked");
  const Finished masked = finetune("masked_run", init("masked"));
  ASSERT_EQ(masked.code, 0) << masked.err;
  EXPECT_THAT(masked.err, HasSubstr("task.init: the folder has no head.pooler.weight, head.pooler.bias, "
                                    "head.classes.weight, head.classes.bias: from the seed\n"));
  const Finished plan = run_shell("megalith recipe " + (dir_ / "mnli.toml").string() + " " + init("hf"));
  EXPECT_THAT(plan.out, HasSubstr("vocab_dir = '" + out("hf") + "'"));
  EXPECT_THAT(plan.out, HasSubstr("norm_placement = 'post'"));
}

TEST_F(TaskInit, AFolderThatDoesNotFitIsRefused) {
  const auto refused = [&](int code, const std::string& more, const std::string& text) {
    const Finished run = finetune("refused", more);
    EXPECT_EQ(run.code, code) << more << run.err;
    EXPECT_THAT(run.err, HasSubstr(text)) << more;
    EXPECT_THAT(run.err, Not(HasSubstr("import-hf"))) << more;
    EXPECT_FALSE(std::filesystem::exists(dir_ / "refused")) << more;
  };
  const std::string bare = HfCase("bert").folder.string();
  refused(66, "--set task.init=" + HfCase("llama_tied").folder.string(),
          "/llama_tied/config.json: model_type = llama: must be bert or megatron-bert: an encoder is fine-tuned");
  refused(65, "--set task.init=" + bare,
          "[task.init] " + bare +
              " holds no tokenizer (vocab.txt, or tokenizer.json): give data.vocab_dir, a folder of the model's "
              "vocabulary");
  copy_case("bert", "hf");
  refused(66, init("hf") + "--set model.hidden_size=20", "model.hidden_size = 20: task.init has 16; remove the key");
  refused(66, init("hf") + "--set model.seq_len=17",
          "model.seq_len = 17: must be at most 16, the positions of task.init");
  refused(66, init("hf") + "--set data.tokenizer=byte", "data.tokenizer = byte: task.init has bert-uncased");
  std::string words = read_all(dir_ / "hf" / "vocab.txt");
  words.replace(words.find("the\nbirds\n"), 10, "birds\nthe\n");
  std::filesystem::create_directory(dir_ / "words");
  write_all(dir_ / "words" / "vocab.txt", words);
  refused(66, init("hf") + "--set data.vocab_dir=" + out("words"),
          "[task.init] " + out("hf") + " has another tokenizer than data.vocab_dir = " + out("words") +
              " (other words, or other rules to cut them); remove data.vocab_dir");
  std::filesystem::copy(dir_ / "hf" / "vocab.txt", dir_ / "words" / "vocab.txt",
                        std::filesystem::copy_options::overwrite_existing);
  const Finished same_words = finetune("same_words", init("hf") + "--set data.vocab_dir=" + out("words"));
  EXPECT_EQ(same_words.code, 0) << same_words.err;
  const std::string config = read_all(dir_ / "hf" / "config.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    text.replace(text.find(from), from.size(), to);
    write_all(dir_ / "hf" / "config.json", text);
  };
  with("\"type_vocab_size\": 2", "\"type_vocab_size\": 1");
  refused(66, init("hf"), "type_vocab_size = 1: must be at least 2: a task has two segments");
  with("\"intermediate_size\": 20", "\"intermediate_size\": 24");
  refused(65, init("hf"), "shape = [20, 16]: must be [24, 16] by config.json");
  with("\"hidden_act\": \"gelu\"", "\"hidden_act\": \"relu\"");
  refused(65, init("hf"), "hidden_act = \"relu\": must be gelu, ");
}

// A fine-tuned model in the library's form, and back.
TEST_F(TaskInit, AFineTunedModelGoesToHuggingFaceAndBack) {
  pretrain();
  ASSERT_EQ(finetune("run").code, 0);
  const Finished exported = run_shell("megalith checkpoint export-hf " + out("run") + " --out " + out("hf"));
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr(": a MegatronBertForSequenceClassification and its tokenizer"));
  const std::string config = read_all(dir_ / "hf" / "config.json");
  EXPECT_THAT(config, HasSubstr("\"max_position_embeddings\": 24"));
  EXPECT_THAT(config, HasSubstr("\"id2label\": {\n    \"0\": \"entailment\",\n    \"1\": \"neutral\",\n    \"2\": "
                                "\"contradiction\"\n  }"));
  const Finished imported = run_shell("megalith checkpoint import-hf " + out("hf") + " --out " + out("in"));
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(imported.err, "") << "with all tensors and the tokenizer";
  for (const char* const name : {"run", "hf", "in"}) {
    const Finished scored = run_shell("megalith eval " + out(name) + " --task mnli --data " + out("dev.tsv") +
                                      " --device cpu --predictions " + out("predictions_") + name);
    ASSERT_EQ(scored.code, 0) << scored.err;
    EXPECT_EQ(read_all(out("predictions_") + name), read_all(out("predictions_run"))) << name;
  }
  const Finished more = finetune("more", init("hf"));
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.err, Not(HasSubstr("from the seed"))) << "it has the head of the task";
  EXPECT_EQ(run_shell("megalith eval " + out("hf") + " --task qqp --data " + out("dev.tsv")).code, 64);
}

TEST_F(TaskInit, AHeadOfAnUnknownTaskIsNotImported) {
  const auto import_with = [&](const std::string& name, const std::string& from, const std::string& to) {
    std::filesystem::remove_all(dir_ / "hf");
    copy_case(name, "hf");
    std::string text = read_all(dir_ / "hf" / "config.json");
    text.replace(text.find(from), from.size(), to);
    write_all(dir_ / "hf" / "config.json", text);
    const Finished imported = run_shell("megalith checkpoint import-hf " + out("hf") + " --out " + out("in"));
    EXPECT_EQ(imported.code, 65) << imported.err;
    EXPECT_FALSE(std::filesystem::exists(dir_ / "in"));
    return imported.err;
  };
  EXPECT_THAT(
      import_with("bert_classes", "\"neutral\"", "\"perhaps\""),
      HasSubstr("id2label: must be entailment, neutral, contradiction (mnli), or not_duplicate, duplicate (qqp), "
                "in this order"));
  const Finished as_init = finetune("refused", init("hf"));
  EXPECT_EQ(as_init.code, 65) << as_init.err;
  EXPECT_THAT(as_init.err, HasSubstr("id2label: must be entailment, neutral, contradiction (mnli)"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "refused"));
  EXPECT_THAT(import_with("megatron_bert_span", "\"squad2\"", "\"newsqa\""),
              HasSubstr("finetuning_task = \"newsqa\": must be squad1 or squad2"));
}

}  // namespace
}  // namespace megalith
