#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/bert_program.h"
#include "tests/apps/transformers_python.h"
#include "tests/convert/hf_cases.h"
#include "tests/test_data.h"

// A small BERT from text to a held-out loss, by the program.
namespace megalith {
namespace {

using support::BertProgram;
using support::Finished;
using support::run_shell;
using ::testing::HasSubstr;

/// A line of metrics without what a clock measures.
std::string numbers_of(const std::string& line) { return line.substr(0, line.find(",\"step_time_s\"")); }

TEST_F(BertProgram, TrainsFromSentencesAndResumesWithTheSameBits) {
  ASSERT_EQ(build_sentences().code, 0);
  const Finished whole = train_bert("whole", "--set checkpoint.interval=3");
  ASSERT_EQ(whole.code, 0) << whole.err;
  const std::vector<std::string> lines = metrics("whole");
  ASSERT_EQ(lines.size(), 8U);
  for (const std::size_t line : {0, 3}) {  // a step and an evaluation
    for (const char* name : {"\"mlm_loss\":", "\"masked_tokens\":", "\"order_loss\":", "\"order_accuracy\":"})
      EXPECT_THAT(lines[line], HasSubstr(name));
    const nlohmann::json members = nlohmann::json::parse(lines[line]);
    EXPECT_DOUBLE_EQ(members.at("perplexity").get<double>(), std::exp(members.at("mlm_loss").get<double>()));
  }
  ASSERT_EQ(
      run_shell("cp -r " + out("whole") + " " + out("half") + " && rm -r " + out("half") + "/checkpoints/step_00000006")
          .code,
      0);
  const Finished rest = train_bert("half", "--resume --set checkpoint.interval=3");
  ASSERT_EQ(rest.code, 0) << rest.err;
  const std::vector<std::string> again = metrics("half");
  ASSERT_EQ(again.size(), lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(numbers_of(again[i]), numbers_of(lines[i])) << i;
}

TEST_F(BertProgram, GridsAndTextsTrainAlike) {
  ASSERT_EQ(build_sentences().code, 0);
  const std::string fp64 = "--set train.precision=fp64 ";
  ASSERT_EQ(train_bert("one", fp64).code, 0);
  const Finished grid = train_bert("grid", fp64 + "--set parallel.tp=2 --set parallel.pp=2 --set parallel.ranks=4");
  ASSERT_EQ(grid.code, 0) << grid.err;
  const Finished text = train_bert("text", fp64 + "--set data.train=" + (dir_ / "stories.jsonl").string());
  ASSERT_EQ(text.code, 0) << text.err;
  const auto loss_of = [&](const std::string& name) {
    const std::string line = metrics(name).back();
    return std::stod(line.substr(line.find("\"loss\":") + 7));
  };
  EXPECT_NEAR(loss_of("grid"), loss_of("one"), 1e-11);
  EXPECT_EQ(loss_of("text"), loss_of("one")) << "a text is cut into the same sentences";
}

/// Both losses, the norm and the counts of each line, a relative 1e-12 apart at most.
void expect_same_training(const std::vector<std::string>& got, const std::vector<std::string>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const nlohmann::json mine = nlohmann::json::parse(got[i]), other = nlohmann::json::parse(want[i]);
    for (const char* key : {"loss", "mlm_loss", "order_loss", "order_accuracy", "masked_tokens"})
      EXPECT_NEAR(mine.at(key).get<double>(), other.at(key).get<double>(), 1e-12 * other.at(key).get<double>())
          << key << " of " << want[i];
    const auto norm = [](const nlohmann::json& line) { return line.value("grad_norm", 0.0); };  // 0: an evaluation
    EXPECT_NEAR(norm(mine), norm(other), 1e-12 * norm(other)) << want[i];
  }
}

TEST_F(BertProgram, ATraceHasTheOpsOfItsHeads) {
  ASSERT_EQ(build_sentences().code, 0);
  const std::string file = out("trace.json");
  const Finished run = train_bert("traced", "--set parallel.pp=2 --set parallel.ranks=2 --trace " + file);
  ASSERT_EQ(run.code, 0) << run.err;
  std::ifstream text(file);
  std::set<std::pair<int, std::string>> ops;
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const nlohmann::json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") ops.emplace(event.at("pid").get<int>(), event.at("name").get<std::string>());
  for (const int rank : {0, 1}) EXPECT_TRUE(ops.contains({rank, "attention_backward"})) << rank;
  EXPECT_TRUE(ops.contains({1, "cross_entropy"}));
  EXPECT_FALSE(ops.contains({0, "cross_entropy"})) << "the heads are on the last stage";
}

TEST_F(BertProgram, ItsRecipesArePlanned) {
  for (const auto& [recipe, parameters] :
       {std::pair<std::string, int>{"bert-small", 4772668}, {"bert-books", 41471804}}) {
    const Finished plan =
        run_shell("megalith plan " MEGALITH_TEST_DATA "/../../recipes/" + recipe + ".toml --format json");
    ASSERT_EQ(plan.code, 0) << recipe << plan.err;
    EXPECT_EQ(nlohmann::json::parse(plan.out).at("parameters"), parameters) << recipe;
  }
}

TEST_F(BertProgram, ARunGoesOnOnAnotherGrid) {
  ASSERT_EQ(build_sentences().code, 0);
  const std::string fp64 = "--set train.precision=fp64 --set checkpoint.interval=3 ";
  ASSERT_EQ(train_bert("one", fp64).code, 0);
  ASSERT_EQ(train_bert("moved", fp64 + "--set parallel.tp=2 --set parallel.pp=2").code, 0);
  expect_same_training(metrics("moved"), metrics("one"));
  std::filesystem::remove_all(dir_ / "moved/checkpoints/step_00000006");
  const Finished rest =
      train_bert("moved", fp64 + "--resume --ranks 2 --set train.micro_batch=4 --set optimizer.distributed=true");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.err, HasSubstr("step 3"));
  expect_same_training(metrics("moved"), metrics("one"));
}

#ifdef MEGALITH_WITH_MPI
TEST_F(BertProgram, UnderMpirunItTrainsWithTheBitsOfRankThreads) {
  ASSERT_EQ(build_sentences().code, 0);
  const auto arguments = [&](const std::string& name) {
    return " train " + out("bert.toml") + " --out " + out(name) +
           " --set parallel.tp=2 --set parallel.sequence_parallel=true";
  };
  const std::string two_copies = " --ranks 4";
  const Finished threads = run_shell("megalith" + arguments("threads") + two_copies);
  ASSERT_EQ(threads.code, 0) << threads.err;
  const Finished processes = run_shell(support::mpirun(4, support::program() + arguments("processes")));
  ASSERT_EQ(processes.code, 0) << processes.err;
  EXPECT_EQ(metrics("processes"), metrics("threads"));
}
#endif

TEST_F(BertProgram, WhatDoesNotFitIsRefused) {
  ASSERT_EQ(build_sentences().code, 0);
  const Finished bytes = train_bert("bytes", "--set data.tokenizer=byte");
  EXPECT_EQ(bytes.code, 64);
  EXPECT_THAT(bytes.err, HasSubstr("has no [CLS], [SEP], [MASK], [PAD]"));
  write_all(dir_ / "single.jsonl", "{\"text\": \"One\"}\n{\"text\": \"Two\"}\n");
  const Finished single =
      train_bert("single", "--set data.split= --set data.train=" + (dir_ / "single.jsonl").string());
  EXPECT_EQ(single.code, 65) << single.err;
  EXPECT_THAT(single.err, HasSubstr("no document has two sentences: use bert.order = \"none\", or `data build "
                                    "--sentences`"));
  ASSERT_EQ(train_bert("done").code, 0);
  const Finished refused = run_shell("megalith generate --checkpoint " + out("done") + " --prompt a");
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("model.family = bert: must be a model that predicts the next token"));
}

TEST_F(BertProgram, GoesToHuggingFaceAndBackWithItsTokenizer) {
  ASSERT_EQ(build_sentences().code, 0);
  for (const std::string placement : {"pre", "post"}) {
    SCOPED_TRACE(placement);
    const std::string norms = "--set model.norm_placement=" + placement + " ", hf = out("hf_" + placement);
    ASSERT_EQ(train_bert(placement, norms).code, 0);
    const Finished exported = run_shell("megalith checkpoint export-hf " + out(placement) + " --out " + hf);
    ASSERT_EQ(exported.code, 0) << exported.err;
    EXPECT_THAT(exported.out, HasSubstr(placement == "pre" ? ": a MegatronBertForPreTraining and its tokenizer"
                                                           : ": a BertForPreTraining and its tokenizer"));
    EXPECT_EQ(run_shell("ls " + hf).out,
              "config.json\nmodel.safetensors\ntokenizer.json\ntokenizer_config.json\nvocab.txt\n");
    const Finished imported = run_shell("megalith checkpoint import-hf " + hf + " --out " + out("in_" + placement));
    ASSERT_EQ(imported.code, 0) << imported.err;
    EXPECT_EQ(imported.err, "") << "all heads and the tokenizer";
    // It begins a run with the same values.
    const auto tune = [&](const std::string& name, const std::string& from) {
      return train_bert(name, norms + "--set train.steps=1 --set train.eval_interval=0 --set train.init=" + out(from));
    };
    const Finished tuned = tune("tuned_" + placement, "in_" + placement);
    ASSERT_EQ(tuned.code, 0) << tuned.err;
    ASSERT_EQ(tune("own_" + placement, placement).code, 0);
    EXPECT_EQ(numbers_of(metrics("tuned_" + placement).front()), numbers_of(metrics("own_" + placement).front()));
  }
}

// Each of both files of an exported tokenizer alone gives the ids of the reference.
TEST_F(BertProgram, ExportedTokenizersGiveTheIdsOfTheReference) {
  ASSERT_EQ(build_sentences().code, 0);
  ASSERT_EQ(train_bert("a", "--set train.steps=1 --set train.eval_interval=0").code, 0);
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf")).code, 0);
  std::ofstream texts(dir_ / "texts.jsonl");
  std::vector<nlohmann::json> wanted;
  std::ifstream cases(MEGALITH_TEST_DATA "/bert/wordpiece_cases.jsonl");
  for (std::string line; std::getline(cases, line);) {
    const nlohmann::json one = nlohmann::json::parse(line);
    wanted.push_back(one.at("ids"));
    texts << nlohmann::json{{"text", one.at("text")}}.dump() << '\n';
  }
  texts.close();
  ASSERT_EQ(wanted.size(), 100U);
  for (const std::string file : {"vocab.txt", "tokenizer.json"}) {
    SCOPED_TRACE(file);
    const std::string alone = out("alone_" + file);
    const Finished ids =
        run_shell("mkdir " + alone + " && cp " + out("hf") + "/" + file + " " + alone + " && megalith tokenize " +
                  out("texts.jsonl") + " --tokenizer bert-uncased --vocab-dir " + alone);
    ASSERT_EQ(ids.code, 0) << ids.err;
    std::istringstream lines(ids.out);
    std::size_t n = 0;
    for (std::string line; std::getline(lines, line); ++n)
      EXPECT_EQ(nlohmann::json::parse(line).at("ids"), wanted.at(n)) << line;
    EXPECT_EQ(n, wanted.size());
  }
  const std::string python = support::python_with_transformers();
  if (python.empty()) return;  // the library itself: TransformersComputesTheSameOfAnExport states how
  const Finished library =
      run_shell("HF_HUB_OFFLINE=1 " + python + " " MEGALITH_TEST_DATA "/../reference/check_hf_tokenizers.py " +
                out("hf") + " " MEGALITH_TEST_DATA "/bert/wordpiece_cases.jsonl");
  EXPECT_EQ(library.code, 0) << library.out << library.err;
}

TEST_F(BertProgram, AnImportNamesTheHeadsThatItMakes) {
  const support::HfCase one("bert_model");
  const Finished imported = run_shell("megalith checkpoint import-hf " + one.folder.string() + " --out " + out("a"));
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.err, HasSubstr("bert_model has no head for masked tokens (cls.predictions), head for the order "
                                      "(cls.seq_relationship): made from seed 1234\n"));
  EXPECT_THAT(imported.err, HasSubstr("bert_model holds no tokenizer (vocab.txt, or tokenizer.json)"));
  const Finished exported = run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("b"));
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr(": a BertForPreTraining without a tokenizer"));
}

// Continuous integration has no transformers: it skips this test. By hand:
//   MEGALITH_TEST_PYTHON=VENV/bin/python build/PRESET/bin/tests_L10 --gtest_filter='BertProgram.*'
TEST_F(BertProgram, TransformersComputesTheSameOfAnExport) {
  const std::string python = support::python_with_transformers();
  if (python.empty()) GTEST_SKIP() << support::kNoTransformers;
  for (const char* name : {"bert", "bert_tanh", "bert_masked_lm", "bert_model", "megatron_bert", "megatron_bert_tanh",
                           "bert_classes", "megatron_bert_classes", "bert_choice", "megatron_bert_span"}) {
    SCOPED_TRACE(name);
    const std::string folder = support::HfCase(name).folder.string(), run = out(name), hf = run + "_hf";
    ASSERT_EQ(run_shell("megalith checkpoint import-hf " + folder + " --out " + run +
                        " && megalith checkpoint export-hf " + run + " --out " + hf)
                  .code,
              0);
    const Finished checked =
        run_shell("HF_HUB_OFFLINE=1 " + python + " " MEGALITH_TEST_DATA "/../reference/make_hf_bert.py --check " + hf +
                  " " + folder);
    EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
  }
}

TEST_F(BertProgram, BenchesAStep) {
  const Finished bench = run_shell(
      "megalith bench step --layers 2 --hidden 16 --heads 2 --vocab 300 --seq 24 --batch 4 --steps 2 --warmup 1 --set "
      "model.family=bert");
  EXPECT_EQ(bench.code, 0) << bench.err;
  const Finished plan = run_shell("megalith plan " + (dir_ / "bert.toml").string() + " --set parallel.pp=2");
  EXPECT_EQ(plan.code, 0) << plan.err;
}

}  // namespace
}  // namespace megalith
