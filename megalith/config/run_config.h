#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::config {

/// The contents of a recipe: every member is optional, and nothing changes it after parsing. resolve() (run_plan.h)
/// turns it into a RunPlan. keys.h has everything else about each key.
struct RunConfig {
  struct Model {
    std::optional<std::string> preset, family;
    std::optional<Index> num_layers, hidden_size, num_heads, ffn_hidden_size, seq_len, vocab_size, padded_vocab_size;
    std::optional<Index> num_positions;
    std::optional<Index> num_kv_heads, head_dim, rope_original_seq_len, token_types;
    std::optional<double> dropout, attention_dropout, embedding_dropout;
    std::optional<double> norm_eps, rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    std::optional<std::string> norm, norm_placement, position, rope_scaling, qk_norm, activation, bias;
    std::optional<bool> tied, init_depth_scaling;
    std::optional<double> init_std;
  } model;
  struct Bert {
    std::optional<std::string> order;
    std::optional<double> mask_fraction, short_fraction;
    std::optional<Index> max_ngram;
    std::optional<bool> whole_words;
  } bert;
  struct Task {
    std::optional<std::string> name, init, preset;
    std::optional<Index> epochs, max_query, doc_stride;
  } task;
  struct Moe {
    std::optional<Index> num_experts, top_k, ffn_hidden_size, num_groups, group_top_k;
    std::optional<Index> shared_ffn_hidden_size, capacity_run;
    std::optional<std::string> pattern, score, aux_scope, capacity, drop_by, gemm, dispatcher, replay;
    std::optional<std::string> rank_capacity_factor, overflow;
    std::optional<double> scale, aux_loss, z_loss, expert_bias_rate, capacity_factor, router_skew;
    std::optional<bool> score_before_top_k, normalize_top_k, shared_gate, force_balance, overlap;
    struct Echo {
      std::optional<Index> slots, min_pairs, check_plan;
      std::optional<std::string> balance, weights, backend;
      std::optional<bool> overlap;
    } echo;
  } moe;
  struct Parallel {
    std::optional<Index> ranks, tp, cp, pp, ep, etp, chunks, group_size;
    std::optional<std::vector<Index>> stage_layers;
    std::optional<std::string> order, tp_overlap, transfers;
    std::optional<bool> sequence_parallel, share_gpu_memory;
    std::optional<double> timeout_s;
  } parallel;
  struct Train {
    std::optional<Index> steps, global_batch, micro_batch, seed, eval_interval, eval_batches, early_stop, skip_limit,
        spike_window;
    std::optional<std::string> init, precision, gemm, batch_ramp;
    std::optional<double> loss_scale, loss_scale_min, early_stop_delta, spike_loss, spike_norm;
    std::optional<std::string> on_nonfinite, on_spike;
    std::optional<Index> loss_scale_interval;
    std::optional<bool> deterministic;
  } train;
  struct Eval {
    std::optional<std::vector<std::string>> tasks;
  } eval;
  struct Optimizer {
    std::optional<double> lr, min_lr, weight_decay, beta1, beta2, eps, clip, muon_momentum;
    std::optional<Index> warmup_steps, decay_steps;
    std::optional<std::string> decay, type, muon_scale, moments, shard;
    std::optional<bool> distributed;
  } optimizer;
  struct Data {
    std::optional<std::string> tokenizer, vocab_dir, split, key, format, chat_template, chat_too_long;
    std::optional<std::vector<std::string>> train, valid, test;
    std::optional<Index> max_line;
    std::optional<bool> chat_packing, attend_across_documents;
  } data;
  struct Checkpoint {
    std::optional<std::string> dir, on_corrupt;
    std::optional<Index> interval, keep;
    std::optional<double> every_s;
  } checkpoint;
  struct Log {
    std::optional<Index> interval;
    std::optional<bool> tensorboard;
  } log;
  struct Graphs {
    std::optional<std::string> mode, per;
    std::optional<std::vector<std::string>> scopes;
    std::optional<Index> warmup_steps, check;
    std::optional<bool> optimizer;
  } graphs;
  struct Recompute {
    std::optional<std::string> mode, method;
    std::optional<Index> layers;
    std::optional<std::vector<std::string>> modules;
  } recompute;
  struct Fp8 {
    std::optional<std::string> skip_layers, experts;
    std::optional<bool> weight_grad, head;
  } fp8;
  struct Device {
    std::optional<std::string> type;
    std::optional<Index> ranks_per_node, threads;
  } device;

  std::string source;  ///< file name, for messages
  /// What read_recipe() found: keys whose values have the wrong type, which are unset, and a line for each.
  std::vector<std::string_view> mistyped;
  std::vector<std::string> problems;
};

/// The key that was meant by a name that is not a key.
struct MeantKey {
  std::string_view key;       ///< our key; empty: none, or unknown
  std::string_view how = {};  ///< a sentence on how its value is given, or why there is no such key
  bool is_none() const { return key.empty() && how.empty(); }
};
/// The key that is meant: the one with this name in another program (other_names.h). Else the only one with these words
/// in another section (train.log_interval, eval.interval), that begins with it (graphs.opt), or with which it begins
/// (graphs.check_steps). Else the same name in another section, else the nearest by spelling.
MeantKey meant_key(std::string_view name);

/// Reads a recipe (TOML), then applies "section.key=value" settings in order. Throws ConfigError with every unknown key
/// (and the nearest known one), every value of the wrong type and every key that occurs twice.
RunConfig parse_recipe(std::string_view toml, std::string source, std::span<const std::string> settings = {});
/// The same for a recipe that is resolved next: if values of the wrong type are all that is wrong, resolve() reports
/// them, together with the rules that other keys break.
RunConfig read_recipe(std::string_view toml, std::string source, std::span<const std::string> settings = {});

/// A recipe with exactly these values: sections and keys in the order of the table of keys, without unset ones. Parsing
/// it gives the same RunConfig.
std::string to_toml(RunConfig config);
/// The same, key by key: full name and value as in a recipe.
std::vector<std::pair<std::string_view, std::string>> toml_values(RunConfig config);

}  // namespace megalith::config
