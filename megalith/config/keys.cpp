// Longer than 500 lines, as it is one table: a row for each key of a recipe.
#include "megalith/config/keys.h"

#include <algorithm>

#include "megalith/config/key_members.h"
#include "megalith/config/moe_rules.h"
#include "megalith/data/chat_template.h"
#include "megalith/model/model_config.h"
#include "megalith/tokenizer/tokenizer.h"

// The table of keys. Each row: name; members of RunConfig and RunPlan; default; bounds; rule on resume; whether ranks
// may differ; meaning. A literal default is also the initial value of the plan's member (tested).

namespace megalith::config {
namespace {

using enum OnResume;
using enum RanksMay;

constexpr double kMaxSize = 1 << 24;  // far beyond any model; keeps every product of two sizes in range
constexpr double kMaxRanks = grid::kMaxRanks, kMaxStages = grid::kMaxStages, kMaxLayers = model::kMaxLayers;
constexpr double kMaxSamples = 1 << 30, kMaxScale = 0x1p60, kAnyInteger = 0x1p63;
constexpr std::string_view kKeepsValues = "the values of the checkpoint go on";
constexpr std::string_view kDiffers = "results differ from an uninterrupted run";
constexpr std::array<std::string_view, 3> kFamilies = {"gpt2", "llama", "bert"};
constexpr std::array<std::string_view, 5> kTasks = {"mnli", "qqp", "squad1", "squad2", "race"};
constexpr std::array<std::string_view, 3> kTaskPresets = {"336m", "1.3b", "3.9b"};
constexpr std::array<std::string_view, 5> kPrecisions = {"fp64", "fp32", "bf16", "fp16", "fp8"};

/// A key of section [moe], whose plan is a part of the model.
template <class Both>
KeyMembers moe(Both) {
  return at(
      [](auto& c) -> auto& { return Both{}(c.moe); }, [](auto& c) -> auto& { return Both{}(c.model.moe); });
}

/// A key of section [bert], whose plan is a part of the model.
template <class Both>
KeyMembers bert(Both) {
  return at(
      [](auto& c) -> auto& { return Both{}(c.bert); }, [](auto& c) -> auto& { return Both{}(c.model.bert); });
}

KeyDefault literal(std::string_view toml) { return {.literal = toml, .words = {}}; }
KeyDefault words(std::string_view text) { return {.literal = {}, .words = text}; }

Bounds any() { return {}; }
Bounds at_least(double min, std::string_view note = {}) { return {.min = min, .note = note}; }
Bounds between(double min, double max) { return {.min = min, .max = max}; }
Bounds only(double value, std::string_view note) { return {.min = value, .max = value, .note = note}; }
Bounds above(double min) { return {.min = min, .is_above = true}; }
Bounds spike_factor() { return {.min = 0, .note = "0: off, else above 1"}; }
Bounds probability() { return {.min = 0, .max = 1, .is_below = true}; }
Bounds scale() { return {.min = 0, .max = kMaxScale, .is_above = true}; }
Bounds batch_ramp() {
  return {.note = "START:END:SAMPLES", .text_rule = [](const std::string& value) -> std::string_view {
            if (BatchRamp::of(value)) return "";
            return "must be three positive integers START:END:SAMPLES below 2^31, with END a multiple of START and "
                   "above it";
          }};
}
/// A factor in thousandths, or the worst case.
Bounds rank_capacity() {
  return {.note = "number or `worst`", .text_rule = [](const std::string& value) -> std::string_view {
            if (nn::RankCapacity::of(value)) return "";
            return "must be a multiple of 0.001 from 0.001 to 1000000, or worst";
          }};
}
Bounds one_of(std::span<const std::string_view> choices, std::string_view note = {}) {
  return {.choices = choices, .note = note};
}

/// Recipes of GPT-2 and of BERT name the parts of their blocks only where they are not GPT-2's.
bool is_gpt2(const RunPlan& plan) { return plan.model.family == "gpt2" || plan.model.is_bert(); }
bool is_bert(const RunPlan& plan) { return plan.model.is_bert(); }
bool is_masked_lm(const RunPlan& plan) { return plan.model.is_masked_lm(); }
bool has_task(const RunPlan& plan) { return plan.task.is_set(); }
bool has_queries(const RunPlan& plan) { return has_task(plan) && plan.task.name != "mnli" && plan.task.name != "qqp"; }
bool has_windows(const RunPlan& plan) { return plan.task.name.starts_with("squad"); }
bool has_experts(const RunPlan& plan) { return plan.model.moe.has_experts(); }
bool drops_rows(const RunPlan& plan, const RunConfig& saved) {
  return (plan.model.moe.overflow == nn::RowOverflow::drop || saved.moe.overflow == "drop") && limits_rows(plan);
}
bool has_capacity(const RunPlan& plan) { return plan.model.moe.has_capacity(); }
bool has_echo(const RunPlan& plan) { return plan.model.moe.echo.slots > 0; }
bool has_rope(const RunPlan& plan) { return plan.model.has_rope(); }
/// Recipes, and so the identity of runs, stay those of before where the default holds.
bool separates_texts(const RunPlan& plan) {
  return plan.data.format == data::DataFormat::text && !plan.data.attend_across_documents;
}
/// wsd_change() knows whether a change of a wsd matters.
bool warns_of_decay_steps(const RunPlan& plan, const RunConfig& saved) {
  const optim::DecayCurve decay = plan.optimizer.decay;
  if (decay == optim::DecayCurve::wsd && saved.optimizer.decay == "wsd") return false;
  return optim::reads_decay_steps(decay);
}
bool has_muon(const RunPlan& plan) { return plan.optimizer.type == optim::OptimizerType::muon; }
bool has_several_gpus(const RunPlan& plan, const RunConfig&) {
  return plan.device == Device::cuda && plan.grid.world_size > 1;
}
/// Whether only one of both recomputes a GELU that was not made of the rounded numbers that are kept (ops::Gelu).
bool rounds_gelu_otherwise(const RunPlan& plan, const RunConfig& saved) {
  const std::vector<std::string> were = saved.recompute.modules.value_or(std::vector<std::string>{});
  const std::string_view gelu = name(nn::RecomputeModule::gelu);
  return plan.model.has_mlps() && plan.model.activation != nn::Activation::swiglu &&
         size_of(plan.train.policy().compute) == 2 &&
         plan.recompute.names(nn::RecomputeModule::gelu) != (std::ranges::find(were, gelu) != were.end());
}

std::vector<Key> make_keys() {
  return {
      {"model.preset", asked_only([](auto& c) -> auto& { return c.model.preset; }), words("none"), any(), must_match,
       not_differ,
       "a published model: of GPT-2's the layers, hidden size, heads, `seq_len` and vocabulary (`gpt2-124m`, "
       "`gpt2-355m`, `gpt2-774m`, `gpt2-1558m`, `gpt2-1.2b`, `gpt2-2.5b`, `gpt2-4.2b`, `gpt2-8.3b`, and more, which "
       "the error for an unknown name lists); of `bert-base`, `bert-336m`, `llama-3.2-1b`, `olmoe-1b-7b`, "
       "`mixtral-8x7b` and `qwen3-30b-a3b` all keys of the model, `[moe]` among them. Their `seq_len` is the longest "
       "that the model takes: give a shorter one "
       "to train. Other keys override its values. A run warns if they make it another model"},
      {"model.family", at([](auto& c) -> auto& { return c.model.family; }), literal("'gpt2'"), one_of(kFamilies),
       must_match, not_differ,
       "`llama` sets `norm = 'rms'`, `position = 'rope'`, `activation = 'swiglu'`, `bias = 'none'`, `tied = false`, no "
       "dropout and Llama's `ffn_hidden_size`, where no key sets another value. `bert` is a masked language model "
       "([bert.md](bert.md)); it sets `token_types = 2` and `seq_len = 512`"},
      {"model.num_layers", at([](auto& c) -> auto& { return c.model.num_layers; }), words("must be given, or a preset"),
       between(1, kMaxLayers), must_match, not_differ, "Transformer layers"},
      {"model.hidden_size", at([](auto& c) -> auto& { return c.model.hidden_size; }),
       words("must be given, or a preset"), between(1, kMaxSize), must_match, not_differ,
       "divisible by `num_heads`; on GPUs at most 16384"},
      {"model.num_heads", at([](auto& c) -> auto& { return c.model.num_heads; }), words("must be given, or a preset"),
       between(1, kMaxSize), must_match, not_differ, "divisible by `parallel.tp`; on GPUs a head is at most 256 wide"},
      {"model.ffn_hidden_size", at([](auto& c) -> auto& { return c.model.ffn_hidden_size; }),
       words("4 x `hidden_size`; of `llama` two thirds of it, up to a multiple of 256"), between(1, kMaxSize),
       must_match, not_differ, "width of the MLP"},
      {"model.num_kv_heads", at([](auto& c) -> auto& { return c.model.num_kv_heads; }), words("`num_heads`"),
       between(1, kMaxSize), must_match, not_differ,
       "heads of keys and values, each shared by as many neighbouring heads (grouped-query attention); divides "
       "`num_heads`, divisible by `parallel.tp`",
       [](const RunPlan& plan) { return plan.model.num_kv_heads != 0; }},
      {"model.head_dim", at([](auto& c) -> auto& { return c.model.head_dim; }), words("`hidden_size` / `num_heads`"),
       between(1, kMaxSize), must_match, not_differ, "width of a head; on GPUs at most 256",
       [](const RunPlan& plan) { return plan.model.head_dim != 0; }},
      {"model.norm", at([](auto& c) -> auto& { return c.model.norm; }), words("`layer`, of `llama` `rms`"),
       one_of(kNamesOf<nn::NormKind>), must_match, not_differ, "layer norms, or RMS norms (`rms`) without a shift",
       [](const RunPlan& plan) { return !is_gpt2(plan) || plan.model.norm != nn::NormKind::layer; }},
      {"model.norm_eps", at([](auto& c) -> auto& { return c.model.norm_eps; }), words("`1e-05`"), above(0), must_match,
       not_differ, "added to the mean square of a norm's row",
       [](const RunPlan& plan) { return !is_gpt2(plan) || plan.model.norm_eps != 1e-5; }},
      {"model.norm_placement", at([](auto& c) -> auto& { return c.model.norm_placement; }), words("`pre`"),
       one_of(kNamesOf<nn::NormPlacement>), must_match, not_differ,
       "norms before each sublayer, and one at the end (`pre`), or after each residual sum, and one after the "
       "embeddings (`post`, as in the first BERT); `post` not with experts",
       [](const RunPlan& plan) { return plan.model.is_post_norm(); }},
      {"model.position", at([](auto& c) -> auto& { return c.model.position; }), words("`learned`, of `llama` `rope`"),
       one_of(kNamesOf<nn::PositionKind>), must_match, not_differ,
       "a table of positions, or rotations of queries and keys (`rope`)",
       [](const RunPlan& plan) { return !is_gpt2(plan) || plan.model.has_rope(); }},
      {"model.rope_theta", at([](auto& c) -> auto& { return c.model.rope_theta; }), words("`10000.0` with `rope`"),
       above(0), must_match, not_differ, "base of the wave lengths of `rope`", has_rope},
      {"model.rope_scaling", at([](auto& c) -> auto& { return c.model.rope_scaling; }), words("`none` with `rope`"),
       one_of(kNamesOf<ops::RopeScaling>), must_match, not_differ,
       "slower rotations for longer texts than a model was trained on: `linear`, or `llama3` for long wave lengths "
       "only",
       has_rope},
      {"model.rope_factor", at([](auto& c) -> auto& { return c.model.rope_factor; }), words("`1.0` with `rope`"),
       at_least(1), must_match, not_differ, "of `rope_scaling`: by how much rotations are slower", has_rope},
      {"model.rope_low_freq_factor", at([](auto& c) -> auto& { return c.model.rope_low_freq_factor; }),
       words("`1.0` with `rope`"), above(0), must_match, not_differ,
       "of `llama3`: wave lengths above `rope_original_seq_len` / this are made slower by the whole factor", has_rope},
      {"model.rope_high_freq_factor", at([](auto& c) -> auto& { return c.model.rope_high_freq_factor; }),
       words("`4.0` with `rope`"), above(0), must_match, not_differ,
       "of `llama3`: wave lengths below `rope_original_seq_len` / this stay", has_rope},
      {"model.rope_original_seq_len", at([](auto& c) -> auto& { return c.model.rope_original_seq_len; }),
       words("`8192` with `rope`"), between(1, kMaxSize), must_match, not_differ,
       "of `llama3`: the sequence length that the model was first trained with", has_rope},
      {"model.qk_norm", at([](auto& c) -> auto& { return c.model.qk_norm; }), words("`none`"),
       one_of(kNamesOf<nn::QkNorm>), must_match, not_differ,
       "RMS norms of queries and keys before they are rotated: over each head (Qwen3), or over all heads (OLMoE)",
       [](const RunPlan& plan) { return !is_gpt2(plan) || plan.model.qk_norm != nn::QkNorm::none; }},
      {"model.activation", at([](auto& c) -> auto& { return c.model.activation; }),
       words("`gelu`, of `llama` `swiglu`"), one_of(kNamesOf<nn::Activation>), must_match, not_differ,
       "of MLPs: GELU in its tanh form, `swiglu`, whose first GEMM makes gate and up, or `gelu_erf`: GELU with the "
       "error "
       "function, not with experts",
       [](const RunPlan& plan) { return !is_gpt2(plan) || plan.model.activation != nn::Activation::gelu; }},
      {"model.bias",
       at(
           [](auto& c) -> auto& { return c.model.bias; }, [](auto& c) -> auto& { return c.model.biases; }),
       words("`all`, of `llama` `none`"), one_of(kNamesOf<nn::Biases>), must_match, not_differ,
       "GEMMs of a layer that add a bias: all, that of q, k and v (`qkv`), or `none`",
       [](const RunPlan& plan) { return !is_gpt2(plan) || plan.model.biases != nn::Biases::all; }},
      {"model.tied",
       at(
           [](auto& c) -> auto& { return c.model.tied; }, [](auto& c) -> auto& { return c.model.tying; }),
       words("`true`, of `llama` `false`"), any(), must_match, not_differ,
       "whether the logits are made with the token table; else with a table of their own",
       [](const RunPlan& plan) { return !is_gpt2(plan) || plan.model.tying != model::Tying::tied; }},
      {"model.token_types", at([](auto& c) -> auto& { return c.model.token_types; }), words("`0`, of `bert` `2`"),
       between(0, kMaxSize), must_match, not_differ,
       "rows of a table of types, one of which is added to each token's embedding; 0: none. Tokens of texts are "
       "of type 0; with `bert` those of a second segment of type 1",
       [](const RunPlan& plan) { return plan.model.token_types != 0 || is_bert(plan); }},
      {"model.seq_len", at([](auto& c) -> auto& { return c.model.seq_len; }),
       words("`1024`, of `bert` `512`, or the preset's"), between(1, kMaxSize), must_match, not_differ,
       "tokens of a sample, and positions of the model"},
      {"model.num_positions", at([](auto& c) -> auto& { return c.model.num_positions; }), words("`model.seq_len`"),
       between(1, kMaxSize), must_match, not_differ,
       "rows of the table of positions, at least `seq_len`: more, where a model trains on shorter samples than it "
       "takes",
       [](const RunPlan& plan) { return plan.model.num_positions != 0; }},
      {"model.vocab_size", at([](auto& c) -> auto& { return c.model.vocab_size; }),
       words("the highest id of the tokenizer plus one: 256 of `byte`, 50257 of `gpt2`, of others as in their files"),
       between(1, kMaxSize), must_match, not_differ, "ids of the vocabulary"},
      {"model.padded_vocab_size", at([](auto& c) -> auto& { return c.model.padded_vocab_size; }),
       words("`vocab_size`, up to a multiple of 128 x tp"), between(1, kMaxSize), may_change, not_differ,
       "rows of the token table. Padding rows never get a probability"},
      {"model.dropout", at([](auto& c) -> auto& { return c.model.dropout; }), literal("0.1"), probability(), warns,
       not_differ, "after attention and MLP"},
      {"model.attention_dropout", at([](auto& c) -> auto& { return c.model.attention_dropout; }),
       words("`model.dropout`"), probability(), warns, not_differ,
       "on attention's probabilities. Above 0 GPUs use our own attention, which is fastest on Hopper with heads of 64 "
       "or 128"},
      {"model.embedding_dropout", at([](auto& c) -> auto& { return c.model.embedding_dropout; }),
       words("`model.dropout`"), probability(), warns, not_differ, "on the sum of token and position embeddings"},
      {"model.init_std",
       at([](auto& c) -> auto& { return c.model.init_std; }),
       literal("0.02"),
       above(0),
       {warns, kKeepsValues},
       not_differ,
       "standard deviation of the normal numbers with which weights and tables of every family begin"},
      {"model.init_depth_scaling",
       at([](auto& c) -> auto& { return c.model.init_depth_scaling; }),
       literal("true"),
       any(),
       {warns, kKeepsValues},
       not_differ,
       "weights right before a residual sum (the last ones of attention, MLPs and experts) begin with `init_std` / "
       "sqrt(2 `num_layers`), as in GPT-2; `false`: with `init_std`"},
      {"bert.order", bert([](auto& c) -> auto& { return c.order; }), words("`sop`"),
       one_of(kNamesOf<data::SentenceOrder>), must_match, not_differ,
       "a second loss: whether the two segments of a sample follow each other in the text or were swapped (`sop`), or "
       "whether the second is of another document (`nsp`); `none`: samples of one segment, no second loss",
       is_masked_lm},
      {"bert.mask_fraction", bert([](auto& c) -> auto& { return c.mask_fraction; }), words("`0.15`"),
       Bounds{.min = 0, .max = 0.5, .is_above = true}, must_match, not_differ,
       "of a sample's tokens that are not special: at most so many, rounded down, or 1, are masked", is_masked_lm},
      {"bert.max_ngram", bert([](auto& c) -> auto& { return c.max_ngram; }), words("`3`"), between(1, 10), warns,
       not_differ, "words of a masked span, at most; a span of n words is chosen in proportion to 1/n", is_masked_lm},
      {"bert.whole_words", bert([](auto& c) -> auto& { return c.whole_words; }), words("`true`"), any(), warns,
       not_differ, "mask all pieces of a word together; else each piece counts as a word", is_masked_lm},
      {"bert.short_fraction", bert([](auto& c) -> auto& { return c.short_fraction; }), words("`0.1`"), probability(),
       warns, not_differ, "share of samples that are cut to a random shorter length", is_masked_lm},
      {"task.name", at([](auto& c) -> auto& { return c.task.name; }), words("none: no fine-tuning"), one_of(kTasks),
       must_match, not_differ,
       "fine-tuning on MNLI, QQP, SQuAD 1.1, SQuAD 2.0 or RACE ([finetuning.md](finetuning.md)): `data.train` and "
       "`data.valid` name the task's files. It sets `optimizer.decay = 'linear'`, `optimizer.min_lr = 0`, a warm-up of "
       "6 "
       "% of the steps, and a dev score of the whole of `data.valid` after each epoch. Steps follow from `epochs`",
       has_task},
      {"task.init", at([](auto& c) -> auto& { return c.task.init; }), words("none"), any(), may_change, differ,
       "the checkpoint to begin with, as `train.init`, or a Hugging Face folder of a BERT. `[model]` and the tokenizer "
       "are its own; a recipe may give a shorter `model.seq_len` and its own dropout. Values that it lacks, the head "
       "of the task among them, come from "
       "the seed. Without it all do, and the recipe gives `[model]`",
       has_task},
      {"task.preset", asked_only([](auto& c) -> auto& { return c.task.preset; }), words("none"), one_of(kTaskPresets),
       may_change, not_differ,
       "batch, rate and epochs of the paper's table 6 for a model of this size; other keys override them"},
      {"task.epochs", at([](auto& c) -> auto& { return c.task.epochs; }), words("must be given, or a preset"),
       between(1, kMaxSize), warns, not_differ,
       "passes over the training set. An epoch's last batch is filled with samples without a loss", has_task},
      {"task.max_query", at([](auto& c) -> auto& { return c.task.max_query; }), words("`128`"), between(1, kMaxSize),
       must_match, not_differ, "tokens of a question (SQuAD), or of a question with an option (RACE), that are kept",
       has_queries},
      {"task.doc_stride", at([](auto& c) -> auto& { return c.task.doc_stride; }), words("`128`"), between(1, kMaxSize),
       must_match, not_differ, "tokens by which the windows of a paragraph of SQuAD advance", has_windows},
      {"moe.num_experts", moe([](auto& c) -> auto& { return c.num_experts; }), words("none: a dense model"),
       between(1, static_cast<double>(ops::kMaxRouterExperts)), must_match, not_differ,
       "experts of an MoE layer, which take the place of its MLP; divisible by `parallel.ep`", has_experts},
      {"moe.top_k", moe([](auto& c) -> auto& { return c.top_k; }), words("`2`"), at_least(1), must_match, not_differ,
       "experts that a token passes", has_experts},
      {"moe.ffn_hidden_size", moe([](auto& c) -> auto& { return c.ffn_hidden_size; }), words("`model.ffn_hidden_size`"),
       between(1, kMaxSize), must_match, not_differ, "width of an expert; divisible by `parallel.etp`", has_experts},
      {"moe.pattern", moe([](auto& c) -> auto& { return c.pattern; }), words("`m`"), any(), must_match, not_differ,
       "repeats over the layers: `m` a mixture of experts, `d` a dense layer. `dm`: every second layer has experts",
       has_experts},
      {"moe.score", moe([](auto& c) -> auto& { return c.score; }), words("`softmax`"),
       one_of(kNamesOf<ops::RouterScore>), must_match, not_differ, "of the router's logits", has_experts},
      {"moe.score_before_top_k", moe([](auto& c) -> auto& { return c.score_before_top_k; }), words("`true`"), any(),
       must_match, not_differ,
       "whether a softmax goes over all experts, of which then `top_k` are chosen (OLMoE, Qwen), or over the chosen "
       "ones (Mixtral)",
       has_experts},
      {"moe.normalize_top_k", moe([](auto& c) -> auto& { return c.normalize_top_k; }), words("`false`"), any(),
       must_match, not_differ, "divides the weights of a token's experts by their sum", has_experts},
      {"moe.scale", moe([](auto& c) -> auto& { return c.scale; }), words("`1.0`"), above(0), must_match, not_differ,
       "factor on the weights of a token's experts", has_experts},
      {"moe.num_groups", moe([](auto& c) -> auto& { return c.num_groups; }), words("`1`"),
       between(1, static_cast<double>(ops::kMaxRouterGroups)), must_match, not_differ,
       "groups of neighbouring experts, of which the best `group_top_k` are looked at", has_experts},
      {"moe.group_top_k", moe([](auto& c) -> auto& { return c.group_top_k; }), words("`moe.num_groups`"), at_least(1),
       must_match, not_differ, "groups from which a token's experts are chosen", has_experts},
      {"moe.aux_loss", moe([](auto& c) -> auto& { return c.aux_loss; }), words("`0.01`; `0.0` with `expert_bias_rate`"),
       at_least(0, "0: off"), warns, not_differ,
       "coefficient of the load loss, which keeps experts evenly used; 0: off ([moe.md](moe.md))", has_experts},
      {"moe.aux_scope", moe([](auto& c) -> auto& { return c.aux_scope; }), words("`microbatch`"),
       one_of(kNamesOf<nn::AuxScope>), warns, not_differ,
       "tokens over which the load loss is computed: those of a `microbatch`, of a `sequence`, or `global`: with the "
       "counts of the step before",
       has_experts},
      {"moe.z_loss", moe([](auto& c) -> auto& { return c.z_loss; }), words("`0.0`"), at_least(0, "0: off"), warns,
       not_differ, "coefficient of the squared log-sum-exp of the router's logits, which keeps them small; 0: off",
       has_experts},
      {"moe.expert_bias_rate", moe([](auto& c) -> auto& { return c.expert_bias_rate; }), words("`0.0`"),
       at_least(0, "0: off"), warns, not_differ,
       "balance without a loss: after a step each expert's bias moves by this, up if the expert was chosen less than "
       "the mean. With `score = 'sigmoid'`; 0: off",
       has_experts},
      {"moe.shared_ffn_hidden_size", moe([](auto& c) -> auto& { return c.shared_ffn_hidden_size; }), words("`0`"),
       between(0, kMaxSize), must_match, not_differ, "width of an MLP that every token passes besides; 0: none",
       has_experts},
      {"moe.shared_gate", moe([](auto& c) -> auto& { return c.shared_gate; }), words("`false`"), any(), must_match,
       not_differ, "multiplies the result of the shared MLP by a sigmoid of the token (Qwen2-MoE)", has_experts},
      {"moe.capacity", moe([](auto& c) -> auto& { return c.capacity; }), words("`none`"),
       one_of(kNamesOf<nn::ExpertCapacity>), warns, not_differ,
       "what an expert takes in training: all rows that chose it (`none`), up to its capacity (`drop`), or that many "
       "always, filled up with zeros (`pad`)",
       has_experts},
      {"moe.capacity_factor", moe([](auto& c) -> auto& { return c.capacity_factor; }),
       words("must be given with `drop` and `pad`"), above(0), warns, not_differ,
       "capacity of an expert: this times its even share of a run of tokens", has_capacity},
      {"moe.capacity_run", moe([](auto& c) -> auto& { return c.capacity_run; }), words("`model.seq_len`"),
       between(1, kMaxSize), warns, not_differ,
       "consecutive tokens of a sample of which capacity is counted. A rank must hold whole runs", has_capacity},
      {"moe.drop_by", moe([](auto& c) -> auto& { return c.drop_by; }), words("`probability`"),
       one_of(kNamesOf<ops::DropBy>), warns, not_differ,
       "which pairs of token and expert stay: those that weigh most, or the first ones (`position`)", has_capacity},
      {"moe.gemm", moe([](auto& c) -> auto& { return c.gemm; }), words("`auto`"), one_of(kNamesOf<nn::ExpertGemm>),
       may_change, not_differ,
       "how the GEMMs of experts run: one for each (`loop`; on GPUs in several streams), or on Hopper GPUs in 16 bits "
       "one "
       "kernel for all, which reads their sizes on the device (`grouped`). `auto`: that kernel where it can run",
       has_experts},
      {"moe.dispatcher", moe([](auto& c) -> auto& { return c.dispatcher; }), words("`auto`"),
       one_of(kNamesOf<nn::ExpertDispatcher>), may_change, not_differ,
       "how rows come to the ranks of their experts: these read them where they are (`peer`, between ranks that reach "
       "each other's memory, as on one host), or they are sent with counts that the host knows (`all_to_all`). `auto`: "
       "`peer` where it can be; in graphs of whole steps `peer` between at most 8 ranks, unless `moe.capacity = "
       "pad`. The results are the same",
       has_experts},
      {"moe.rank_capacity_factor",
       moe([](auto& c) -> auto& { return c.rank_capacity_factor; }),
       words("the larger of 2 and `parallel.ep` / `top_k`, or `worst` if that is less; with clones of experts less "
             "([echo.md](echo.md#rows-of-a-rank))"),
       rank_capacity(),
       {warns, kDiffers, drops_rows},
       not_differ,
       "of `peer`: rows of experts that a rank has room for in training, over its even share; at least `parallel.ep` / "
       "`top_k`, so that one expert fits, and with clones at least 1. `worst`: as many as can come. Evaluation has "
       "room for all",
       limits_rows},
      {"moe.overflow",
       moe([](auto& c) -> auto& { return c.overflow; }),
       words("`rerun`"),
       one_of(kNamesOf<nn::RowOverflow>),
       {warns, kDiffers, drops_rows},
       not_differ,
       "what a step does in which a rank has too few rows. `rerun`: it changes nothing, and is run again in rounds of "
       "experts that fit, with the results of `worst`; `abort`: it changes nothing, and the run ends with a factor "
       "that "
       "suffices; `drop`: pairs of token and expert beyond the rows are left out, and counted",
       limits_rows},
      {"moe.overlap", moe([](auto& c) -> auto& { return c.overlap; }), words("`false`"), any(), may_change, not_differ,
       "of `peer`: rows of a quarter of a rank's experts come first, and the others travel beside their first GEMM. "
       "The "
       "results are the same",
       has_experts},
      {"moe.echo.slots", moe([](auto& c) -> auto& { return c.echo.slots; }), words("`0`"),
       between(0, ops::kMaxEchoSlots), may_change, not_differ,
       "slots of each rank of `parallel.ep` for clones of busy experts, which even out the load ([echo.md](echo.md)); "
       "0: none. With several ranks `moe.num_experts` + `parallel.ep` * `moe.echo.slots` is at most 1024",
       has_experts},
      {"moe.echo.min_pairs", moe([](auto& c) -> auto& { return c.echo.min_pairs; }), words("`1024`; `0` with `exact`"),
       at_least(0), may_change, not_differ,
       "pairs of token and expert that a clone must take over in a microbatch, as a smaller one costs more than it "
       "saves",
       has_echo},
      {"moe.echo.balance", moe([](auto& c) -> auto& { return c.echo.balance; }), words("`greedy`"),
       one_of(kNamesOf<ops::EchoBalance>), may_change, not_differ,
       "which pairs move: what loads exceed the mean by (`greedy`), or so that all loads are equal (`exact`, which "
       "takes "
       "no `min_pairs`)",
       has_echo},
      {"moe.echo.weights", moe([](auto& c) -> auto& { return c.echo.weights; }), words("`auto`"),
       one_of(kNamesOf<nn::EchoWeights>), may_change, not_differ,
       "weights of clones for the backward pass: slots of each layer and microbatch in flight keep them, or all layers "
       "share the slots, and the weights are sent again (`redispatch`). `auto`: `keep`, but on CPUs `redispatch` where "
       "the hosts of a run have too little memory for it. The results are the same",
       has_echo},
      {"moe.echo.backend", moe([](auto& c) -> auto& { return c.echo.backend; }), words("`auto`"),
       one_of(kNamesOf<nn::EchoBackend>), may_change, not_differ,
       "how weights and gradients of clones move: ranks read them where they are (`peer`, as `moe.dispatcher`), "
       "collectives of all slots (`collective`), or messages with counts that the host knows (`host_sized`). `auto`: "
       "as "
       "the rows of tokens do. The results are the same",
       has_echo},
      {"moe.echo.overlap", moe([](auto& c) -> auto& { return c.echo.overlap; }), words("`true`"), any(), may_change,
       not_differ, "transfers of clones overlap with compute. The results are the same", has_echo},
      {"moe.echo.check_plan", moe([](auto& c) -> auto& { return c.echo.check_plan; }), words("`0`"),
       at_least(0, "0: off"), may_change, not_differ,
       "ranks compare their plans of clones each so many steps; a rank with another plan ends the run with exit code "
       "71",
       has_echo},
      {"moe.force_balance", moe([](auto& c) -> auto& { return c.force_balance; }), words("`false`"), any(), warns,
       not_differ, "for measurements: every expert gets as many tokens, whatever the router computes", has_experts},
      {"moe.router_skew", moe([](auto& c) -> auto& { return c.router_skew; }), words("`0.0`"), at_least(0, "0: off"),
       warns, not_differ,
       "for measurements: this times log(1 + e) is subtracted from the logits of expert e, so that the first experts "
       "are chosen most; 0: off",
       has_experts},
      {"moe.replay", moe([](auto& c) -> auto& { return c.replay; }), words("none"), any(), may_change, differ,
       "a file that `train --router-trace` has written: routers repeat its decisions, whatever they compute",
       has_experts},
      {"parallel.ranks",
       derived(
           [](auto& c) -> auto& { return c.parallel.ranks; }, [](auto& c) -> auto& { return c.grid.world_size; }),
       words("the least that tp x pp and etp x ep x pp divide"), between(1, kMaxRanks), may_change, not_differ,
       "ranks, at most 65536, as threads of one process; under `mpirun` it must agree with the number of processes"},
      {"parallel.tp",
       derived(
           [](auto& c) -> auto& { return c.parallel.tp; }, [](auto& c) -> auto& { return c.grid.tp; }),
       literal("1"), between(1, kMaxRanks), may_change, not_differ,
       "tensor-parallel ranks: heads, MLP and vocabulary are divided"},
      {"parallel.cp",
       derived(
           [](auto& c) -> auto& { return c.parallel.cp; }, [](auto& c) -> auto& { return c.grid.cp; }),
       literal("1"), only(1, "context parallelism is not built yet"), may_change, not_differ,
       "context-parallel ranks: not built yet"},
      {"parallel.pp",
       derived(
           [](auto& c) -> auto& { return c.parallel.pp; }, [](auto& c) -> auto& { return c.grid.pp; }),
       literal("1"), between(1, kMaxStages), may_change, not_differ, "pipeline stages, at most 1024"},
      {"parallel.ep",
       derived(
           [](auto& c) -> auto& { return c.parallel.ep; }, [](auto& c) -> auto& { return c.grid.ep; }),
       literal("1"), between(1, kMaxRanks), may_change, not_differ,
       "expert-parallel ranks: experts are divided among them"},
      {"parallel.etp",
       derived(
           [](auto& c) -> auto& { return c.parallel.etp; }, [](auto& c) -> auto& { return c.grid.etp; }),
       words("`parallel.tp`"), between(1, kMaxRanks), may_change, not_differ,
       "tensor-parallel ranks of an expert: each holds a slice of its units", has_experts},
      {"parallel.chunks",
       at(
           [](auto& c) -> auto& { return c.parallel.chunks; }, [](auto& c) -> auto& { return c.chunks; }),
       literal("1"), between(1, kMaxLayers), may_change, not_differ,
       "model chunks per stage (virtual stages): above 1 the schedule is interleaved"},
      {"parallel.stage_layers",
       at(
           [](auto& c) -> auto& { return c.parallel.stage_layers; }, [](auto& c) -> auto& { return c.stage_layers; }),
       words("equal shares"), at_least(0), may_change, not_differ,
       "layers of each stage, or chunk, in the model's order: pp x chunks numbers that sum to `num_layers`"},
      {"parallel.group_size",
       at(
           [](auto& c) -> auto& { return c.parallel.group_size; }, [](auto& c) -> auto& { return c.group_size; }),
       literal("0"), at_least(0), may_change, not_differ,
       "of the interleaved schedule: consecutive microbatches of a chunk; 0: pp"},
      {"parallel.order",
       derived(
           [](auto& c) -> auto& { return c.parallel.order; }, [](auto& c) -> auto& { return c.grid.order; }),
       literal("'tp-cp-ep-dp-pp'"), any(), may_change, not_differ,
       "axes, from the one whose ranks are neighbours to the one whose ranks are farthest apart"},
      {"parallel.tp_overlap",
       at(
           [](auto& c) -> auto& { return c.parallel.tp_overlap; }, [](auto& c) -> auto& { return c.tp_overlap; }),
       literal("'auto'"), one_of(kNamesOf<TpOverlap>), may_change, not_differ,
       "`halves`: forward passes cut a microbatch into two sub-microbatches, and the all-reduces of one overlap with "
       "the GEMMs of the other; `none`: no overlap; `auto`: `halves` on GPUs in 16 bits. With `tp = 1` `halves` has no "
       "effect, and a run prints this"},
      {"parallel.transfers",
       at(
           [](auto& c) -> auto& { return c.parallel.transfers; }, [](auto& c) -> auto& { return c.transfers; }),
       literal("'copy_engines'"),
       one_of(kNamesOf<comm::Transport>, "what carries large messages between GPUs"),
       {warns, kDiffers, has_several_gpus},
       not_differ,
       "the transport of large messages and collectives between GPUs. `copy_engines`: copy engines and our own kernels "
       "between ranks of one host, elsewhere as `kernels`. `kernels`: NCCL's kernels"},
      {"parallel.share_gpu_memory",
       at(
           [](auto& c) -> auto& { return c.parallel.share_gpu_memory; },
           [](auto& c) -> auto& { return c.share_gpu_memory; }),
       literal("true"),
       any(),
       {warns, kDiffers, has_several_gpus},
       not_differ,
       "under `mpirun` and `srun`, with `copy_engines`: processes of one host share the memory of their GPUs, and so "
       "have the transports of rank threads ([several-nodes.md](several-nodes.md#gpus-of-one-host)). Otherwise NCCL "
       "carries what goes between processes"},
      {"parallel.sequence_parallel",
       at(
           [](auto& c) -> auto& { return c.parallel.sequence_parallel; },
           [](auto& c) -> auto& { return c.sequence_parallel; }),
       literal("false"), any(), may_change, not_differ,
       "tensor-parallel ranks share the token rows outside attention and MLP, so activations take less memory. With "
       "`tp = 1` it has no effect, and a run prints this"},
      {"parallel.timeout_s",
       at(
           [](auto& c) -> auto& { return c.parallel.timeout_s; }, [](auto& c) -> auto& { return c.timeout_s; }),
       literal("600.0"), above(0), may_change, not_differ,
       "seconds that a rank waits for another before it ends the run with exit code 72"},
      {"train.steps", at([](auto& c) -> auto& { return c.train.steps; }), words("must be given"), at_least(0),
       may_change, not_differ, "number of optimizer steps, including those before a resume; not with `task.name`",
       [](const RunPlan& plan) { return !has_task(plan) || plan.data.train.empty(); }},  // an import has 0 steps
      {"train.init", at([](auto& c) -> auto& { return c.train.init; }), words("none"), any(), may_change, differ,
       "fine-tuning: the run begins with the values of this checkpoint (a step folder, a folder of them, or OUT of a "
       "run), trained here or imported. Step, optimizer and data start from the beginning. The recipe's `[model]`, "
       "`[moe]` and "
       "vocabulary must make the checkpoint's model, otherwise the run is refused (exit 66, "
       "[what may differ](#what-may-differ-with-traininit))"},
      {"train.global_batch", at([](auto& c) -> auto& { return c.train.global_batch; }),
       words("micro_batch x dp, or the end of `batch_ramp`"), between(1, kMaxSamples), warns, not_differ,
       "samples per step; a multiple of micro_batch x dp. A step adds the gradients of global_batch / (micro_batch x "
       "dp) microbatches"},
      {"train.batch_ramp",
       at(
           [](auto& c) -> auto& { return c.train.batch_ramp; }, [](auto& c) -> auto& { return c.train.ramp; }),
       words("none"), batch_ramp(), warns, not_differ,
       "`32:256:20000`: the batch grows from 32 to 256 samples over the first 20,000 samples ([growing "
       "batches](#growing-batches)); `train.global_batch` is the last one",
       [](const RunPlan& plan) { return plan.train.ramp.has_value(); }},
      {"train.micro_batch", at([](auto& c) -> auto& { return c.train.micro_batch; }), literal("1"), at_least(1),
       may_change, not_differ, "samples per pass on one rank"},
      {"train.seed", at([](auto& c) -> auto& { return c.train.seed; }), literal("1234"), between(0, kAnyInteger),
       must_match, not_differ, "of initial weights, order of samples, dropout"},
      {"train.precision", at([](auto& c) -> auto& { return c.train.precision; }),
       words("`fp32` on CPUs, `bf16` on GPUs"), one_of(kPrecisions), must_match, not_differ,
       "of activations and GEMMs. [numerics.md](numerics.md) has the number formats of each. `fp64` is for CPUs. `fp8` "
       "is bf16 with GEMMs of layers in FP8, on Hopper GPUs, and slowly on CPUs"},
      {"train.loss_scale",
       at(
           [](auto& c) -> auto& { return c.train.loss_scale; },
           [](auto& c) -> auto& { return c.train.scaling.initial; }),
       words("65536 with `fp16`"),
       scale(),
       {warns, "the scale that the checkpoint has goes on"},
       not_differ,
       "initial scale; only with `fp16`",
       [](const RunPlan& plan) { return plan.train.scaling.is_on(); }},
      {"train.loss_scale_min",
       at(
           [](auto& c) -> auto& { return c.train.loss_scale_min; },
           [](auto& c) -> auto& { return c.train.scaling.smallest; }),
       words("1 with `fp16`"), scale(), warns, not_differ, "lower bound of the scale",
       [](const RunPlan& plan) { return plan.train.scaling.is_on(); }},
      {"train.loss_scale_interval",
       at(
           [](auto& c) -> auto& { return c.train.loss_scale_interval; },
           [](auto& c) -> auto& { return c.train.scaling.growth_interval; }),
       words("1000 with `fp16`"), at_least(1, "steps without an overflow before the scale doubles"), warns, not_differ,
       "steps in a row without an overflow before the scale doubles",
       [](const RunPlan& plan) { return plan.train.scaling.is_on(); }},
      {"train.on_nonfinite", at([](auto& c) -> auto& { return c.train.on_nonfinite; }), literal("'stop'"),
       one_of(kNamesOf<ops::NonFinite>), may_change, not_differ,
       "what a step does whose loss or gradients are not finite: `stop` ends the run, `skip` changes no parameter and "
       "goes on with the next batch ([bad numbers](reliability.md#bad-numbers)). `fp16` always skips"},
      {"train.skip_limit", at([](auto& c) -> auto& { return c.train.skip_limit; }), literal("20"), at_least(1),
       may_change, not_differ,
       "so many skipped steps in a row end the run; in `fp16` of those that overflow only the ones at `loss_scale_min` "
       "count"},
      {"train.spike_loss",
       at(
           [](auto& c) -> auto& { return c.train.spike_loss; }, [](auto& c) -> auto& { return c.train.spikes.loss; }),
       literal("0.0"), spike_factor(), may_change, not_differ,
       "a loss above so many times its mean over the last steps is a spike ([bad "
       "numbers](reliability.md#bad-numbers)); 0: off"},
      {"train.spike_norm",
       at(
           [](auto& c) -> auto& { return c.train.spike_norm; }, [](auto& c) -> auto& { return c.train.spikes.norm; }),
       literal("0.0"), spike_factor(), may_change, not_differ, "the same for the gradient norm"},
      {"train.spike_window",
       at(
           [](auto& c) -> auto& { return c.train.spike_window; },
           [](auto& c) -> auto& { return c.train.spikes.window; }),
       literal("100"), at_least(1), may_change, not_differ,
       "steps that the means are over; so many pass before the first spike can be found"},
      {"train.on_spike",
       at(
           [](auto& c) -> auto& { return c.train.on_spike; }, [](auto& c) -> auto& { return c.train.spikes.on_spike; }),
       literal("'report'"), one_of(kNamesOf<ops::OnSpike>), may_change, not_differ,
       "what a step with a spike does: `report` warns, `skip` also changes no parameter"},
      {"train.deterministic", at([](auto& c) -> auto& { return c.train.deterministic; }), literal("true"), any(),
       may_change, not_differ,
       "the same bits in every run on the same GPU, 0 to 3 % slower. CPUs always give the same bits"},
      {"train.gemm", at([](auto& c) -> auto& { return c.train.gemm; }), words("`timed`, on GPUs"),
       one_of(kNamesOf<ops::GemmChoice>), warns, not_differ,
       "how the algorithm of a GEMM is chosen: `timed` or `heuristic` ([numerics.md](numerics.md))",
       [](const RunPlan& plan) { return plan.device == Device::cuda; }},
      {"train.eval_interval", at([](auto& c) -> auto& { return c.train.eval_interval; }), literal("0"), at_least(0),
       may_change, not_differ,
       "steps between evaluations on the held-out set; 0: only after the last step. Without `data.valid`, "
       "`data.split` and `eval.tasks` there is no evaluation"},
      {"train.eval_batches", at([](auto& c) -> auto& { return c.train.eval_batches; }), literal("8"),
       at_least(0, "0: the whole set"), may_change, not_differ, "global batches per evaluation; 0: the whole set"},
      {"train.early_stop", at([](auto& c) -> auto& { return c.train.early_stop; }), literal("0"), at_least(0, "0: off"),
       may_change, not_differ,
       "the run ends, with exit code 0 and a checkpoint, after so many evaluations in a row without a better held-out "
       "loss ([early stop](#early-stop)); 0: off"},
      {"train.early_stop_delta", at([](auto& c) -> auto& { return c.train.early_stop_delta; }), literal("0.0"),
       at_least(0), may_change, not_differ, "of `early_stop`: nats by which a loss must be lower to be better"},
      {"eval.tasks", at([](auto& c) -> auto& { return c.eval.tasks; }), words("none"), any(), may_change, differ,
       "files of multiple-choice questions that every evaluation scores, as `\"FORM:FILE\"`; FORM is `choice`, "
       "`hellaswag`, `arc`, `piqa` or `mmlu`. `\"FORM:FILE --shots N --shots-data FILE\"` has examples before each "
       "question ([while a run trains](evaluation.md#while-a-run-trains))"},
      {"optimizer.type", at([](auto& c) -> auto& { return c.optimizer.type; }), words("`adamw`"),
       one_of(kNamesOf<optim::OptimizerType>), must_match, not_differ,
       "`muon`: Muon updates the matrices of layers, and AdamW all else ([Muon](#muon))", has_muon},
      {"optimizer.muon_momentum", at([](auto& c) -> auto& { return c.optimizer.muon_momentum; }),
       words("`0.95` with `muon`"), probability(), warns, not_differ, "of Muon's only moment, in Nesterov's form",
       has_muon},
      {"optimizer.muon_scale", at([](auto& c) -> auto& { return c.optimizer.muon_scale; }),
       words("`match_rms_adamw` with `muon`"), one_of(kNamesOf<optim::MuonScale>), warns, not_differ,
       "factor of the orthogonal update of a matrix [R, C]: 0.2 sqrt(max(R, C)) (`match_rms_adamw`), or sqrt(max(1, R "
       "/ "
       "C)) (`original`)",
       has_muon},
      {"optimizer.lr", at([](auto& c) -> auto& { return c.optimizer.lr; }), literal("0.001"), above(0), warns,
       not_differ, "highest learning rate"},
      {"optimizer.min_lr", at([](auto& c) -> auto& { return c.optimizer.min_lr; }), words("lr / 10"), at_least(0),
       warns, not_differ, "learning rate at the end of the decay"},
      {"optimizer.warmup_steps", at([](auto& c) -> auto& { return c.optimizer.warmup_steps; }), literal("0"),
       at_least(0), warns, not_differ, "steps in which the rate rises from 0 to lr. A run with fewer steps warns"},
      {"optimizer.decay", at([](auto& c) -> auto& { return c.optimizer.decay; }), literal("'cosine'"),
       one_of(kNamesOf<optim::DecayCurve>), warns, not_differ,
       "curve of the learning rate after the warm-up ([learning rates](#learning-rates))"},
      {"optimizer.decay_steps",
       at([](auto& c) -> auto& { return c.optimizer.decay_steps; }),
       words("`train.steps`; of `wsd` a tenth of it"),
       at_least(1),
       {warns, kDiffers, warns_of_decay_steps},
       not_differ,
       "of `cosine` and `linear` the step at which min_lr is reached, warm-up included. The default follows "
       "`train.steps`, so a run that is made longer jumps to the rate of the longer curve. To stay at min_lr, set this "
       "to the old number of steps. Of `wsd` the length of the decay: the last steps of the run; a resume warns if it "
       "changes steps that are done"},
      {"optimizer.weight_decay", at([](auto& c) -> auto& { return c.optimizer.weight_decay; }), literal("0.01"),
       at_least(0), warns, not_differ, "of weights; biases and norms do not decay"},
      {"optimizer.beta1", at([](auto& c) -> auto& { return c.optimizer.beta1; }), literal("0.9"), probability(), warns,
       not_differ, "decay rate of the first moment"},
      {"optimizer.beta2", at([](auto& c) -> auto& { return c.optimizer.beta2; }), literal("0.999"), probability(),
       warns, not_differ, "decay rate of the second moment"},
      {"optimizer.eps", at([](auto& c) -> auto& { return c.optimizer.eps; }), literal("1e-08"), above(0), warns,
       not_differ, "added to the root of the second moment"},
      {"optimizer.moments",
       at([](auto& c) -> auto& { return c.optimizer.moments; }),
       literal("'f32'"),
       one_of(kNamesOf<optim::MomentType>),
       {warns, "its moments are converted"},
       not_differ,
       "how AdamW's moments are stored. `bf16` takes half of their memory, and rounds them stochastically "
       "([numerics.md](numerics.md#moments-in-bf16)); not with `muon`. In `fp64` `f32` means f64"},
      {"optimizer.clip", at([](auto& c) -> auto& { return c.optimizer.clip; }), literal("1.0"),
       at_least(0, "0: no clipping"), warns, not_differ, "largest norm of all gradients; 0: no clipping"},
      {"optimizer.distributed",
       at(
           [](auto& c) -> auto& { return c.optimizer.distributed; },
           [](auto& c) -> auto& { return c.optimizer.sharding; }),
       literal("false"), any(), may_change, not_differ,
       "each rank of dp holds a shard of moments and masters, and gathers the parameters: the same bits with less "
       "memory. With one model copy it has no effect, and a run prints this"},
      {"optimizer.shard", at([](auto& c) -> auto& { return c.optimizer.shard; }), literal("'moments'"),
       one_of(kNamesOf<ShardedState>), may_change, not_differ,
       "what `distributed` shards. `gradients`: also the sums of the gradients of layers' weights; every microbatch "
       "then sums its gradients over dp, which `megalith plan` prices, and sums have another order "
       "([numerics.md](numerics.md#gradients-and-their-norm)); not with `muon`"},
      {"data.tokenizer", at([](auto& c) -> auto& { return c.data.tokenizer; }), words("`gpt2`"),
       one_of(tokenizer::tokenizer_names()), must_match, not_differ,
       "`byte`: 256 ids, no files; `gpt2` and `bpe`: byte-level BPE; `bert-uncased`, `bert-cased`: WordPiece; "
       "`sentencepiece`; see [tokenizers](data.md#tokenizers)"},
      {"data.vocab_dir", at([](auto& c) -> auto& { return c.data.vocab_dir; }),
       words("GPT-2's and BERT's, which come with megalith"), any(), may_change, differ,
       "the folder of the tokenizer's files; none for `byte`. A checkpoint contains these files, so a step folder can "
       "be given, too"},
      {"data.train", at([](auto& c) -> auto& { return c.data.train; }), words("must be given"), any(), may_change,
       differ,
       "a path or a list of paths: text, JSON lines, Parquet, the output of `data build` (its prefix), "
       "a folder or a pattern (`\"corpus/*.jsonl\"`). `\"0.7 books\"` gives a corpus a weight; either all have one, or "
       "none. The tokens must be the same on `--resume`"},
      {"data.valid", at([](auto& c) -> auto& { return c.data.valid; }), words("none"), any(), may_change, differ,
       "held-out set, in the same form without weights"},
      {"data.test", at([](auto& c) -> auto& { return c.data.test; }), words("none"), any(), may_change, differ,
       "files of `task.name` with labels, which `finetune` scores once at its end, and by which it chooses nothing; "
       "`train` refuses it"},
      {"data.key", at([](auto& c) -> auto& { return c.data.key; }), literal("'text'"), any(), may_change, not_differ,
       "the member of JSON lines, or the column of Parquet, that holds the text of `train` and `valid`. The tokens of "
       "`train` must be the same on `--resume`"},
      {"data.max_line", at([](auto& c) -> auto& { return c.data.max_line; }), literal("16777216"), between(1, 0x1p40),
       may_change, not_differ,
       "most bytes of a line of text or JSON, of a row, and of text that the tokenizer cannot cut; a longer one is "
       "refused"},
      {"data.split", at([](auto& c) -> auto& { return c.data.split; }), words("none"), any(), must_match, not_differ,
       "instead of `valid`: `\"0.9\"`, the fraction for training, or `\"969,30,1\"`, weights of training, held-out and "
       "unused tokens; not with weights in `train`"},
      {"data.format", at([](auto& c) -> auto& { return c.data.format; }), literal("'text'"),
       one_of(kNamesOf<data::DataFormat>), may_change, not_differ,
       "`chat`: lines of conversations, of which answers are trained on ([chat.md](chat.md)). The tokens must be the "
       "same on `--resume`"},
      {"data.chat_template", at([](auto& c) -> auto& { return c.data.chat_template; }),
       words("that of the folder `vocab_dir`"), one_of(data::kChatTemplateNames), may_change, not_differ,
       "how a conversation is written as tokens: `chatml`, `llama3` or `plain`. The tokens must be the same on "
       "`--resume`"},
      {"data.chat_too_long", at([](auto& c) -> auto& { return c.data.chat_too_long; }), literal("'cut'"),
       one_of(kNamesOf<data::ChatTooLong>), may_change, not_differ,
       "a conversation of more than `model.seq_len` + 1 tokens is cut at its end, or dropped; a run prints how many"},
      {"data.chat_packing", at([](auto& c) -> auto& { return c.data.chat_packing; }), literal("true"), any(),
       may_change, not_differ,
       "a sample of `model.seq_len` tokens has as many conversations as fit, without attention between them "
       "([chat.md](chat.md)); `false`: one. A batch has samples. It must be the same on `--resume` where several fit"},
      {"data.attend_across_documents", at([](auto& c) -> auto& { return c.data.attend_across_documents; }),
       words("`true`"), any(), must_match, not_differ,
       "`false`: a token of a text attends to the tokens of its own document only, and positions begin again with each "
       "document ([data.md](data.md#documents-in-a-sample))",
       separates_texts},
      {"checkpoint.dir", at([](auto& c) -> auto& { return c.checkpoint.dir; }), words("OUT/checkpoints"), any(),
       may_change, differ, "folder for checkpoints, if they should not lie in OUT"},
      {"checkpoint.interval", at([](auto& c) -> auto& { return c.checkpoint.interval; }), literal("0"),
       at_least(0, "0: not by steps"), may_change, not_differ,
       "steps between saves, in addition to those of `every_s`; 0: none. The last step, and a run that a signal stops, "
       "is always saved"},
      {"checkpoint.every_s", at([](auto& c) -> auto& { return c.checkpoint.every_s; }), literal("600.0"),
       at_least(0, "seconds; 0: not by time"), may_change, not_differ,
       "seconds of training between saves, by rank 0's clock; 0: none. A power cut or a killed job loses at most this. "
       "The results do not depend on it"},
      {"checkpoint.keep", at([](auto& c) -> auto& { return c.checkpoint.keep; }), literal("2"),
       at_least(2, "one may turn out damaged"), may_change, not_differ, "newest checkpoints that are kept"},
      {"checkpoint.on_corrupt", at([](auto& c) -> auto& { return c.checkpoint.on_corrupt; }), literal("'previous'"),
       one_of(kNamesOf<checkpoint::OnCorrupt>), may_change, not_differ,
       "a damaged newest checkpoint is skipped with a warning (`previous`) or refused (`fail`)"},
      {"log.interval",
       at(
           [](auto& c) -> auto& { return c.log.interval; }, [](auto& c) -> auto& { return c.log_interval; }),
       literal("1"), at_least(1), may_change, not_differ,
       "steps between lines that stay on the screen, each with the speed since the one before. The first and the last "
       "step have a line, too. `metrics.jsonl` has every step"},
      {"log.tensorboard",
       at(
           [](auto& c) -> auto& { return c.log.tensorboard; }, [](auto& c) -> auto& { return c.tensorboard; }),
       literal("false"), any(), may_change, not_differ, "also writes event files to `OUT/tensorboard`"},
      {"graphs.mode", at([](auto& c) -> auto& { return c.graphs.mode; }), literal("'none'"),
       one_of(kNamesOf<capture::GraphMode>), may_change, not_differ,
       "`layers`: a graph for each layer's passes; `iteration`: one for all passes of a step"},
      {"graphs.scopes",
       derived(
           [](auto& c) -> auto& { return c.graphs.scopes; }, [](auto& c) -> auto& { return c.graphs.scopes; }),
       literal("[]"), any(), may_change, not_differ,
       "with `layers`: only these parts of a layer (`attn`, `mlp`, `moe`, `moe_router`, `moe_preprocess`)"},
      {"graphs.per", at([](auto& c) -> auto& { return c.graphs.per; }), literal("'microbatch'"),
       one_of(kNamesOf<capture::GraphsPer>), may_change, not_differ,
       "with `layers`: graphs for every microbatch, or for every `slot` of microbatches in flight (fewer graphs)"},
      {"graphs.warmup_steps", at([](auto& c) -> auto& { return c.graphs.warmup_steps; }), literal("3"),
       at_least(0, "0, with graphs.mode = layers, captures the first step"), may_change, not_differ,
       "eager steps before the capture"},
      {"graphs.optimizer", at([](auto& c) -> auto& { return c.graphs.optimizer; }), literal("false"), any(), may_change,
       not_differ, "with `iteration`: the optimizer is in the graph, too"},
      {"graphs.check",
       at(
           [](auto& c) -> auto& { return c.graphs.check; }, [](auto& c) -> auto& { return c.graphs.check_steps; }),
       literal("0"), at_least(0, "0: nothing is checked"), may_change, not_differ,
       "this many steps after the captured one also run eagerly, and are compared bit for bit"},
      {"recompute.mode", at([](auto& c) -> auto& { return c.recompute.mode; }), literal("'none'"),
       one_of(kNamesOf<nn::RecomputeMode>), may_change, not_differ,
       "`full`: only the input of a layer is kept; `selective`: `modules` are recomputed"},
      {"recompute.method", at([](auto& c) -> auto& { return c.recompute.method; }), literal("'uniform'"),
       one_of(kNamesOf<nn::RecomputeMethod>), may_change, not_differ,
       "of `full`. `uniform`: the input of every group of `layers` layers is kept; `block`: only the first `layers` "
       "layers of each chunk are recomputed, each from its own input"},
      {"recompute.layers", at([](auto& c) -> auto& { return c.recompute.layers; }), literal("1"), at_least(1),
       may_change, not_differ, "of `full`; at most the layers of the largest chunk"},
      {"recompute.modules",
       derived(
           [](auto& c) -> auto& { return c.recompute.modules; }, [](auto& c) -> auto& { return c.recompute; }),
       literal("[]"),
       any(),
       {warns, "gradients of gelu differ by rounding errors from an uninterrupted run", rounds_gelu_otherwise},
       not_differ,
       "of `selective`. `gelu`: the activation of MLPs and shared experts, from the result of the first GEMM (of other "
       "experts only this result is kept in any case); `norms`: results of norms, from the residual stream; "
       "`attention`: its output, from q, k and v; `mlp`: first GEMM and activation of MLPs and experts, from their "
       "input; `dispatch`: the rows of experts, which their ranks get once more from the ranks of the tokens"},
      {"fp8.skip_layers",
       at([](auto& c) -> auto& { return c.fp8.skip_layers; }),
       literal("'none'"),
       one_of(kNamesOf<nn::Fp8Skip>),
       {warns, kDiffers},
       not_differ,
       "with `train.precision = 'fp8'`: the layers whose GEMMs stay in bf16"},
      {"fp8.weight_grad",
       at([](auto& c) -> auto& { return c.fp8.weight_grad; }),
       literal("false"),
       any(),
       {warns, kDiffers},
       not_differ,
       "weight gradients have FP8 operands, too"},
      {"fp8.head",
       at([](auto& c) -> auto& { return c.fp8.head; }),
       literal("false"),
       any(),
       {warns, kDiffers},
       not_differ,
       "so have the GEMMs of the head; each rank then holds a multiple of 128 rows of `model.padded_vocab_size`"},
      {"fp8.experts",
       at([](auto& c) -> auto& { return c.fp8.experts; }),
       literal("'wide'"),
       one_of(kNamesOf<nn::Fp8Experts>),
       {warns, kDiffers},
       not_differ,
       "the GEMMs of experts: `wide`: in FP8 from `model.hidden_size = 2048` on, where that is faster "
       "([measured](benchmarks.md#fp8)), in bf16 below; `all`: in FP8; `none`: in bf16. Shared experts are as dense "
       "layers"},
      {"device.type",
       at(
           [](auto& c) -> auto& { return c.device.type; }, [](auto& c) -> auto& { return c.device; }),
       literal("'cpu'"), one_of(kNamesOf<Device>), may_change, not_differ, "`cuda`: every rank has its own GPU"},
      {"device.ranks_per_node",
       at(
           [](auto& c) -> auto& { return c.device.ranks_per_node; }, [](auto& c) -> auto& { return c.ranks_per_node; }),
       words("none"), at_least(0), may_change, not_differ,
       "ranks per node. `train` and `plan` warn if tensor-parallel or expert-parallel groups span nodes",
       [](const RunPlan& plan) { return plan.ranks_per_node > 0; }},
      {"device.threads",
       at(
           [](auto& c) -> auto& { return c.device.threads; }, [](auto& c) -> auto& { return c.threads; }),
       words("none"), between(0, 1024), may_change, differ,
       "compute threads of a rank on the host's cores. By default the ranks of a process share the cores that it may "
       "use: those of its affinity mask, or as many as control groups allow (`megalith doctor` prints both)",
       [](const RunPlan& plan) { return plan.threads > 0; }}};
}

}  // namespace

std::span<const Key> keys() {
  static const std::vector<Key> all = make_keys();
  return all;
}

}  // namespace megalith::config
