#include <algorithm>
#include <limits>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/config/idle_keys.h"
#include "megalith/config/key_members.h"
#include "megalith/config/keys.h"
#include "megalith/config/moe_rules.h"
#include "megalith/config/plan_rules.h"
#include "megalith/config/preset_rules.h"
#include "megalith/config/run_plan.h"
#include "megalith/config/task_rules.h"
#include "megalith/config/vocabulary_rules.h"
#include "megalith/grid/advice.h"

// From what was asked to what runs: literal defaults come from the table of keys, all others are derived here.

namespace megalith::config {
namespace {

/// The least number of ranks that both grids divide.
Index min_ranks(const RunConfig::Parallel& p) {
  const Index cp = p.cp.value_or(1);
  return std::min<Index>(std::lcm(*p.tp * cp * *p.pp, *p.etp * *p.ep * *p.pp), std::numeric_limits<int>::max());
}

bool is_about_order(std::string_view code) {
  return code.starts_with("E_ORDER_") || code.starts_with("E_PP_GROUPS_DIFFER");
}

/// Replaces a grid that is not legal, so that the rules of other keys are checked without false problems. If the order
/// is wrong, the same sizes in the default order replace it. Else one rank does, and no rule that depends on the grid
/// is checked.
void replace_grid(grid::ParallelSizes sizes, std::string_view code, BrokenKeys& broken, RunPlan& plan) {
  if (is_about_order(code)) {
    sizes.order = grid::kDefaultOrder;
    plan.grid = grid::resolve(sizes);  // the order is the last rule of resolve()
  } else {
    broken.names.push_back("parallel.ranks");
  }
}

void derive_grid(RunConfig& c, int ranks, BrokenKeys& broken, RunPlan& plan, Problems& out) {
  RunConfig::Parallel& p = c.parallel;
  const bool has_experts = c.moe.num_experts.has_value();
  if (!has_experts) p.ep = 1, p.etp = p.tp;  // derive_moe() has reported others
  set_default(p.etp, *p.tp);
  set_default(p.ranks, min_ranks(p));
  grid::ParallelSizes sizes{.world_size = ranks > 0 ? ranks : static_cast<int>(*p.ranks),
                            .tp = static_cast<int>(*p.tp),
                            .pp = static_cast<int>(*p.pp),
                            .ep = static_cast<int>(*p.ep),
                            .etp = static_cast<int>(*p.etp),
                            .order = *p.order};
  if (*p.chunks > 1 && *p.pp > 1) sizes.vpp = static_cast<int>(*p.chunks);
  try {
    plan.grid = grid::resolve(sizes);
    if (sizes.world_size > grid::kMaxRanks)  // of --ranks, or a product of legal sizes
      throw ConfigError(str("must be at most ", grid::kMaxRanks, " ranks"));
  } catch (const ConfigError& error) {
    if (broken.any("parallel.")) return;
    const std::string_view code = error.what();
    const std::string rule = str(grid::without_code(code), grid::advice(sizes, code));
    const std::string of_experts = has_experts ? str(", ep ", sizes.ep, ", etp ", *sizes.etp) : "";
    if (is_about_order(code))
      out.add("parallel.order", sizes.order, rule);
    else
      out.add("parallel", str("{ranks ", sizes.world_size, ", tp ", sizes.tp, ", pp ", sizes.pp, of_experts, "}"),
              rule);
    replace_grid(sizes, code, broken, plan);
  }
}

/// What the family sets together, before the literal defaults, which are GPT-2's.
void derive_family(RunConfig& c, Problems& out) {
  RunConfig::Model& m = c.model;
  if (m.family != "bert") refuse_section("bert.", "is for model.family = bert; remove it", c, out);
  if (m.family == "bert") {
    const model::ModelConfig bert = model::bert_defaults();
    set_default(m.token_types, bert.token_types);
    set_default(m.seq_len, bert.bert.seq_len);
    return;
  }
  if (m.family != "llama") return;
  const model::ModelConfig llama = model::llama_defaults();
  const auto set_name = [](std::optional<std::string>& key, const auto& names, auto value) {
    set_default(key, std::string(names.at(static_cast<std::size_t>(value))));
  };
  set_name(m.norm, nn::kNormKindNames, llama.norm);
  set_name(m.position, nn::kPositionKindNames, llama.position);
  set_name(m.activation, nn::kActivationNames, llama.activation);
  set_name(m.bias, nn::kBiasesNames, llama.biases);
  set_default(m.tied, llama.tying == model::Tying::tied);
  set_default(m.dropout, llama.dropout);
}

ModelShape derive_model(RunConfig& c, const BrokenKeys& broken, const RunPlan& plan, Problems& out) {
  RunConfig::Model& m = c.model;
  for (const auto& [key, value] : {std::pair{"model.num_layers", m.num_layers},
                                   {"model.hidden_size", m.hidden_size},
                                   {"model.num_heads", m.num_heads}}) {
    if (!value) out.add_line(str(key, " is not set: give it, or ", c.task.name ? "task.init" : "model.preset"));
  }
  if (!m.num_layers || !m.hidden_size || !m.num_heads) return ModelShape::unknown;
  set_default(m.seq_len, 1024);
  set_default(m.ffn_hidden_size, model::default_ffn_hidden_size(*m.family, *m.hidden_size));
  set_default(m.padded_vocab_size, model::padded_vocab_size(*m.vocab_size, std::max(1, plan.grid.tp)));
  if (c.moe.num_experts) {
    set_default(c.moe.ffn_hidden_size, *m.ffn_hidden_size);
    if (c.moe.capacity != "none") set_default(c.moe.capacity_run, *m.seq_len);
  }
  set_default(m.attention_dropout, *m.dropout);
  set_default(m.embedding_dropout, *m.dropout);
  return broken.any("model.") ? ModelShape::unknown : ModelShape::known;
}

void derive_loss_scale(RunConfig::Train& t, Problems& out) {
  if (*t.precision == "fp16") {
    set_default(t.loss_scale, 65536);
    set_default(t.loss_scale_min, 1);
    set_default(t.loss_scale_interval, 1000);
    return;
  }
  const auto refuse = [&](const char* key, auto& value) {
    if (value) out.add(key, *value, "loss scaling is for train.precision = fp16; remove it");
    value.reset();
  };
  refuse("train.loss_scale", t.loss_scale);
  refuse("train.loss_scale_min", t.loss_scale_min);
  refuse("train.loss_scale_interval", t.loss_scale_interval);
}

void derive_train(RunConfig& c, const BrokenKeys& broken, const RunPlan& plan, Problems& out) {
  RunConfig::Train& t = c.train;
  if (!t.steps && !broken.any("train.steps")) out.add_line("train.steps is not set: how many optimizer steps to run");
  set_default(t.steps, 1);
  const std::optional<BatchRamp> ramp = BatchRamp::of(t.batch_ramp.value_or(""));
  set_default(t.global_batch, ramp ? ramp->end : *t.micro_batch * plan.grid.dp);
  set_default(t.gemm, "timed");
  derive_loss_scale(t, out);
  RunConfig::Optimizer& o = c.optimizer;
  set_default(o.min_lr, *o.lr / 10);
  optim::DecayCurve decay = plan.optimizer.decay;
  convert_to_plan(decay, *o.decay);
  set_default(o.decay_steps, optim::default_decay_steps(decay, *o.warmup_steps, *t.steps));
}

/// Lines that name a key of the wrong type are left out: what stands for its value is not the user's.
void throw_if_any(const RunConfig& asked, const Problems& found, const VocabularySize& vocabulary) {
  Problems out;
  for (const std::string& line : asked.problems) out.add_line(line);
  BrokenKeys{asked.mistyped}.add_others(found, out);
  try {
    if (vocabulary.unread) std::rethrow_exception(vocabulary.unread);
  } catch (Error& error) {
    if (out.empty()) {
      error.put_in_front(asked.source + ": ");
      throw;
    }
    out.add_line(error.what());
  }
  out.throw_if_any(asked.source);
}

}  // namespace

std::optional<Policy> policy_of(std::string_view precision) {
  if (precision == "fp64") return Policy{DType::f64, DType::f64};
  if (precision == "fp32") return Policy{DType::f32, DType::f32};
  if (precision == "bf16") return Policy{DType::f32, DType::bf16};
  if (precision == "fp16") return Policy{DType::f32, DType::f16};
  if (precision == "fp8") return Policy{DType::f32, DType::bf16, GemmFormat::e4m3};
  return std::nullopt;
}

std::string_view default_precision(Device device) { return device == Device::cuda ? "bf16" : "fp32"; }

RunPlan resolve(const RunConfig& asked, int ranks, const CountIds& count_ids) {
  RunPlan plan;
  Problems out;
  RunConfig c = asked;
  derive_task(c, plan, out);
  const bool has_preset = derive_preset(c, plan, out);
  derive_family(c, out);
  derive_moe(c, out);
  fill_defaults(c);
  BrokenKeys broken{asked.mistyped};
  for (const Key& key : keys()) check_bounds(key, c, broken, out);
  set_default(c.data.tokenizer, plan.data.tokenizer);
  set_default(c.train.precision, default_precision(*c.device.type == "cuda" ? Device::cuda : Device::cpu));
  derive_grid(c, ranks, broken, plan, out);
  const VocabularySize vocabulary = derive_vocab_size(c, broken, count_ids, plan, out);
  const bool is_known = has_preset && derive_model(c, broken, plan, out) == ModelShape::known && vocabulary.is_known;
  const ModelShape shape = is_known ? ModelShape::known : ModelShape::unknown;
  derive_train(c, broken, plan, out);
  derive_rank_capacity(c, plan.grid);
  if (shape == ModelShape::known) {
    for (const Key& key : keys()) check_bounds(key, c, broken, out);  // of derived values
  }
  for (const Key& key : keys()) {
    if (key.members.put != nullptr) key.members.put(c, plan);
  }
  choose_graph_dispatcher(plan);
  plan.optimizer.run_steps = plan.train.steps;
  if (plan.model.is_bert()) {
    plan.model.lengths = ops::SampleLengths::given;
    plan.model.bert.seq_len = plan.model.seq_len;
    set_task_head(plan);
  }
  if (!plan.model.is_bert() && plan.data.separates_documents()) plan.model.documents = ops::DocumentMask::given;
  const std::size_t problems_before = out.lines().size();
  plan.graphs.scopes = capture::read_scopes(*c.graphs.scopes, plan.graphs.mode, out);
  if (out.lines().size() > problems_before) broken.names.push_back("graphs.scopes");
  if (!nn::read_modules(*c.recompute.modules, plan.recompute, out)) broken.names.push_back("recompute.modules");
  check_rules(plan, shape, broken, out);
  throw_if_any(asked, out, vocabulary);
  for (std::string& warning : idle_keys(asked, plan)) plan.recipe_warnings.push_back(std::move(warning));
  return plan;
}

RunConfig RunPlan::as_config() const {
  RunConfig config;
  config.source = "resolved recipe";
  for (const Key& key : keys()) {
    const bool has_it = key.is_in_recipe == nullptr || key.is_in_recipe(*this);
    if (has_it && key.members.get != nullptr) key.members.get(*this, config);
  }
  return config;
}

std::string grid_text(const RunPlan& plan) {
  std::string text = str("tp ", plan.grid.tp, " pp ", plan.grid.pp, " dp ", plan.grid.dp);
  if (plan.grid.ep > 1 || plan.grid.etp != plan.grid.tp) text += str(" ep ", plan.grid.ep, " etp ", plan.grid.etp);
  if (plan.chunks > 1) text += str(" chunks ", plan.chunks);
  if (plan.row_shares() > 1) text += " sequence parallel";
  return text;
}

}  // namespace megalith::config
