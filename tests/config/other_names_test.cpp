#include "megalith/config/other_names.h"

#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/keys.h"
#include "megalith/config/run_config.h"

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
      "  train.dtype = 'bfloat16': no such key; did you mean train.precision? It is fp64, fp32, bf16 or fp16\n"
      "  train.grad_accum = 4: no such key; did you mean train.global_batch? It is train.micro_batch * dp * "
      "microbatches of a step, dp = ranks / (tp * pp)");
  EXPECT_EQ(refusal("[parallel]\ndp = 2\n[optimizer]\ntype = \"adamw\"\n"),
            "r.toml: 2 problems\n  optimizer.type = 'adamw': no such key. The optimizer is AdamW; leave it out\n"
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

/// The flags of Megatron-LM's example scripts for GPT, with what must be found; "" where no key says it.
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
                                                       {"--optimizer", ""},
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
                                                       {"--untie-embeddings-and-output-weights", "model.tied"}};
  for (const auto& [flag, key] : flags) {
    EXPECT_EQ(meant_key(flag).key, key) << flag;
    EXPECT_FALSE(meant_key(flag).is_none()) << flag;
  }
}

}  // namespace
}  // namespace megalith::config
