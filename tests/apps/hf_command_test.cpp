#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/convert/hf_cases.h"

// import-hf and export-hf of folders of Llama and of models with experts (GPT-2's: process_test.cpp and
// vocabulary_test.cpp).
namespace megalith {
namespace {

using support::Finished;
using support::HfCase;
using support::Program;
using support::run_shell;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class HfLlamaProgram : public Program {
 protected:
  std::string import(const std::string& folder, const std::string& name) const {
    return "megalith checkpoint import-hf " + folder + " --out " + out(name);
  }
  std::string export_to(const std::string& name, const std::string& folder) const {
    return "megalith checkpoint export-hf " + out(name) + " --out " + out(folder);
  }
};

/// ln p of each token but the first, from the stored logits before it.
std::vector<double> stored_log_probabilities(const nlohmann::json& expected) {
  std::vector<double> all;
  for (std::size_t i = 1; i < expected.at("ids").size(); ++i) {
    const std::vector<double> logits = expected.at("logits").at(i - 1);
    double sum = 0;
    for (const double one : logits) sum += std::exp(one);
    all.push_back(logits.at(expected.at("ids").at(i).get<std::size_t>()) - std::log(sum));
  }
  return all;
}

TEST_F(HfLlamaProgram, AnImportScoresAsTransformersAndGoesBack) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama_untied", "LlamaForCausalLM"}, {"llama_tied", "LlamaForCausalLM"},
      {"llama_files", "LlamaForCausalLM"},  {"llama_biases", "LlamaForCausalLM"},
      {"mixtral", "MixtralForCausalLM"},    {"mixtral_fused", "MixtralForCausalLM"},
      {"olmoe", "OlmoeForCausalLM"},        {"qwen2_moe", "Qwen2MoeForCausalLM"},
      {"qwen3_moe", "Qwen3MoeForCausalLM"}};
  for (const auto& [name, architecture] : cases) {
    SCOPED_TRACE(name);
    const HfCase one(name);
    const std::string a = std::string(name) + "_a", b = std::string(name) + "_b", hf = std::string(name) + "_hf";
    const Finished imported = run_shell(import(one.folder.string(), a));
    ASSERT_EQ(imported.code, 0) << imported.err;
    EXPECT_THAT(imported.err, HasSubstr("holds no tokenizer (vocab.json and merges.txt, or tokenizer.json)"));
    std::ofstream(dir_ / "ids.json") << nlohmann::json::array({one.expected.at("ids")}).dump();
    const auto score = [&](const std::string& run) {
      return run_shell("megalith score --checkpoint " + out(run) + " --tokens " + out("ids.json"));
    };
    const Finished scored = score(a);
    ASSERT_EQ(scored.code, 0) << scored.err;
    const nlohmann::json got = nlohmann::json::parse(scored.out).at("logprobs").at(0);
    const std::vector<double> want = stored_log_probabilities(one.expected);
    ASSERT_EQ(got.size(), want.size() + 1);
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i + 1].get<double>(), want[i], 1e-4) << i;
    const Finished exported = run_shell(export_to(a, hf));
    ASSERT_EQ(exported.code, 0) << exported.err;
    EXPECT_THAT(exported.out, HasSubstr(std::string("a ") + architecture));
    ASSERT_EQ(run_shell(import(out(hf), b)).code, 0);
    EXPECT_EQ(score(b).out, scored.out);
  }
}

TEST_F(HfLlamaProgram, AnImportHasNoMoments) {
  const Finished imported = run_shell(import(HfCase("mixtral").folder.string(), "a"));
  ASSERT_EQ(imported.code, 0) << imported.err;
  const Finished info = run_shell("megalith checkpoint info " + out("a"));
  EXPECT_THAT(info.out, HasSubstr("layers.0.norm1.weight"));
  EXPECT_THAT(info.out, Not(HasSubstr("optimizer.")));
  EXPECT_EQ(run_shell("megalith checkpoint verify " + out("a")).code, 0);
}

TEST_F(HfLlamaProgram, AnImportThatFailsLeavesNothingAndCanBeRepeated) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  ASSERT_EQ(run_shell(export_to("a", "hf")).code, 0);
  for (const char* const fault : {"write:2:ENOSPC", "sync:1:EIO", "rename:1:EIO"}) {
    const Finished failed = run_shell("MEGALITH_FAULT=0:" + std::string(fault) + " " + import(out("hf"), "b"));
    EXPECT_EQ(failed.code, 74) << fault << failed.err;
    EXPECT_EQ(run_shell("ls " + out("b") + "/checkpoints").out, "") << fault;
  }
  EXPECT_EQ(run_shell(import(out("hf"), "b")).code, 0);
}

TEST_F(HfLlamaProgram, AnExportIsOfTheCheckpointBeforeADamagedOne) {
  ASSERT_EQ(run_shell(train("a", "--set checkpoint.interval=4")).code, 0);
  const std::string steps = out("a") + "/checkpoints/step_0000000";
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + steps + "4 --out " + out("hf4")).code, 0);
  const std::string shard = steps + "8/shard_00000.safetensors";
  ASSERT_EQ(run_shell("printf X | dd of=" + shard + " bs=1 seek=9000 conv=notrunc").code, 0);
  const Finished exported = run_shell(export_to("a", "hf"));
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.err, HasSubstr("step_00000008 cannot be used"));
  EXPECT_EQ(run_shell("cmp " + out("hf") + "/model.safetensors " + out("hf4") + "/model.safetensors").code, 0);
  const Finished damaged = run_shell("megalith checkpoint export-hf " + steps + "8 --out " + out("hf8"));
  EXPECT_EQ(damaged.code, 65) << damaged.err;
  EXPECT_EQ(run_shell("cd " + dir_.path().string() + " && ls -d hf*").out, "hf\nhf4\n") << "nothing half written";
}

TEST_F(HfLlamaProgram, AnUnknownFamilyIsRefused) {
  std::ofstream(dir_ / "config.json") << R"({"model_type": "mamba", "architectures": ["MambaForCausalLM"]})";
  const Finished got = run_shell(import(dir_.path().string(), "a"));
  EXPECT_EQ(got.code, 65);
  EXPECT_THAT(
      got.err,
      HasSubstr("/config.json] model_type = \"mamba\": must be gpt2, llama, mixtral, olmoe, qwen2_moe, qwen3_moe, bert "
                "or megatron-bert: "));
}

// An import sets keys that the recipe of the export left out.
TEST_F(HfLlamaProgram, ItsOwnExportTakesTheRecipeThatItWasTrainedBy) {
  const std::string model = "--set model.family=llama --set model.hidden_size=24 ";
  ASSERT_EQ(run_shell(train("a", model)).code, 0);
  ASSERT_EQ(run_shell(export_to("a", "hf")).code, 0);
  ASSERT_EQ(run_shell(import(out("hf"), "b")).code, 0);
  const auto tune = [&](const std::string& name, const std::string& from, const std::string& more) {
    return run_shell(train(name, model + "--set train.steps=1 --set train.init=" + out(from) + " " + more));
  };
  const Finished own = tune("c", "b", "");
  ASSERT_EQ(own.code, 0) << own.err;
  ASSERT_EQ(tune("d", "a", "").code, 0);
  EXPECT_EQ(metrics("c").front(), metrics("d").front()) << "the same values, and the same loss";
  // Rotations are no parameters: the old values and the new ones are printed.
  const Finished longer = tune("e", "b", "--set model.seq_len=32 --set model.rope_theta=50000 --ranks 2");
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_THAT(longer.err, HasSubstr("train.init: model.seq_len = 32: the checkpoint's model has 16\n"));
  EXPECT_THAT(longer.err, HasSubstr("train.init: model.rope_theta = 50000: the checkpoint's model has 10000\n"));
  const Finished refused = tune("f", "b", "--set moe.num_experts=2");
  EXPECT_EQ(refused.code, 66);
  EXPECT_THAT(refused.err,
              HasSubstr("does not fit the recipe:\n  moe.num_experts = 2: the checkpoint's model has 0\n"));
}

TEST_F(HfLlamaProgram, ItsVocabularyComesAlong) {
  ASSERT_EQ(run_shell("megalith tokenizer train --type bpe --vocab-size 280 --input " + out("text.txt") + " --output " +
                      out("bpe"))
                .code,
            0);
  const Finished trained = run_shell(
      train("a",
            "--set model.family=llama --set model.num_kv_heads=2 --set model.head_dim=6 --set model.vocab_size=300 "
            "--set data.tokenizer=bpe --set train.eval_interval=0 --set data.vocab_dir=" +
                out("bpe")));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Finished exported = run_shell(export_to("a", "hf"));
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(exported.err, "");
  const Finished imported = run_shell(import(out("hf"), "b"));
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(imported.err, "");
  const auto generate = [&](const char* name) {
    return run_shell("megalith generate --checkpoint " + out(name) + " --prompt 'the line' --max-tokens 8 --seed 1");
  };
  const Finished text = generate("b");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out, generate("a").out);
  // It can be trained on by a recipe with its keys.
  const Finished tuned = run_shell(
      train("c",
            "--set model.family=llama --set model.num_kv_heads=2 --set model.head_dim=6 --set model.vocab_size=300 "
            "--set data.tokenizer=bpe --set train.eval_interval=0 --set data.vocab_dir=" +
                out("bpe") + " --set train.init=" + out("b")));
  EXPECT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_THAT(tuned.err, Not(HasSubstr("train.init: ")));
  // One that this program cannot use is left out.
  std::ofstream(dir_ / "hf" / "tokenizer.json") << R"({"model": {"type": "Unigram"}})";
  const Finished without = run_shell(import(out("hf"), "d"));
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_THAT(without.err, HasSubstr("the tokenizer of " + out("hf") + " cannot be used: ["));
  EXPECT_THAT(without.err, HasSubstr("model.type = \"Unigram\""));
  const Finished bare = run_shell(export_to("d", "hf2"));
  EXPECT_EQ(bare.code, 0) << bare.err;
  EXPECT_THAT(bare.err, HasSubstr("no tokenizer was exported: ["));
  EXPECT_THAT(bare.out, EndsWith(" without a tokenizer\n"));
}

}  // namespace
}  // namespace megalith
