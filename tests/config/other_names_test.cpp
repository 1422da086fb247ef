#include "megalith/config/other_names.h"

#include <regex>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/keys.h"
#include "megalith/config/run_config.h"
#include "megalith/config/run_plan.h"

namespace megalith::config {
namespace {

std::string refusal(const std::string& recipe, const std::vector<std::string>& settings = {}) {
  try {
    parse_recipe(recipe, "r.toml", settings);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// Names of another program, each with our key; "" where there is no such key but a sentence.
void expect_known(std::span<const std::pair<const char*, const char*>> names) {
  for (const auto& [name, key] : names) {
    EXPECT_FALSE(meant_key(name).is_none()) << name;
    EXPECT_EQ(meant_key(name).key, key) << name;
  }
}

TEST(OtherNames, EveryKeyOfTheTableIsOneOfOurs) {
  std::set<std::string_view> ours;
  for (const Key& key : keys()) ours.insert(key.name);
  std::set<std::string> seen;
  for (const OtherName& row : other_names()) {
    EXPECT_TRUE(row.key.empty() || ours.contains(row.key)) << row.key;
    EXPECT_FALSE(row.key.empty() && row.how.empty()) << row.names;
    std::istringstream words{std::string(row.names)};
    for (std::string word; words >> word;) {
      EXPECT_TRUE(seen.insert(word).second) << word << " stands twice";
      EXPECT_EQ(as_key(word), word);
      EXPECT_FALSE(ours.contains(word)) << word << " is a key";
      EXPECT_EQ(find_other_name(word), &row) << word;
    }
  }
}

TEST(OtherNames, AreFoundAsPeopleWriteThem) {
  for (const char* name : {"n_layer", "model.n_layer", "model.nLayer", "--n-layer", "N_LAYER"})
    EXPECT_EQ(meant_key(name).key, "model.num_layers") << name;
  EXPECT_TRUE(meant_key("section.nosuch").is_none());
}

TEST(OtherNames, RecipesOfNanoGptAreAnsweredKeyByKey) {
  EXPECT_EQ(refusal("[model]\nn_embd = 64\nn_layer = 2\nn_head = 2\nblock_size = 32\n"),
            "r.toml: 4 problems\n  model.block_size = 32: no such key; did you mean model.seq_len?\n"
            "  model.n_embd = 64: no such key; did you mean model.hidden_size?\n"
            "  model.n_head = 2: no such key; did you mean model.num_heads?\n"
            "  model.n_layer = 2: no such key; did you mean model.num_layers?");
  EXPECT_EQ(refusal("max_iters = 10\nlearning_rate = 1e-3\n"),
            "r.toml: 2 problems\n  learning_rate = 0.001: no such key; did you mean optimizer.lr?\n"
            "  max_iters = 10: no such key; did you mean train.steps?");
  EXPECT_EQ(
      refusal("[train]\nbatch_size = 12\ngrad_accum = 4\ndtype = \"bfloat16\"\n"),
      "r.toml: 3 problems\n  train.batch_size = 12: no such key; did you mean train.micro_batch? It counts samples "
      "of one pass on one rank; those of a step on all ranks are train.global_batch\n"
      "  train.dtype = 'bfloat16': no such key; did you mean train.precision? It is fp64, fp32, bf16, fp16 or fp8\n"
      "  train.grad_accum = 4: no such key; did you mean train.global_batch? It is train.micro_batch * dp * "
      "microbatches of a step, dp = ranks / (tp * pp)");
  EXPECT_EQ(refusal("[parallel]\ndp = 2\n[optimizer]\nnesterov = true\n"),
            "r.toml: 2 problems\n  optimizer.nesterov = true: no such key; did you mean optimizer.beta1?\n"
            "  parallel.dp = 2: no such key; did you mean parallel.ranks? dp is what tp and pp leave of the ranks: "
            "parallel.ranks = dp * tp * pp");
}

TEST(OtherNames, SettingsAreAnsweredWithAndWithoutASection) {
  for (const char* setting : {"n_layer=2", "model.n_layer=2", "--n-layer=2", "num_layers=2", "training.num_layers=2"}) {
    const std::string text = refusal("", {setting});
    EXPECT_NE(text.find(" = 2: no such key; did you mean model.num_layers?"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal("", {"quux=2"}), "r.toml: 1 problem\n  --set quux=2: must be section.key=value");
  EXPECT_EQ(refusal("", {"n_layer"}), "r.toml: 1 problem\n  --set n_layer: must be section.key=value");
}

// A hint that names a key in its sentence must name one that there is.
TEST(OtherNames, EverySentenceNamesKeysThatThereAre) {
  std::set<std::string_view> ours;
  std::string sections;
  for (const Key& key : keys()) {
    ours.insert(key.name);
    const std::string section(key.name.substr(0, key.name.find('.')));
    if (sections.find(section) == std::string::npos) sections += (sections.empty() ? "" : "|") + section;
  }
  const std::regex named("(" + sections + ")\\.[a-z_]+[a-z0-9]");
  int found = 0;
  for (const OtherName& row : other_names()) {
    const std::string how(row.how);
    for (std::sregex_iterator at(how.begin(), how.end(), named), end; at != end; ++at, ++found)
      EXPECT_TRUE(ours.contains(at->str())) << how;
  }
  EXPECT_GE(found, 20);
}

TEST(OtherNames, WordsOfAnotherSectionAreFound) {
  const std::pair<const char*, const char*> names[] = {
      {"moe.router_topk", "moe.top_k"},       {"moe.router_top_k", "moe.top_k"},
      {"moe.aux_loss_coeff", "moe.aux_loss"}, {"moe.token_dispatcher_type", "moe.dispatcher"},
      {"train.log_interval", "log.interval"}, {"--log-interval", "log.interval"},
      {"log_interval", "log.interval"},       {"eval.interval", "train.eval_interval"},
      {"eval.batches", "train.eval_batches"}, {"train.checkpoint_interval", "checkpoint.interval"}};
  expect_known(names);
}

TEST(OtherNames, OptionsOfOtherProgramsHaveWordsOfTheirOwn) {
  for (const char* name : {"--eval_only", "--do-eval"})
    EXPECT_EQ(meant_key(name).how, "`megalith eval OUT --task loss --data FILE` measures the model of a run") << name;
  for (const char* name : {"--config", "--config-file", "--job.config_file"})
    EXPECT_EQ(meant_key(name).how, "The recipe follows the command without an option: megalith train RECIPE.toml")
        << name;
}

TEST(OtherNames, ValuesOfOtherProgramsAreKnown) {
  const auto hint = [](const std::string& setting) {
    try {
      resolve(parse_recipe("[train]\nsteps = 1\n", "r.toml", std::vector<std::string>{setting}));
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      const std::size_t at = text.find("did you mean ");
      return at == std::string::npos ? text : text.substr(at + 13, text.find('?', at) - at - 13);
    }
    return std::string();
  };
  EXPECT_EQ(hint("device.type=gpu"), "cuda");
  EXPECT_NE(
      hint("device.type=mps").find("device.type = mps: must be cpu or cuda; Apple's GPUs (Metal) have no backend"),
      std::string::npos);
  for (const char* other : {"rocm", "hip", "xpu"})
    EXPECT_NE(hint(std::string("device.type=") + other).find("must be cpu or cuda; AMD's and Intel's GPUs have no"),
              std::string::npos)
        << other;
  EXPECT_EQ(hint("device.type=GPU"), "cuda");
  EXPECT_EQ(hint("device.type=cpuu"), "cpu");
  EXPECT_EQ(hint("train.precision=bfloat16"), "bf16");
  EXPECT_EQ(hint("train.precision=float16"), "fp16");
  EXPECT_EQ(hint("train.precision=float32"), "fp32");
}

TEST(OtherNames, WhatIsNotBuiltHasWordsOfItsOwn) {
  EXPECT_EQ(refusal("[lora]\nrank = 8\ndropout = 0.5\n"),
            "r.toml: 2 problems\n  lora.dropout = 0.5: no such key. All weights are trained: low-rank adapters (LoRA) "
            "are not built; train.init names what a run begins with\n"
            "  lora.rank = 8: no such key. All weights are trained: low-rank adapters (LoRA) are not built; train.init "
            "names what a run begins with");
  for (const char* key : {"wandb.project", "wandb.enable", "wandb.steps", "--wandb-log"})
    EXPECT_EQ(meant_key(key).how,
              "Weights & Biases is not built in: OUT/metrics.jsonl has every step, and log.tensorboard = true writes "
              "event files")
        << key;
  EXPECT_EQ(
      refusal("[data]\npath = \"a.txt\"\nshuffle = true\n"),
      "r.toml: 2 problems\n  data.path = 'a.txt': no such key; did you mean data.train? It takes text files, "
      "folders of them, or what `megalith data build` has written\n"
      "  data.shuffle = true: no such key. Samples are always shuffled, in an order that follows from train.seed; "
      "leave it out");
  EXPECT_EQ(refusal("[train]\nsteps = 1e3\n"),
            "r.toml: 1 problem\n  train.steps = 1000.0: must be an integer; write 1000");
  EXPECT_EQ(refusal("", {"train.steps=1e3"}),
            "r.toml: 1 problem\n  train.steps = 1000.0: must be an integer; write 1000");
  EXPECT_EQ(refusal("[train]\nsteps = 1.5\n"), "r.toml: 1 problem\n  train.steps = 1.5: must be an integer");
  EXPECT_EQ(refusal("[train]\nsteps = 1e300\n").find("write"), std::string::npos);
  EXPECT_EQ(meant_key("--init_from").key, "train.init");
  EXPECT_NE(meant_key("--init_from").how.find("`megalith checkpoint import-hf`"), std::string_view::npos);
  EXPECT_EQ(
      meant_key("--always_save_checkpoint").how,
      "Every checkpoint.interval steps or checkpoint.every_s seconds a run saves, whatever its loss; leave it out");
}

/// The flags of Megatron-LM's example scripts for GPT, with what must be found; "" where there is no such key.
TEST(OtherNames, FlagsOfMegatronAreKnown) {
  const std::pair<const char*, const char*> flags[] = {{"--num-layers", "model.num_layers"},
                                                       {"--hidden-size", "model.hidden_size"},
                                                       {"--ffn-hidden-size", "model.ffn_hidden_size"},
                                                       {"--num-attention-heads", "model.num_heads"},
                                                       {"--seq-length", "model.seq_len"},
                                                       {"--max-position-embeddings", "model.seq_len"},
                                                       {"--make-vocab-size-divisible-by", "model.padded_vocab_size"},
                                                       {"--attention-dropout", "model.attention_dropout"},
                                                       {"--hidden-dropout", "model.dropout"},
                                                       {"--tensor-model-parallel-size", "parallel.tp"},
                                                       {"--pipeline-model-parallel-size", "parallel.pp"},
                                                       {"--context-parallel-size", "parallel.cp"},
                                                       {"--expert-model-parallel-size", "parallel.ep"},
                                                       {"--num-experts", "moe.num_experts"},
                                                       {"--moe-router-topk", "moe.top_k"},
                                                       {"--moe-aux-loss-coeff", "moe.aux_loss"},
                                                       {"--moe-token-dispatcher-type", "moe.dispatcher"},
                                                       {"--moe-grouped-gemm", "moe.gemm"},
                                                       {"--num-layers-per-virtual-pipeline-stage", "parallel.chunks"},
                                                       {"--sequence-parallel", "parallel.sequence_parallel"},
                                                       {"--distributed-timeout-minutes", "parallel.timeout_s"},
                                                       {"--micro-batch-size", "train.micro_batch"},
                                                       {"--global-batch-size", "train.global_batch"},
                                                       {"--train-iters", "train.steps"},
                                                       {"--train-samples", "train.steps"},
                                                       {"--bf16", "train.precision"},
                                                       {"--fp16", "train.precision"},
                                                       {"--initial-loss-scale", "train.loss_scale"},
                                                       {"--min-loss-scale", "train.loss_scale_min"},
                                                       {"--loss-scale-window", "train.loss_scale_interval"},
                                                       {"--seed", "train.seed"},
                                                       {"--eval-interval", "train.eval_interval"},
                                                       {"--eval-iters", "train.eval_batches"},
                                                       {"--deterministic-mode", "train.deterministic"},
                                                       {"--lr", "optimizer.lr"},
                                                       {"--min-lr", "optimizer.min_lr"},
                                                       {"--lr-decay-style", "optimizer.decay"},
                                                       {"--lr-decay-iters", "optimizer.decay_steps"},
                                                       {"--lr-warmup-iters", "optimizer.warmup_steps"},
                                                       {"--lr-warmup-fraction", "optimizer.warmup_steps"},
                                                       {"--weight-decay", "optimizer.weight_decay"},
                                                       {"--adam-beta1", "optimizer.beta1"},
                                                       {"--adam-beta2", "optimizer.beta2"},
                                                       {"--adam-eps", "optimizer.eps"},
                                                       {"--exp-avg-dtype", "optimizer.moments"},
                                                       {"--clip-grad", "optimizer.clip"},
                                                       {"--use-distributed-optimizer", "optimizer.distributed"},
                                                       {"--data-path", "data.train"},
                                                       {"--split", "data.split"},
                                                       {"--vocab-file", "data.vocab_dir"},
                                                       {"--merge-file", "data.vocab_dir"},
                                                       {"--tokenizer-type", "data.tokenizer"},
                                                       {"--save", "checkpoint.dir"},
                                                       {"--save-interval", "checkpoint.interval"},
                                                       {"--log-interval", "log.interval"},
                                                       {"--tensorboard-dir", "log.tensorboard"},
                                                       {"--cuda-graph-scope", "graphs.scopes"},
                                                       {"--load", ""},
                                                       {"--optimizer", "optimizer.type"},
                                                       {"--distributed-backend", ""},
                                                       {"--overlap-grad-reduce", ""},
                                                       {"--recompute-granularity", "recompute.mode"},
                                                       {"--use-flash-attn", ""},
                                                       {"--transformer-impl", ""},
                                                       {"--swiglu", "model.activation"},
                                                       {"--num-query-groups", "model.num_kv_heads"},
                                                       {"--kv-channels", "model.head_dim"},
                                                       {"--normalization", "model.norm"},
                                                       {"--rotary-base", "model.rope_theta"},
                                                       {"--untie-embeddings-and-output-weights", "model.tied"},
                                                       {"--finetune", "train.init"},
                                                       {"--no-load-optim", "train.init"},
                                                       {"--no-load-rng", "train.init"},
                                                       {"--exit-interval", "train.steps"},
                                                       {"--exit-duration-in-mins", ""},
                                                       {"--async-save", ""},
                                                       {"--ckpt-format", ""},
                                                       {"--ckpt-step", ""},
                                                       {"--log-throughput", ""},
                                                       {"--rotary-percent", ""},
                                                       {"--use-rotary-position-embeddings", "model.position"},
                                                       {"--group-query-attention", "model.num_kv_heads"},
                                                       {"--disable-bias-linear", "model.bias"},
                                                       {"--qk-layernorm", "model.qk_norm"},
                                                       {"--multi-latent-attention", ""},
                                                       {"--moe-layer-freq", "moe.pattern"},
                                                       {"--moe-permute-fusion", ""},
                                                       {"--moe-router-dtype", ""},
                                                       {"--moe-enable-deepep", "moe.dispatcher"},
                                                       {"--expert-tensor-parallel-size", "parallel.etp"},
                                                       {"--cp-comm-type", "parallel.cp"},
                                                       {"--recompute-method", "recompute.method"},
                                                       {"--recompute-num-layers", "recompute.layers"},
                                                       {"--recompute-modules", "recompute.modules"},
                                                       {"--cuda-graph-impl", "graphs.mode"},
                                                       {"--cuda-graph-warmup-steps", "graphs.warmup_steps"},
                                                       {"--test-data-path", ""},
                                                       {"--fp8-recipe", "train.precision"},
                                                       {"--accumulate-allreduce-grads-in-fp32", ""},
                                                       {"--use-precision-aware-optimizer", "optimizer.moments"},
                                                       {"--optimizer-cpu-offload", ""},
                                                       {"--override-opt_param-scheduler", ""},
                                                       {"--lr-wsd-decay-style", ""},
                                                       {"--lr-wsd-decay-iters", "optimizer.decay_steps"},
                                                       {"--init-method-std", "model.init_std"},
                                                       {"--eod-mask-loss", ""},
                                                       {"--manual-gc", ""},
                                                       {"--check-for-nan-in-loss-and-grad", ""},
                                                       {"--profile", ""},
                                                       {"--use-megatron-fsdp", "optimizer.distributed"},
                                                       {"--no-masked-softmax-fusion", ""}};
  expect_known(flags);
}

TEST(OtherNames, KeysOfTorchtitanAreKnown) {
  const std::pair<const char*, const char*> names[] = {
      {"model.flavor", "model.preset"},
      {"model.hf_assets_path", "data.vocab_dir"},
      {"training.steps", "train.steps"},
      {"training.local_batch_size", "train.micro_batch"},
      {"training.global_batch_size", "train.global_batch"},
      {"training.seq_len", "model.seq_len"},
      {"training.max_norm", "optimizer.clip"},
      {"training.dataset_path", "data.train"},
      {"training.mixed_precision_param", "train.precision"},
      {"parallelism.data_parallel_shard_degree", "optimizer.distributed"},
      {"parallelism.data_parallel_replicate_degree", "parallel.ranks"},
      {"parallelism.tensor_parallel_degree", "parallel.tp"},
      {"parallelism.pipeline_parallel_degree", "parallel.pp"},
      {"parallelism.pipeline_parallel_schedule", "parallel.chunks"},
      {"parallelism.context_parallel_degree", "parallel.cp"},
      {"parallelism.expert_parallel_degree", "parallel.ep"},
      {"parallelism.expert_tensor_parallel_degree", "parallel.etp"},
      {"lr_scheduler.warmup_steps", "optimizer.warmup_steps"},
      {"lr_scheduler.decay_type", "optimizer.decay"},
      {"lr_scheduler.min_lr_factor", "optimizer.min_lr"},
      {"activation_checkpoint.mode", "recompute.mode"},
      {"checkpoint.folder", "checkpoint.dir"},
      {"checkpoint.keep_latest_k", "checkpoint.keep"},
      {"checkpoint.initial_load_path", "train.init"},
      {"checkpoint.async_mode", ""},
      {"compile.enable", ""},
      {"metrics.enable_tensorboard", "log.tensorboard"},
      {"metrics.log_freq", "log.interval"},
      {"profiling.enable_profiling", ""},
      {"quantize.linear.float8", "train.precision"},
      {"validation.freq", "train.eval_interval"},
      {"job.dump_folder", ""}};
  expect_known(names);
}

TEST(OtherNames, OptionsOfLlmCAreKnown) {
  const std::pair<const char*, const char*> names[] = {{"train_data_pattern", "data.train"},
                                                       {"val_data_pattern", "data.valid"},
                                                       {"output_log_dir", ""},
                                                       {"total_batch_size", "train.global_batch"},
                                                       {"warmup_iterations", "optimizer.warmup_steps"},
                                                       {"learning_rate_decay_frac", "optimizer.min_lr"},
                                                       {"val_loss_every", "train.eval_interval"},
                                                       {"checkpoints_keep", "checkpoint.keep"},
                                                       {"checkpoint_every", "checkpoint.interval"},
                                                       {"recompute", "recompute.mode"},
                                                       {"zero_stage", "optimizer.distributed"},
                                                       {"use_master_weights", ""},
                                                       {"overfit_single_batch", ""}};
  expect_known(names);
}

}  // namespace
}  // namespace megalith::config
