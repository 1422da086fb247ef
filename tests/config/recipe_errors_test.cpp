#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

#include "tests/config/small_recipe.h"

namespace megalith::config {
namespace {

TEST(Recipe, UnknownKeysNameTheNearest) {
  EXPECT_EQ(problem_of("[model]\nnum_layer = 4\n[train]\nstps = 3\n"),
            "r.toml: 2 problems\n  model.num_layer = 4: no such key; did you mean model.num_layers?\n"
            "  train.stps = 3: no such key; did you mean train.steps?");
}

TEST(Recipe, WrongTypesAreNamed) {
  EXPECT_EQ(problem_of("[model]\nnum_layers = \"four\"\n"),
            "r.toml: 1 problem\n  model.num_layers = 'four': must be an integer");
  EXPECT_EQ(problem_of("[model]\nnum_layers = 4.5\n"),
            "r.toml: 1 problem\n  model.num_layers = 4.5: must be an integer");
}

TEST(Recipe, SyntaxErrorsNameTheLine) {
  EXPECT_EQ(problem_of("[model]\nnum_layers = = 4\n").substr(0, 9), "r.toml:2:");
}

TEST(Recipe, SettingsOfTextsNeedNoQuotes) {
  const RunPlan plan =
      resolve(parse_recipe(kSmall, "r.toml", std::vector<std::string>{"data.split=0.9", "data.train=2024"}));
  EXPECT_EQ(plan.data.split, "0.9");
  EXPECT_EQ(plan.data.train[0], "2024");
}

TEST(Recipe, MoreRanksThanAnyMachineHasAreRefused) {
  const std::string deep = kSmall + std::string("[parallel]\npp = 1024\n");
  EXPECT_EQ(problem_of(deep, {"model.num_layers=1024"}), "");
  EXPECT_EQ(problem_of(kSmall, {"parallel.pp=1025", "model.num_layers=1025"}),
            "r.toml: 1 problem\n  parallel.pp = 1025: must be at most 1024");
  EXPECT_EQ(problem_of(kSmall, {"parallel.ranks=65536", "train.global_batch=65536"}), "");
  EXPECT_EQ(problem_of(kSmall, {"parallel.ranks=65537", "train.global_batch=65537"}),
            "r.toml: 1 problem\n  parallel.ranks = 65537: must be at most 65536");
  EXPECT_EQ(problem_of(kSmall, {"train.global_batch=65537"}, 65537),
            "r.toml: 1 problem\n  parallel = {ranks 65537, tp 1, pp 1}: must be at most 65536 ranks");
  EXPECT_NE(
      problem_of(deep, {"model.num_layers=1024", "model.num_heads=64", "model.ffn_hidden_size=256", "parallel.tp=128"})
          .find("parallel = {ranks 131072, tp 128, pp 1024}: must be at most 65536 ranks"),
      std::string::npos);
  EXPECT_NE(problem_of(kSmall, {"parallel.chunks=4097"}).find("parallel.chunks = 4097: must be at most 4096"),
            std::string::npos);
}

TEST(Recipe, NumbersOutOfRangeAreRefused) {
  EXPECT_NE(
      problem_of(kSmall, {"train.global_batch=4294967297"}).find("train.global_batch = 4294967297: must be at most"),
      std::string::npos);
  EXPECT_NE(problem_of(kSmall, {"parallel.tp=3000000000"}).find("must be at most 65536"), std::string::npos);
  EXPECT_NE(problem_of(kSmall, {"parallel.tp=65536", "parallel.pp=65536"}), "");
  for (const char* setting : {"train.micro_batch=9223372036854775807", "optimizer.warmup_steps=9223372036854775807",
                              "checkpoint.keep=4294967296", "parallel.stage_layers=[9223372036854775807, 1]"}) {
    EXPECT_NE(problem_of(kSmall, {setting}).find("must be at most 2147483647"), std::string::npos) << setting;
  }
  for (const char* setting : {"model.hidden_size=9223372036854775807", "model.vocab_size=9223372036854775807"})
    EXPECT_NE(problem_of(kSmall, {setting}).find("must be at most 16777216"), std::string::npos) << setting;
  EXPECT_NE(problem_of(kSmall, {"model.hidden_size=16777216", "model.num_layers=4096"}).find(" parameters: must be"),
            std::string::npos);
  EXPECT_EQ(problem_of(kSmall, {"model.num_layers=4096"}), "");
  EXPECT_NE(problem_of(kSmall, {"model.num_layers=65535"}).find("model.num_layers = 65535: must be at most 4096"),
            std::string::npos);
  EXPECT_NE(
      problem_of(kSmall, {"train.global_batch=1073741824", "train.micro_batch=1073741824", "model.seq_len=16777216"})
          .find("their activations would have"),
      std::string::npos);
  EXPECT_NE(
      problem_of(kSmall, {"model.hidden_size=4294967296"}).find("model.hidden_size = 4294967296: must be at most"),
      std::string::npos);
  EXPECT_NE(problem_of(kSmall, {"optimizer.eps=inf"}).find("optimizer.eps"), std::string::npos);
}

TEST(Recipe, AResolvedRecipeTakesAnotherGrid) {
  const RunPlan plan = resolve(parse_recipe(kSmall, "r.toml", std::vector<std::string>{"parallel.tp=2"}));
  const std::vector<std::string> other = {"parallel.tp=1", "parallel.pp=2"};
  EXPECT_EQ(resolve(parse_recipe(to_toml(plan.as_config()), "resolved", other)).grid.pp, 2);
}

TEST(Recipe, SettingsNeedSectionKeyAndValue) {
  EXPECT_EQ(problem_of(kSmall, {"quux=4"}), "r.toml: 1 problem\n  --set quux=4: must be section.key=value");
  EXPECT_EQ(problem_of(kSmall, {"train.steps"}), "r.toml: 1 problem\n  --set train.steps: must be section.key=value");
  EXPECT_EQ(problem_of(kSmall, {"steps=4"}), "r.toml: 1 problem\n  steps = 4: no such key; did you mean train.steps?");
}

TEST(Recipe, ShapesThatNoGpuKernelTakesAreRefusedOnGpus) {
  const auto problem = [](std::vector<std::string> settings) {
    EXPECT_EQ(problem_of(kSmall, settings), "") << "a CPU takes any shape";
    settings.push_back("device.type=cuda");
    return problem_of(kSmall, settings);
  };
  EXPECT_EQ(problem({"model.hidden_size=16384", "model.num_heads=64"}), "");
  EXPECT_EQ(problem({"model.hidden_size=20480", "model.num_heads=160"}),
            "r.toml: 1 problem\n  model.hidden_size = 20480: must be at most 16384 with device.type = cuda: a norm's "
            "kernel holds a row in one block; with model.num_heads = 160 the nearest that fits is 16320");
  EXPECT_EQ(problem({"model.hidden_size=20480", "model.num_heads=8"}),
            "r.toml: 1 problem\n  model.hidden_size = 20480: must be at most 16384 with device.type = cuda: a norm's "
            "kernel holds a row in one block; with model.num_heads = 8 the nearest that fits is 2048");
  EXPECT_EQ(problem({"model.hidden_size=20480", "model.num_heads=20480"}),
            "r.toml: 1 problem\n  model.hidden_size = 20480: must be at most 16384 with device.type = cuda: a norm's "
            "kernel holds a row in one block");
  EXPECT_EQ(problem({"model.hidden_size=1024", "model.num_heads=4"}), "");
  EXPECT_EQ(
      problem({"model.hidden_size=1028", "model.num_heads=4"}),
      "r.toml: 1 problem\n  model.num_heads = 4: must be at least 5 with device.type = cuda and "
      "model.hidden_size = 1028: a head of attention's kernels is at most 256 wide; the nearest that fits is 257");
  EXPECT_EQ(problem({"model.hidden_size=1536", "model.num_heads=4", "parallel.tp=4"}),
            "r.toml: 1 problem\n  model.num_heads = 4: must be at least 6 with device.type = cuda and "
            "model.hidden_size = 1536: a head of attention's kernels is at most 256 wide; the nearest that fits is 8");
  const std::string without_fix =
      problem_of(kSmall, {"model.hidden_size=1034", "model.num_heads=2", "parallel.tp=4", "device.type=cuda"});
  EXPECT_TRUE(without_fix.ends_with("is at most 256 wide")) << "no number of heads fits four ranks\n" << without_fix;
}

TEST(Recipe, AllBrokenRulesAtOnce) {
  const std::string text = problem_of(kSmall, {"parallel.tp=3", "model.hidden_size=65", "train.precision=fp8",
                                               "optimizer.lr=-1", "checkpoint.keep=1", "device.type=tpu"});
  for (const char* part :
       {"parallel.tp = 3: must divide model.num_heads = 4", "model.num_heads = 4: must divide model.hidden_size = 65",
        "train.precision = fp8", "optimizer.lr = -1: must be positive", "checkpoint.keep = 1", "device.type = tpu"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

TEST(Recipe, EveryKeyIsCheckedByItselfWithTheNearestName) {
  const auto problem = [](const char* setting) {
    const std::string text = problem_of(kSmall, {setting});
    return text.substr(text.find('\n') + 3);
  };
  EXPECT_EQ(
      problem("data.tokenizer=bite"),
      "data.tokenizer = bite: must be gpt2, bpe, bert-uncased, bert-cased, sentencepiece or byte; did you mean byte?");
  EXPECT_EQ(problem("model.family=mistral"),
            "model.family = mistral: must be gpt2, llama or bert; Mistral has Llama's blocks: "
            "model.family = \"llama\", with model.num_kv_heads for its heads of keys and values");
  EXPECT_NE(problem("model.family=qwen3").find("model.family = \"llama\" with model.qk_norm"), std::string::npos);
  EXPECT_NE(problem("model.family=Qwen2_MoE").find("with model.bias = \"qkv\""), std::string::npos);
  EXPECT_EQ(problem("data.train=[]"), "data.train = []: must name at least one file to train on");
  EXPECT_EQ(problem_of(kSmall, {"data.train=[]", "train.steps=0"}), "") << "of an imported model none is known";
  EXPECT_EQ(problem("train.precision=b16"),
            "train.precision = b16: must be fp64, fp32, bf16, fp16 or fp8; did you mean bf16?");
  EXPECT_EQ(problem("optimizer.beta1=1"), "optimizer.beta1 = 1: must be in [0, 1)");
  EXPECT_EQ(problem("optimizer.min_lr=-2"), "optimizer.min_lr = -2: must not be negative");
  EXPECT_EQ(problem("optimizer.eps=0"), "optimizer.eps = 0: must be positive");
  EXPECT_EQ(problem("optimizer.clip=nan"), "optimizer.clip = nan: must be finite (0: no clipping)");
  EXPECT_EQ(problem("train.on_nonfinite=ignore"), "train.on_nonfinite = ignore: must be stop or skip");
  EXPECT_EQ(problem("train.skip_limit=0"), "train.skip_limit = 0: must be at least 1");
  EXPECT_EQ(problem("train.spike_norm=0.5"),
            "train.spike_norm = 0.5: must be above 1: so many times the mean is a spike; 0: off");
  EXPECT_EQ(problem("model.dropout=1"), "model.dropout = 1: must be in [0, 1)");
  EXPECT_EQ(problem("model.num_heads=0"), "model.num_heads = 0: must be at least 1");
  EXPECT_EQ(problem("parallel.cp=2"), "parallel.cp = 2: must be 1 (context parallelism is not built yet)");
  EXPECT_EQ(problem("parallel.stage_layers=[5,-1]"), "parallel.stage_layers = [5, -1]: -1 must not be negative");
  EXPECT_EQ(problem("checkpoint.keep=1"), "checkpoint.keep = 1: must be at least 2 (one may turn out damaged)");
  EXPECT_EQ(problem("recompute.layers=0"), "recompute.layers = 0: must be at least 1");
  EXPECT_EQ(problem("recompute.layers=5"), "recompute.layers = 5: must be at most 4, the layers of the largest chunk");
  EXPECT_EQ(problem("recompute.modules=[\"norms\"]"),
            "recompute.modules = [norms]: goes with recompute.mode = selective, which is none");
  EXPECT_EQ(problem("recompute.mode=selective"),
            "recompute.modules = []: must name what selective recomputes: gelu, norms, attention, mlp, dispatch");
  EXPECT_EQ(
      problem("recompute.modules=[\"gelus\"]"),
      "recompute.modules = [gelus]: no module is called gelus; did you mean gelu?; there are gelu, norms, attention, "
      "mlp, dispatch");
  EXPECT_EQ(problem("train.seed=-1"), "train.seed = -1: must not be negative");
  EXPECT_EQ(
      resolve(parse_recipe(kSmall, "r.toml", std::vector<std::string>{"train.seed=9223372036854775807"})).train.seed,
      0x7FFFFFFFFFFFFFFFu);
  EXPECT_EQ(problem_of(kSmall, {"train.precision=fp16", "train.loss_scale=2e18", "train.loss_scale_interval=0"}),
            "r.toml: 2 problems\n  train.loss_scale = 2e+18: must be above 0, at most 2^60\n"
            "  train.loss_scale_interval = 0: must be at least 1 (steps without an overflow before the scale doubles)");
  EXPECT_EQ(problem_of(kSmall, {"train.precision=fp16", "train.loss_scale=8", "train.loss_scale_min=16"}),
            "r.toml: 1 problem\n  train.loss_scale_min = 16: must be at most train.loss_scale = 8");
}

// What a broken value is replaced by must not lead to messages about values that nobody wrote.
TEST(Recipe, ABrokenKeyIsReportedOnce) {
  for (const char* setting :
       {"parallel.tp=0", "parallel.pp=-1", "model.num_layers=0", "train.micro_batch=0", "train.global_batch=0",
        "optimizer.lr=0", "graphs.mode=sideways", "recompute.mode=some", "recompute.modules=[\"gelus\"]"})
    EXPECT_TRUE(problem_of(kSmall, {setting}).starts_with("r.toml: 1 problem\n")) << problem_of(kSmall, {setting});
}

// ... nor must what stands for a grid that is not legal.
TEST(Recipe, AnIllegalGridIsReportedOnce) {
  const std::string order = "parallel.order=tp-pp-dp-ddp";
  for (const std::vector<std::string>& settings : std::vector<std::vector<std::string>>{
           {order, "parallel.pp=2", "parallel.chunks=2"},
           {order, "parallel.pp=2", "parallel.stage_layers=[1,3]"},
           {"parallel.order=pp-tp-tp", "parallel.pp=2", "parallel.ranks=4", "train.global_batch=8",
            "train.micro_batch=2"},
           {"parallel.order=tp", "parallel.pp=4", "parallel.ranks=8", "train.micro_batch=4"},
           {"parallel.ranks=3", "parallel.pp=2", "parallel.chunks=2"},
           {"parallel.ranks=3", "parallel.pp=2", "parallel.stage_layers=[1,3]"}}) {
    const std::string text = problem_of(kSmall, settings);
    EXPECT_TRUE(text.starts_with("r.toml: 1 problem\n  parallel")) << text;
  }
  // Other mistakes are found with the sizes of the grid.
  const std::string text =
      problem_of(kSmall, {order, "parallel.tp=3", "parallel.pp=2", "train.global_batch=9", "train.micro_batch=2"});
  for (const char* part : {"4 problems", "unknown axis 'ddp'", "parallel.tp = 3: must divide model.num_heads = 4",
                           "parallel.tp = 3: must divide model.ffn_hidden_size = 256",
                           "train.global_batch = 9: must be a multiple of train.micro_batch * dp = 2 * 1 = 2"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

TEST(Recipe, AKeyThatIsThereTwiceIsRefusedWithBothLines) {
  EXPECT_EQ(problem_of("[train]\nsteps = 1\nseed = 2\nsteps = 3\n"),
            "r.toml: 1 problem\n  line 4: train.steps is also in line 2: keep one of them");
  EXPECT_EQ(problem_of("[train]\nsteps = 1\n[log]\ninterval = 1\n[train]\nseed = 3\nsteps = 4 # again\n"),
            "r.toml: 2 problems\n  line 5: [train] is also in line 1: keep one of them\n"
            "  line 7: train.steps is also in line 2: keep one of them");
  EXPECT_EQ(
      problem_of("train.steps = 1\n\n# [train]\n[ train ] # comment\n\"steps\" = 3\n"),
      "r.toml: 2 problems\n  line 5: train.steps is also in line 1: keep one of them\n"
      "  r.toml:4:1: Error while parsing table header: cannot redefine existing table 'train' (recipes are TOML)");
}

TEST(Recipe, BatchesMustDivide) {
  const std::string text = problem_of(kSmall, {"train.micro_batch=3"});
  EXPECT_NE(
      text.find(
          "train.global_batch = 8: must be a multiple of train.micro_batch * dp = 3 * 1 = 3; the nearest are 6 and 9"),
      std::string::npos)
      << text;
}

TEST(Recipe, ABatchBelowTheLeastIsToldTheLeast) {
  EXPECT_NE(problem_of(kSmall, {"train.micro_batch=8", "parallel.ranks=2"})
                .find("train.micro_batch * dp = 8 * 2 = 16; the least is 16"),
            std::string::npos);
}

TEST(Recipe, WhatIsNotBuiltIsRefusedAndNotIgnored) {
  EXPECT_NE(problem_of(kSmall, {"parallel.cp=2"}).find("context parallelism is not built yet"), std::string::npos);
}

TEST(Recipe, StageLayersMustFit) {
  EXPECT_NE(
      problem_of(kSmall, {"parallel.pp=2", "parallel.stage_layers=[1,2]"}).find("must sum to model.num_layers = 4"),
      std::string::npos);
  EXPECT_NE(problem_of(kSmall, {"parallel.pp=3"}).find("must be divisible by parallel.pp * chunks = 3"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::config
