#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"
#include "megalith/model/model_spec.h"

#include "tests/config/small_recipe.h"

namespace megalith::config {
namespace {

TEST(Recipe, DefaultsAreFilledIn) {
  const RunPlan plan = resolve(parse_recipe(kSmall, "r.toml"));
  EXPECT_EQ(plan.model.ffn_hidden_size, 256);
  EXPECT_EQ(plan.model.vocab_size, 256);
  EXPECT_EQ(plan.model.padded_vocab_size, 256);
  EXPECT_EQ(plan.grid.world_size, 1);
  EXPECT_EQ(plan.optimizer.decay_steps, 10);
  EXPECT_EQ(plan.data.train, std::vector<std::string>{"corpus.txt"});
}

TEST(Recipe, RanksPerNodeWarnsOfTensorParallelGroupsThatSpanNodes) {
  const auto warning = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"parallel.ranks=8", "parallel.tp=4"});
    const std::vector<std::string> warnings = resolve(parse_recipe(kSmall, "r.toml", settings)).warnings();
    return warnings.empty() ? "" : warnings.front();
  };
  EXPECT_EQ(warning({}), "") << "how many ranks a node has is not known";
  EXPECT_EQ(warning({"device.ranks_per_node=4"}), "");
  EXPECT_EQ(warning({"device.ranks_per_node=2"}).substr(0, 43), "2 of 2 tensor parallel groups span more tha");
}

TEST(Recipe, RanksPerNodeWarnsOfExpertParallelGroupsThatSpanNodes) {
  const auto warnings = [](const char* ranks_per_node) {
    const std::vector<std::string> settings = {"parallel.ranks=8", "parallel.ep=4", "moe.num_experts=4",
                                               ranks_per_node};
    return resolve(parse_recipe(kSmall, "r.toml", settings)).warnings();
  };
  EXPECT_EQ(warnings("device.ranks_per_node=4"), std::vector<std::string>());
  const std::vector<std::string> crossing = warnings("device.ranks_per_node=2");
  ASSERT_EQ(crossing.size(), 1u);
  EXPECT_EQ(crossing.front().substr(0, 43), "2 of 2 expert parallel groups span more tha");
}

TEST(Recipe, WarnsOfSettingsThatDivideWorkAmongRanksWhereThereIsOne) {
  std::vector<std::string> settings = {"parallel.sequence_parallel=true", "parallel.tp_overlap=halves",
                                       "optimizer.distributed=true", "train.micro_batch=2"};
  const auto warnings = [&] { return resolve(parse_recipe(kSmall, "r.toml", settings)).warnings(); };
  EXPECT_EQ(warnings(),
            (std::vector<std::string>{"parallel.sequence_parallel = true: does nothing with parallel.tp = 1",
                                      "parallel.tp_overlap = halves: does nothing with parallel.tp = 1",
                                      "optimizer.distributed = true: does nothing with one model copy (dp * cp = 1)"}));
  settings.insert(settings.end(), {"parallel.ranks=4", "parallel.tp=2"});
  EXPECT_EQ(warnings(), std::vector<std::string>());
}

TEST(Recipe, WarnsOfKeysThatMakeAnotherModelOfAPreset) {
  const auto warnings = [](std::vector<std::string> settings) {
    settings.emplace_back("model.preset=gpt2-124m");
    return resolve(parse_recipe("[train]\nsteps = 1\n[data]\ntrain = \"x\"\nvocab_dir = \"v\"\n", "r.toml", settings))
        .warnings();
  };
  EXPECT_EQ(warnings({}), std::vector<std::string>{});
  EXPECT_EQ(warnings({"model.num_layers=12", "model.ffn_hidden_size=3072", "model.dropout=0.2"}),
            std::vector<std::string>{});
  EXPECT_EQ(warnings({"model.num_layers=2", "model.seq_len=256"}),
            (std::vector<std::string>{
                "model.num_layers = 2: model.preset = gpt2-124m has 12; the run trains another model",
                "model.seq_len = 256: model.preset = gpt2-124m has 1024; the run trains another model"}));
  EXPECT_EQ(
      warnings({"model.norm=rms", "moe.num_experts=4"}),
      (std::vector<std::string>{"model.norm = rms: model.preset = gpt2-124m has layer; the run trains another model",
                                "moe.num_experts = 4: model.preset = gpt2-124m has 0; the run trains another model"}));
}

TEST(Recipe, WarnsOfAWarmUpThatDoesNotEnd) {
  const auto warnings = [](const char* warmup) {
    return resolve(parse_recipe(kSmall, "r.toml", std::vector<std::string>{warmup})).warnings();
  };
  EXPECT_EQ(warnings("optimizer.warmup_steps=10"), std::vector<std::string>{});
  EXPECT_EQ(
      warnings("optimizer.warmup_steps=11"),
      std::vector<std::string>{"optimizer.warmup_steps = 11: more than train.steps = 10, so the learning rate never "
                               "reaches optimizer.lr"});
}

TEST(Recipe, WsdDecaysOverATenthOfTheStepsByDefault) {
  const auto plan_with = [](const std::vector<std::string>& settings) {
    return resolve(parse_recipe(kSmall, "r.toml", settings));
  };
  const RunPlan plan = plan_with({"optimizer.decay=wsd", "train.steps=200", "optimizer.warmup_steps=5"});
  EXPECT_EQ(plan.optimizer.decay_steps, 20);
  EXPECT_EQ(plan.optimizer.run_steps, 200);
  EXPECT_EQ(plan.warnings(), std::vector<std::string>{});
  EXPECT_EQ(plan_with({"optimizer.decay=wsd", "train.steps=5"}).optimizer.decay_steps, 1);
  EXPECT_EQ(
      plan_with({"optimizer.decay=constant", "optimizer.decay_steps=4"}).warnings(),
      (std::vector<std::string>{"optimizer.decay_steps = 4: does nothing with an optimizer.decay that has no end"}));
  const RunPlan constant = plan_with({"optimizer.decay=constant"});
  EXPECT_EQ(resolve(parse_recipe(to_toml(constant.as_config()), "resolved")).warnings(), std::vector<std::string>{});
}

TEST(Recipe, AnEarlyStopNeedsEvaluationsOnAHeldOutSet) {
  EXPECT_EQ(problem_of(kSmall, {"train.early_stop=2"}),
            "r.toml: 2 problems\n"
            "  train.early_stop = 2: needs a held-out set: give data.valid or data.split\n"
            "  train.early_stop = 2: needs evaluations during the run: set train.eval_interval");
  EXPECT_EQ(problem_of(kSmall, {"train.early_stop=2", "train.eval_interval=5", "data.valid=held-out.txt"}), "");
}

TEST(Recipe, ResolvedRecipeGivesTheSamePlanAgain) {
  const std::vector<std::string> settings = {"parallel.tp=2",
                                             "parallel.pp=2",
                                             "parallel.chunks=2",
                                             "parallel.stage_layers=[2,1,1,0]",
                                             "optimizer.lr=1.5e-4",
                                             "data.train=a \"quoted\" name.txt",
                                             "train.precision=\"fp64\"",
                                             "parallel.tp_overlap=halves",
                                             "parallel.transfers=kernels",
                                             "parallel.sequence_parallel=true",
                                             "parallel.timeout_s=2.5",
                                             "train.micro_batch=2"};
  const RunPlan plan = resolve(parse_recipe(kSmall, "r.toml", settings));
  const std::string text = to_toml(plan.as_config());
  const RunPlan again = resolve(parse_recipe(text, "resolved"));
  EXPECT_EQ(to_toml(again.as_config()), text);
  EXPECT_TRUE(again.sequence_parallel);
  EXPECT_EQ(again.timeout_s, 2.5);
  EXPECT_EQ(again.transfers, comm::Transport::kernels);
  EXPECT_EQ(again.optimizer.lr, 1.5e-4);
  EXPECT_EQ(again.stage_layers, (std::vector<Index>{2, 1, 1, 0}));
  EXPECT_EQ(again.data.train[0], "a \"quoted\" name.txt");
}

TEST(Recipe, TheOptimizerIsDistributedWhenAsked) {
  const auto plan_with = [](const std::vector<std::string>& settings) {
    return resolve(parse_recipe(kSmall, "r.toml", settings));
  };
  EXPECT_EQ(plan_with({}).optimizer.sharding, Sharding::none);
  EXPECT_NE(to_toml(plan_with({}).as_config()).find("distributed = false"), std::string::npos);
  const RunPlan plan = plan_with({"optimizer.distributed=true"});
  EXPECT_EQ(plan.optimizer.sharding, Sharding::optimizer);
  EXPECT_EQ(resolve(parse_recipe(to_toml(plan.as_config()), "resolved")).optimizer.sharding, Sharding::optimizer);
  EXPECT_NE(problem_of(kSmall, {"optimizer.distributed=2"}).find("optimizer.distributed = 2: must be true or false"),
            std::string::npos);
}

TEST(Recipe, GradientsAreShardedWithADistributedOptimizerOnly) {
  const auto plan_with = [](const std::vector<std::string>& settings) {
    return resolve(parse_recipe(kSmall, "r.toml", settings));
  };
  const RunPlan plan = plan_with({"optimizer.distributed=true", "optimizer.shard=gradients"});
  EXPECT_EQ(plan.optimizer.shard, ShardedState::gradients);
  EXPECT_TRUE(plan.optimizer.shards_gradients());
  EXPECT_EQ(resolve(parse_recipe(to_toml(plan.as_config()), "resolved")).optimizer.shard, ShardedState::gradients);
  EXPECT_EQ(plan_with({"optimizer.distributed=true"}).optimizer.shard, ShardedState::moments);
  const RunPlan alone = plan_with({"optimizer.shard=gradients"});
  EXPECT_FALSE(alone.optimizer.shards_gradients());
  EXPECT_THAT(alone.warnings(), ::testing::Contains("optimizer.shard = gradients: does nothing with "
                                                    "optimizer.distributed = false"));
  EXPECT_THAT(plan_with({"optimizer.shard=moments"}).warnings(), ::testing::IsEmpty());
  EXPECT_NE(problem_of(kSmall, {"optimizer.shard=all"}).find("optimizer.shard = all: must be moments or gradients"),
            std::string::npos);
  const std::vector<std::string> muon = {"optimizer.distributed=true", "optimizer.shard=gradients",
                                         "optimizer.type=muon"};
  EXPECT_NE(problem_of(kSmall, muon)
                .find("optimizer.shard = gradients: does not go with optimizer.type = muon, which "
                      "updates whole matrices: use moments, or adamw"),
            std::string::npos);
  EXPECT_NO_THROW(plan_with({"optimizer.shard=gradients", "optimizer.type=muon"})) << "nothing is sharded";
}

TEST(Recipe, LargeMessagesGoByCopyEnginesUnlessAskedOtherwise) {
  const auto transport = [](const std::vector<std::string>& settings) {
    return resolve(parse_recipe(kSmall, "r.toml", settings)).transfers;
  };
  EXPECT_EQ(transport({}), comm::Transport::copy_engines);
  EXPECT_EQ(transport({"parallel.transfers=kernels"}), comm::Transport::kernels);
  EXPECT_NE(problem_of(kSmall, {"parallel.transfers=pigeons"}).find("parallel.transfers = pigeons: must be copy_eng"),
            std::string::npos);
}

TEST(Recipe, AWaitForOtherRanksTakesTimeButNotForever) {
  EXPECT_EQ(resolve(parse_recipe(kSmall, "r.toml")).timeout_s, 600);
  for (const char* none : {"0", "-1", "nan", "inf"}) {
    EXPECT_NE(problem_of(kSmall, {std::string("parallel.timeout_s=") + none}).find("timeout_s = " + std::string(none)),
              std::string::npos)
        << none;
  }
}

TEST(Recipe, ThereAreTwoSubMicrobatchesWhereTheyFit) {
  const auto parts = [](const std::vector<std::string>& settings) {
    return resolve(parse_recipe(kSmall, "r.toml", settings)).sub_batches();
  };
  EXPECT_EQ(parts({"parallel.tp=2", "train.micro_batch=2"}), 1);  // nothing is hidden on a CPU
  const std::string bf16 = "train.precision=bf16";
  EXPECT_EQ(parts({"parallel.tp=2", "train.micro_batch=2", "device.type=cuda", bf16}), 2);
  EXPECT_EQ(parts({"parallel.tp=2", "train.micro_batch=2", "device.type=cuda", "train.precision=fp32"}), 1);
  EXPECT_EQ(parts({"parallel.tp=2", "train.micro_batch=1", "device.type=cuda", bf16}), 1);
  EXPECT_EQ(parts({"parallel.tp=2", "train.micro_batch=2", "device.type=cuda", bf16, "parallel.tp_overlap=none"}), 1);
  EXPECT_EQ(parts({"parallel.tp=2", "train.micro_batch=2", "parallel.tp_overlap=halves"}), 2);
  EXPECT_EQ(parts({"train.micro_batch=2", "parallel.tp_overlap=halves"}), 1);  // no all-reduces
  EXPECT_NE(problem_of(kSmall, {"parallel.tp_overlap=halves", "train.micro_batch=1"}).find("train.micro_batch = 1"),
            std::string::npos);
  EXPECT_NE(problem_of(kSmall, {"parallel.tp_overlap=thirds"}).find("must be auto, halves or none"), std::string::npos);
}

TEST(Recipe, SequenceParallelRowsMustDivide) {
  const auto plan = [](std::vector<std::string> settings) {
    settings.push_back("parallel.sequence_parallel=true");
    return resolve(parse_recipe(kSmall, "r.toml", settings));
  };
  const auto problem = [](std::vector<std::string> settings) {
    settings.push_back("parallel.sequence_parallel=true");
    return problem_of(kSmall, settings);
  };
  EXPECT_FALSE(resolve(parse_recipe(kSmall, "r.toml")).sequence_parallel);
  EXPECT_TRUE(plan({"model.seq_len=7"}).sequence_parallel);  // legal and without effect
  EXPECT_EQ(grid_text(plan({"model.seq_len=7"})), "tp 1 pp 1 dp 1");
  EXPECT_EQ(grid_text(plan({"parallel.tp=2", "parallel.pp=2"})), "tp 2 pp 2 dp 1 sequence parallel");
  EXPECT_EQ(plan({"parallel.tp=2", "model.seq_len=6"}).row_shares(), 2);
  EXPECT_EQ(problem({"parallel.tp=4", "model.seq_len=6", "train.micro_batch=3", "train.global_batch=12"}),
            "r.toml: 1 problem\n  train.micro_batch * model.seq_len = 18: must be divisible by parallel.tp = 4 with "
            "parallel.sequence_parallel = true: every rank holds as many token rows; with this seq_len "
            "train.micro_batch = 4 would do");
  EXPECT_EQ(
      problem({"parallel.tp=2", "model.seq_len=7", "train.micro_batch=2", "parallel.tp_overlap=halves"}),
      "r.toml: 1 problem\n  train.micro_batch * model.seq_len = 14: must be divisible by 2 * parallel.tp = 4 with "
      "parallel.sequence_parallel = true and parallel.tp_overlap = halves: every rank holds as many token rows; "
      "with this seq_len train.micro_batch = 4 would do");
  // Where halves are not asked for but would be the default, such a microbatch is taken whole.
  const std::vector<std::string> on_gpu = {"parallel.tp=2", "train.micro_batch=2", "device.type=cuda",
                                           "train.precision=bf16"};
  const auto with_seq_len = [&](const char* seq_len) {
    std::vector<std::string> settings = on_gpu;
    settings.push_back(seq_len);
    return plan(settings).sub_batches();
  };
  EXPECT_EQ(with_seq_len("model.seq_len=7"), 1);
  EXPECT_EQ(with_seq_len("model.seq_len=6"), 2);
}

TEST(Recipe, GemmChoicesAreForGpus) {
  const auto plan = [](std::vector<std::string> settings) { return resolve(parse_recipe(kSmall, "r.toml", settings)); };
  const RunPlan gpu = plan({"device.type=cuda"}), fixed = plan({"device.type=cuda", "train.gemm=heuristic"}),
                cpu = plan({"train.gemm=heuristic"});
  EXPECT_TRUE(gpu.chooses_gemms());
  EXPECT_FALSE(fixed.chooses_gemms());
  EXPECT_FALSE(cpu.chooses_gemms());
  EXPECT_FALSE(plan({}).chooses_gemms());
  EXPECT_EQ(gpu.as_config().train.gemm, "timed");
  EXPECT_EQ(fixed.as_config().train.gemm, "heuristic");
  EXPECT_FALSE(cpu.as_config().train.gemm.has_value());
  EXPECT_FALSE(resolve(parse_recipe(to_toml(fixed.as_config()), "resolved")).chooses_gemms());
  EXPECT_NE(problem_of(kSmall, {"train.gemm=fastest"}).find("train.gemm = fastest: must be timed or heuristic"),
            std::string::npos);
}

TEST(Recipe, GraphsAreOffUnlessAskedFor) {
  const auto graphs = [](std::vector<std::string> settings) {
    return resolve(parse_recipe(kSmall, "r.toml", settings)).graphs;
  };
  EXPECT_EQ(graphs({}).mode, capture::GraphMode::none);
  EXPECT_EQ(graphs({}).warmup_steps, 3);
  EXPECT_TRUE(graphs({"graphs.mode=layers"}).scopes.empty());
  EXPECT_EQ(graphs({"graphs.mode=layers", "graphs.warmup_steps=0"}).warmup_steps, 0);
  EXPECT_EQ(graphs({"graphs.mode=layers", "graphs.scopes=[\"mlp\", \"attn\"]"}).scopes,
            (capture::ScopeSet{capture::Scope::attn, capture::Scope::mlp}));
  EXPECT_EQ(graphs({"graphs.mode=layers", "graphs.scopes=full"}).scopes, capture::ScopeSet{});
  EXPECT_EQ(graphs({"graphs.mode=iteration", "graphs.scopes=full_iteration"}).scopes, capture::ScopeSet{});
  EXPECT_TRUE(graphs({"graphs.mode=iteration", "graphs.optimizer=true"}).optimizer);
}

TEST(Recipe, GraphsAreInTheResolvedRecipe) {
  const std::vector<std::string> settings = {"graphs.mode=layers", "graphs.scopes=[\"attn\"]", "graphs.per=slot",
                                             "graphs.warmup_steps=1", "graphs.check=7"};
  const std::string text = to_toml(resolve(parse_recipe(kSmall, "r.toml", settings)).as_config());
  EXPECT_NE(text.find("[graphs]\nmode = 'layers'\nscopes = ['attn']\nper = 'slot'\nwarmup_steps = 1\n"
                      "optimizer = false\ncheck = 7\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(to_toml(resolve(parse_recipe(text, "resolved")).as_config()), text);
  const std::string whole =
      to_toml(resolve(parse_recipe(kSmall, "r.toml", std::vector<std::string>{"graphs.mode=iteration"})).as_config());
  EXPECT_EQ(to_toml(resolve(parse_recipe(whole, "resolved")).as_config()), whole);
}

TEST(Recipe, BrokenRulesOfGraphsAreAllReported) {
  const std::string text = problem_of(kSmall, {"graphs.mode=iteration", "graphs.warmup_steps=0",
                                               "graphs.scopes=[\"attn\"]", "graphs.check=-1", "graphs.per=layer"});
  for (const char* part : {"graphs.warmup_steps = 0: must be at least 1 with graphs.mode = iteration",
                           "graphs.scopes = [attn]: must be empty with graphs.mode = iteration",
                           "graphs.check = -1: must not be negative", "graphs.per = layer: must be microbatch or slot"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  const auto has = [&](std::vector<std::string> settings, const char* part) {
    EXPECT_NE(problem_of(kSmall, settings).find(part), std::string::npos) << part << "\n"
                                                                          << problem_of(kSmall, settings);
  };
  has({"graphs.mode=layers", "graphs.check=1", "train.deterministic=false"},
      "graphs.check = 1: must be 0 with train.deterministic = false");
  has({"graphs.mode=step"}, "graphs.mode = step: must be none, layers or iteration");
  has({"graphs.mode=step", "graphs.scopes=[\"atn\"]"}, "graphs.scopes = [atn]: no scope is called atn");
  has({"graphs.mode=layers", "graphs.optimizer=true"}, "graphs.optimizer = true: is for graphs.mode = iteration");
  has({"graphs.mode=iteration", "graphs.per=slot"}, "graphs.per = slot: is for graphs.mode = layers");
  has({"graphs.mode=layers", "graphs.scopes=[\"atn\"]"},
      "graphs.scopes = [atn]: no scope is called atn; did you mean attn?");
  has({"graphs.mode=layers", "graphs.scopes=[\"full\", \"attn\"]"}, "graphs.scopes = [full, attn]: full means whole");
  has({"graphs.mode=layers", "graphs.scopes=full_iteration"},
      "graphs.scopes = [full_iteration]: full_iteration is a mode");
  has({"graphs.mode=layers", "graphs.scopes=[\"moe\"]"}, "graphs.scopes = [moe]: the model has no experts");
  has({"graphs.scope=attn"}, "did you mean graphs.scopes?");
  has({"graphs.opt=true"}, "did you mean graphs.optimizer?");
  has({"graphs.warmup=1"}, "did you mean graphs.warmup_steps?");
  has({"graphs.check_steps=1"}, "did you mean graphs.check?");
  has({"parallel.vpp=2"}, "did you mean parallel.chunks?");
  has({"graphs.scope=[attn,mlp]"}, "did you mean graphs.scopes?");
  has({"graphs.mode=layers", "graphs.scopes=[attn,mlp]"},
      "graphs.scopes = [attn,mlp]: is no list: it takes [\"a\", \"b\"] or [1, 2], and quotes around all of it in a "
      "shell");
}

TEST(Recipe, EveryPrecisionRunsOnTheCpuAndOnlyFp16ScalesTheLoss) {
  EXPECT_EQ(resolve(parse_recipe(kSmall, "r.toml")).train.precision, "fp32");
  const auto with = [](const std::string& precision) {
    return resolve(parse_recipe(kSmall, "r.toml", std::vector<std::string>{"train.precision=" + precision})).train;
  };
  EXPECT_EQ(with("bf16").policy(), (Policy{DType::f32, DType::bf16}));
  EXPECT_EQ(with("fp16").policy(), (Policy{DType::f32, DType::f16}));
  EXPECT_EQ(with("fp16").scaling.initial, 65536);
  EXPECT_FALSE(with("bf16").scaling.is_on());
  EXPECT_EQ(problem_of(kSmall, {"train.precision=bf16", "train.loss_scale=8"}),
            "r.toml: 1 problem\n  train.loss_scale = 8: loss scaling is for train.precision = fp16; remove it");
  EXPECT_EQ(problem_of(kSmall, {"train.loss_scale_min=2", "train.loss_scale_interval=5"}),
            "r.toml: 2 problems\n  train.loss_scale_min = 2: loss scaling is for train.precision = fp16; remove it\n  "
            "train.loss_scale_interval = 5: loss scaling is for train.precision = fp16; remove it");
}

TEST(Recipe, ThreadsOfARankAreAskedForOrFollowFromTheHost) {
  const auto plan = [](std::vector<std::string> settings) { return resolve(parse_recipe(kSmall, "r.toml", settings)); };
  EXPECT_EQ(plan({}).threads, 0);
  EXPECT_EQ(plan({"device.threads=3"}).threads, 3);
  EXPECT_EQ(plan({"device.threads=3"}).as_config().device.threads, 3);
  EXPECT_EQ(plan({}).as_config().device.threads, std::nullopt) << "another host has other cores";
  EXPECT_EQ(problem_of(kSmall, {"device.threads=1025"}),
            "r.toml: 1 problem\n  device.threads = 1025: must be at most 1024");
}

TEST(Recipe, DpFollowsFromRanks) {
  const RunConfig asked = parse_recipe(kSmall, "r.toml", std::vector<std::string>{"parallel.tp=2"});
  EXPECT_EQ(resolve(asked).grid.dp, 1);
  EXPECT_EQ(resolve(asked, 8).grid.dp, 4);
}

TEST(Recipe, PresetsGiveThePaperShapes) {
  const RunPlan plan = resolve(parse_recipe(
      "[model]\npreset = \"gpt2-8.3b\"\n[train]\nsteps = 1\n[data]\ntrain = \"x\"\nvocab_dir = \"v\"\n", "r"));
  EXPECT_EQ(model::count_parameters(plan.model), 8317040640);
  EXPECT_NE(problem_of("[model]\npreset = \"gpt2-124\"\n").find("did you mean gpt2-124m?"), std::string::npos);
}

TEST(Recipe, PresetsCanBeOfWholeModels) {
  const auto planned = [](std::vector<std::string> settings) {
    return resolve(parse_recipe("[train]\nsteps = 1\n[data]\ntrain = \"x\"\nvocab_dir = \"v\"\n", "r.toml", settings));
  };
  for (const model::Preset& preset : model::presets()) {
    RunPlan same;
    same.model = preset.model;
    const RunPlan plan = planned({str("model.preset=", preset.name)});
    if (same.model.padded_vocab_size == 0) same.model.padded_vocab_size = plan.model.padded_vocab_size;
    RunConfig want = same.as_config(), got = plan.as_config();
    for (const Key& key : keys()) {
      if (!key.name.starts_with("model.") && !key.name.starts_with("moe.")) continue;
      EXPECT_EQ(value_text(key.members.asked(got)), value_text(key.members.asked(want))) << preset.name << key.name;
    }
    EXPECT_EQ(plan.warnings(), std::vector<std::string>{}) << preset.name;
  }
  // Other keys override its values, and what depends on them follows.
  const RunPlan other = planned({"model.preset=qwen3-30b-a3b", "model.seq_len=4096", "moe.num_experts=64",
                                 "moe.aux_loss=0", "moe.num_groups=4", "model.dropout=0.2", "model.num_layers=2"});
  EXPECT_EQ(other.model.moe.num_experts, 64);
  EXPECT_EQ(other.model.moe.top_k, 8);
  EXPECT_EQ(other.model.moe.aux_loss, 0);
  EXPECT_EQ(other.model.moe.group_top_k, 4);
  EXPECT_EQ(other.model.attention_dropout, 0.2);
  EXPECT_EQ(other.warnings(),
            (std::vector<std::string>{
                "model.num_layers = 2: model.preset = qwen3-30b-a3b has 48; the run trains another model",
                "moe.num_experts = 64: model.preset = qwen3-30b-a3b has 128; the run trains another model",
                "moe.num_groups = 4: model.preset = qwen3-30b-a3b has 1; the run trains another model"}));
  const RunPlan narrower = planned({"model.preset=gpt2-124m", "model.hidden_size=96"});
  EXPECT_EQ(narrower.model.ffn_hidden_size, 384);
}

}  // namespace
}  // namespace megalith::config
