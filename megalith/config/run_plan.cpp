#include "megalith/config/run_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/norm.h"
#include "megalith/pipeline/schedule.h"

namespace megalith::config {
namespace {

constexpr std::string_view kTpOverlaps[] = {"auto", "halves", "none"};  // as TpOverlap counts

Index tokenizer_vocab(const std::string& tokenizer) { return tokenizer == "byte" ? 256 : 50257; }

/// An integer that must fit an int and be at least `least`.
int small(const std::optional<Index>& value, int fallback, std::string_view key, int least, Problems& out) {
  const Index v = value.value_or(fallback);
  const bool fits = v >= least && v <= std::numeric_limits<int>::max();
  out.require(fits, key, v, str("must be at least ", least, " and at most ", std::numeric_limits<int>::max()));
  return fits ? static_cast<int>(v) : std::max(fallback, least);
}

void resolve_parallel(const RunConfig& asked, int ranks, RunPlan& plan, Problems& out) {
  const RunConfig::Parallel& p = asked.parallel;
  grid::ParallelSizes sizes;
  sizes.tp = small(p.tp, 1, "parallel.tp", 1, out);
  sizes.pp = small(p.pp, 1, "parallel.pp", 1, out);
  out.require(p.cp.value_or(1) == 1, "parallel.cp", p.cp.value_or(1),
              "must be 1: context parallelism is not built yet");
  out.require(p.ep.value_or(1) == 1, "parallel.ep", p.ep.value_or(1), "must be 1: expert parallelism is not built yet");
  out.require(!p.etp || *p.etp == sizes.tp, "parallel.etp", p.etp.value_or(1),
              str("must equal parallel.tp = ", sizes.tp, ": expert parallelism is not built yet"));
  plan.chunks = small(p.chunks, 1, "parallel.chunks", 1, out);
  plan.group_size = small(p.group_size, 0, "parallel.group_size", 0, out);
  plan.stage_layers = p.stage_layers.value_or(std::vector<Index>{});
  const Index needed = std::min<Index>(Index{sizes.tp} * sizes.pp, std::numeric_limits<int>::max());
  const int asked_ranks = small(p.ranks, static_cast<int>(needed), "parallel.ranks", 1, out);
  sizes.world_size = ranks > 0 ? ranks : asked_ranks;
  if (p.order) sizes.order = *p.order;
  if (plan.chunks > 1 && sizes.pp > 1) sizes.vpp = plan.chunks;
  try {
    plan.grid = grid::resolve(sizes);
  } catch (const ConfigError& error) {
    out.add("parallel", str("{ranks ", sizes.world_size, ", tp ", sizes.tp, ", pp ", sizes.pp, "}"), error.what());
  }
}

/// Keys beside model.preset that make another model of it.
std::vector<std::string> preset_warnings(const RunConfig::Model& m, const model::Preset& preset) {
  std::vector<std::string> all;
  const auto compare = [&](const char* key, const std::optional<Index>& value, Index preset_value) {
    if (value && *value != preset_value)
      all.push_back(str(key, " = ", *value, ": model.preset = ", preset.name, " has ", preset_value,
                        "; the run trains another model"));
  };
  compare("model.num_layers", m.num_layers, preset.num_layers);
  compare("model.hidden_size", m.hidden_size, preset.hidden_size);
  compare("model.num_heads", m.num_heads, preset.num_heads);
  compare("model.ffn_hidden_size", m.ffn_hidden_size, 4 * m.hidden_size.value_or(preset.hidden_size));
  compare("model.seq_len", m.seq_len, preset.seq_len);
  compare("model.vocab_size", m.vocab_size, preset.vocab_size);
  return all;
}

/// False when the shape is not known: what follows from it is then not worth a message.
bool resolve_model(const RunConfig& asked, RunPlan& plan, Problems& out) {
  const RunConfig::Model& m = asked.model;
  model::ModelConfig& r = plan.model;
  r.family = m.family.value_or("gpt2");
  r.vocab_size = tokenizer_vocab(plan.data.tokenizer);
  r.seq_len = 1024;
  if (m.preset) {
    try {
      const model::Preset& preset = model::preset(*m.preset);
      r.num_layers = preset.num_layers;
      r.hidden_size = preset.hidden_size;
      r.num_heads = preset.num_heads;
      r.seq_len = preset.seq_len;
      r.vocab_size = preset.vocab_size;
      r.padded_vocab_size = preset.padded_vocab_size;
      plan.preset_warnings = preset_warnings(m, preset);
    } catch (const ConfigError& error) {
      out.add_line(error.what());
      return false;
    }
  } else {
    for (const auto& [key, value] : {std::pair{"model.num_layers", m.num_layers},
                                     {"model.hidden_size", m.hidden_size},
                                     {"model.num_heads", m.num_heads}}) {
      if (!value) out.add_line(str(key, " is not set: give it, or model.preset"));
    }
    if (!m.num_layers || !m.hidden_size || !m.num_heads) return false;
  }
  const bool own_vocab = m.vocab_size && *m.vocab_size != r.vocab_size;
  r.num_layers = m.num_layers.value_or(r.num_layers);
  r.hidden_size = m.hidden_size.value_or(r.hidden_size);
  r.num_heads = m.num_heads.value_or(r.num_heads);
  r.seq_len = m.seq_len.value_or(r.seq_len);
  r.vocab_size = m.vocab_size.value_or(r.vocab_size);
  r.ffn_hidden_size = m.ffn_hidden_size.value_or(4 * r.hidden_size);
  if (r.padded_vocab_size == 0 || own_vocab)
    r.padded_vocab_size = model::padded_vocab_size(r.vocab_size, std::max(1, plan.grid.tp));
  r.padded_vocab_size = m.padded_vocab_size.value_or(r.padded_vocab_size);
  r.dropout = m.dropout.value_or(0.1);
  r.attention_dropout = m.attention_dropout.value_or(r.dropout);
  r.embedding_dropout = m.embedding_dropout.value_or(r.dropout);
  return true;
}

void resolve_scaling(const RunConfig::Train& t, TrainConfig& r, Problems& out) {
  if (r.precision != "fp16") {
    const auto refuse = [&](const char* key, const auto& value) {
      if (value) out.add(key, *value, "loss scaling is for train.precision = fp16; remove it");
    };
    refuse("train.loss_scale", t.loss_scale);
    refuse("train.loss_scale_min", t.loss_scale_min);
    refuse("train.loss_scale_interval", t.loss_scale_interval);
    return;
  }
  r.scaling.initial = t.loss_scale.value_or(65536);
  r.scaling.smallest = t.loss_scale_min.value_or(1);
  r.scaling.growth_interval = t.loss_scale_interval.value_or(1000);
  const auto is_good = [](double value) { return value > 0 && value <= 0x1p60; };
  out.require(is_good(r.scaling.initial), "train.loss_scale", r.scaling.initial, "must be above 0, at most 2^60");
  out.require(is_good(r.scaling.smallest) && r.scaling.smallest <= r.scaling.initial, "train.loss_scale_min",
              r.scaling.smallest, str("must be above 0 and at most train.loss_scale = ", r.scaling.initial));
  out.require(r.scaling.growth_interval >= 1, "train.loss_scale_interval", r.scaling.growth_interval,
              "must be at least 1: clean steps before the scale doubles");
}

void resolve_tp_overlap(const RunConfig& asked, RunPlan& plan, Problems& out) {
  const std::string text = asked.parallel.tp_overlap.value_or(std::string(kTpOverlaps[0]));
  const auto* const found = std::ranges::find(kTpOverlaps, text);
  if (found == std::end(kTpOverlaps)) {
    out.add("parallel.tp_overlap", text, "must be auto, halves or none");
    return;
  }
  plan.tp_overlap = static_cast<TpOverlap>(found - std::begin(kTpOverlaps));
  if (plan.tp_overlap == TpOverlap::halves)
    out.require(plan.train.micro_batch % 2 == 0, "train.micro_batch", plan.train.micro_batch,
                "must be even with parallel.tp_overlap = halves");
}

void resolve_transfers(const RunConfig& asked, RunPlan& plan, Problems& out) {
  if (!asked.parallel.transfers) return;
  for (const comm::Carrier carrier : {comm::Carrier::copy_engines, comm::Carrier::kernels}) {
    if (*asked.parallel.transfers != comm::name_of(carrier)) continue;
    plan.transfers = carrier;
    return;
  }
  out.add("parallel.transfers", *asked.parallel.transfers,
          "must be copy_engines (where ranks are threads of one process, else kernels) or kernels: what carries large "
          "messages between GPUs");
}

/// Every rank holds as many rows of what is taken in turn. The fix named is the next larger micro_batch that fits.
void check_row_shares(const RunPlan& plan, Problems& out) {
  const Index halves = plan.tp_overlap == TpOverlap::halves ? 2 : 1, shares = plan.row_shares() * halves;
  const Index samples = plan.train.micro_batch, seq_len = plan.model.seq_len;
  if (shares == halves || samples < 1 || seq_len < 1 || samples * seq_len % shares == 0) return;
  out.add("train.micro_batch * model.seq_len", samples * seq_len,
          str("must be divisible by ", halves > 1 ? "2 * " : "", "parallel.tp = ", shares,
              " with parallel.sequence_parallel = true", halves > 1 ? " and parallel.tp_overlap = halves" : "",
              ": every rank holds as many token rows; with this seq_len train.micro_batch = ",
              round_up(samples, std::lcm(halves, shares / std::gcd(shares, seq_len))), " would do"));
}

void resolve_train(const RunConfig& asked, RunPlan& plan, Problems& out) {
  const RunConfig::Train& t = asked.train;
  TrainConfig& r = plan.train;
  if (!t.steps) out.add_line("train.steps is not set: how many optimizer steps to run");
  r.steps = t.steps.value_or(1);
  r.init = t.init.value_or("");
  r.micro_batch = t.micro_batch.value_or(1);
  r.global_batch = t.global_batch.value_or(r.micro_batch * plan.grid.dp);
  r.seed = static_cast<std::uint64_t>(t.seed.value_or(1234));
  r.precision = t.precision.value_or(std::string(default_precision(plan.device)));
  r.deterministic = t.deterministic.value_or(true);
  const std::string gemm = t.gemm.value_or("timed");
  r.gemm = gemm == "heuristic" ? ops::GemmChoice::heuristic : ops::GemmChoice::timed;
  out.require(gemm == "timed" || gemm == "heuristic", "train.gemm", gemm, "must be timed or heuristic");
  r.eval_interval = t.eval_interval.value_or(0);
  r.eval_batches = t.eval_batches.value_or(8);
  out.require(r.steps >= 0, "train.steps", r.steps, "must not be negative");
  out.require(t.seed.value_or(0) >= 0, "train.seed", t.seed.value_or(0), "must not be negative");
  if (const std::optional<Policy> policy = policy_of(r.precision); !policy) {
    out.add("train.precision", r.precision, "must be fp64, fp32, bf16 or fp16");
  } else if (plan.device == Device::cuda) {
    out.require(policy->compute != DType::f64, "train.precision", r.precision,
                "is for device.type = cpu, to check with: a GPU computes in bf16, fp16 or fp32");
  }
  resolve_scaling(t, r, out);
  out.require(r.eval_interval >= 0, "train.eval_interval", r.eval_interval, "must not be negative");
  out.require(r.eval_batches >= 0, "train.eval_batches", r.eval_batches, "must not be negative (0: the whole set)");
  if (!out.positive({{"train.micro_batch", r.micro_batch}, {"train.global_batch", r.global_batch}})) return;
  constexpr Index kMostSamples = Index{1} << 30;
  out.require(r.global_batch <= kMostSamples, "train.global_batch", r.global_batch,
              str("must be at most ", kMostSamples));
  out.require(r.micro_batch <= r.global_batch, "train.micro_batch", r.micro_batch,
              str("must be at most train.global_batch = ", r.global_batch));
  if (r.global_batch > kMostSamples || r.micro_batch > r.global_batch) return;
  const Index samples = r.micro_batch * plan.grid.dp;
  if (r.global_batch % samples != 0) {
    out.add("train.global_batch", r.global_batch,
            str("must be a multiple of train.micro_batch * dp = ", r.micro_batch, " * ", plan.grid.dp, " = ", samples,
                "; the nearest are ", std::max(samples, r.global_batch / samples * samples), " and ",
                round_up(r.global_batch, samples)));
    return;
  }
  const pipeline::ScheduleShape shape{plan.grid.pp, plan.chunks, static_cast<int>(r.global_batch / samples),
                                      plan.group_size};
  pipeline::check_shape(shape, out);
}

void resolve_optimizer(const RunConfig& asked, RunPlan& plan, Problems& out) {
  const RunConfig::Optimizer& o = asked.optimizer;
  optim::OptimConfig& r = plan.optimizer;
  r.lr = o.lr.value_or(r.lr);
  r.min_lr = o.min_lr.value_or(std::max(0.0, r.lr / 10));
  r.warmup_steps = o.warmup_steps.value_or(0);
  r.decay_steps = o.decay_steps.value_or(std::max(plan.train.steps, r.warmup_steps + 1));
  r.weight_decay = o.weight_decay.value_or(r.weight_decay);
  r.beta1 = o.beta1.value_or(r.beta1);
  r.beta2 = o.beta2.value_or(r.beta2);
  r.eps = o.eps.value_or(r.eps);
  r.clip = o.clip.value_or(r.clip);
  r.sharding = o.distributed.value_or(false) ? Sharding::optimizer : Sharding::none;
  const std::string decay = o.decay.value_or("cosine");
  if (decay == "constant")
    r.decay = optim::DecayCurve::constant;
  else if (decay == "linear")
    r.decay = optim::DecayCurve::linear;
  else
    out.require(decay == "cosine", "optimizer.decay", decay, "must be constant, linear or cosine");
  check(r, out);
}

void resolve_graphs(const RunConfig::Graphs& g, capture::GraphsConfig& r, Problems& out) {
  const std::string mode = g.mode.value_or(std::string(name(r.mode)));
  const std::string per = g.per.value_or(std::string(name(r.per)));
  const std::optional<capture::GraphMode> known_mode = capture::graph_mode_of(mode);
  const std::optional<capture::GraphsPer> known_per = capture::graphs_per_of(per);
  out.require(known_mode.has_value(), "graphs.mode", mode, "must be none, layers or iteration");
  out.require(known_per.has_value(), "graphs.per", per, "must be microbatch or slot");
  r.mode = known_mode.value_or(r.mode);
  r.per = known_per.value_or(r.per);
  r.warmup_steps = g.warmup_steps.value_or(r.warmup_steps);
  r.optimizer = g.optimizer.value_or(r.optimizer);
  r.check_steps = g.check.value_or(r.check_steps);
  if (g.scopes) r.scopes = capture::read_scopes(*g.scopes, known_mode.value_or(capture::GraphMode::layers), out);
  check(r, out);
}

/// Layers of the largest chunk.
Index most_layers(const RunPlan& plan) {
  if (!plan.stage_layers.empty()) return *std::ranges::max_element(plan.stage_layers);
  return ceil_div(plan.model.num_layers, Index{plan.grid.pp} * plan.chunks);
}

void resolve_recompute(const RunConfig::Recompute& asked, RunPlan& plan, Problems& out) {
  nn::RecomputeConfig& r = plan.recompute;
  const std::string mode = asked.mode.value_or(std::string(name(r.mode)));
  const std::string method = asked.method.value_or(std::string(name(r.method)));
  const auto known_mode = nn::recompute_mode_of(mode);
  const auto known_method = nn::recompute_method_of(method);
  out.require(known_mode.has_value(), "recompute.mode", mode, "must be none, selective or full");
  out.require(known_method.has_value(), "recompute.method", method, "must be uniform or block");
  r.mode = known_mode.value_or(r.mode);
  r.method = known_method.value_or(r.method);
  r.layers = asked.layers.value_or(r.layers);
  if (asked.modules) nn::read_modules(*asked.modules, r, out);
  if (known_mode && known_method) check(r, most_layers(plan), out);
}

void resolve_rest(const RunConfig& asked, RunPlan& plan, Problems& out) {
  checkpoint::CheckpointConfig& c = plan.checkpoint;
  c.dir = asked.checkpoint.dir.value_or("");
  c.interval = asked.checkpoint.interval.value_or(0);
  c.every_s = asked.checkpoint.every_s.value_or(c.every_s);
  c.keep = asked.checkpoint.keep.value_or(2);
  const std::string on_corrupt = asked.checkpoint.on_corrupt.value_or("previous");
  c.on_corrupt = on_corrupt == "fail" ? checkpoint::OnCorrupt::fail : checkpoint::OnCorrupt::previous;
  out.require(on_corrupt == "fail" || on_corrupt == "previous", "checkpoint.on_corrupt", on_corrupt,
              "must be fail or previous");
  out.require(c.interval >= 0, "checkpoint.interval", c.interval, "must not be negative (0: not by steps)");
  out.require(c.every_s >= 0 && std::isfinite(c.every_s), "checkpoint.every_s", c.every_s,
              "must be a number of seconds, not negative (0: not by time)");
  out.require(c.keep >= 2, "checkpoint.keep", c.keep, "must be at least 2: one may turn out damaged");
  plan.log_interval = asked.log.interval.value_or(1);
  plan.tensorboard = asked.log.tensorboard.value_or(false);
  out.require(plan.log_interval >= 1, "log.interval", plan.log_interval, "must be at least 1");
  plan.ranks_per_node = small(asked.device.ranks_per_node, 0, "device.ranks_per_node", 0, out);
  plan.threads = small(asked.device.threads, 0, "device.threads", 0, out);
  constexpr int kMostThreads = 1024;
  out.require(plan.threads <= kMostThreads, "device.threads", plan.threads, str("must be at most ", kMostThreads));
}

void check_stage_layers(const RunPlan& plan, Problems& out) {
  const Index stages = Index{plan.grid.pp} * plan.chunks;
  if (plan.stage_layers.empty()) {
    out.require(plan.model.num_layers % stages == 0, "model.num_layers", plan.model.num_layers,
                str("must be divisible by parallel.pp * chunks = ", stages, ", or give parallel.stage_layers"));
    return;
  }
  Index sum = 0;
  bool negative = false;
  for (const Index layers : plan.stage_layers) {
    sum += layers;
    negative = negative || layers < 0;
  }
  const auto count = static_cast<Index>(plan.stage_layers.size());
  out.require(count == stages, "parallel.stage_layers", str(count, " numbers"),
              str("must be pp * chunks = ", stages, " numbers"));
  out.require(!negative, "parallel.stage_layers", "a negative number", "every stage holds 0 or more layers");
  out.require(sum == plan.model.num_layers, "parallel.stage_layers", str("sum ", sum),
              str("must sum to model.num_layers = ", plan.model.num_layers));
}

/// Shapes that our kernels for GPUs do not take. The values named fit all other rules, with the other sizes as they
/// are.
void check_gpu_kernels(const RunPlan& plan, Problems& out) {
  constexpr Index kMostHidden = ops::kMostNormColumnsOnGpu, kMostHeadDim = ops::kMostHeadDimOnGpu;
  const Index hidden = plan.model.hidden_size, heads = plan.model.num_heads;
  if (plan.device != Device::cuda || hidden < 1 || heads < 1) return;
  if (hidden > kMostHidden) {
    const Index fits = heads * std::min(kMostHidden / heads, kMostHeadDim);
    out.add("model.hidden_size", hidden,
            str("must be at most ", kMostHidden, " with device.type = cuda: a norm's kernel holds a row in one block",
                fits > 0 ? str("; with model.num_heads = ", heads, " the nearest that fits is ", fits) : ""));
    return;  // the heads follow from it
  }
  if (hidden <= heads * kMostHeadDim) return;
  const Index tp = std::max(1, plan.grid.tp);
  Index fits = round_up(ceil_div(hidden, kMostHeadDim), tp);
  while (fits <= hidden && hidden % fits != 0) fits += tp;
  out.add("model.num_heads", heads,
          str("must be at least ", ceil_div(hidden, kMostHeadDim), " with device.type = cuda and model.hidden_size = ",
              hidden, ": a head of attention's kernels is at most ", kMostHeadDim, " wide",
              fits <= hidden ? str("; the nearest that fits is ", fits) : ""));
}

/// Every integer but the seed fits an int, so that no product of two of them overflows while the rules are checked.
void check_integers(RunConfig asked, Problems& out) {
  const auto check_one = [&](std::string_view key, Index value) {
    constexpr Index kMost = std::numeric_limits<int>::max();
    out.require(value >= -kMost && value <= kMost, key, value, str("must be at most ", kMost));
  };
  for (const Field& field : fields(asked)) {
    if (field.key == "train.seed") continue;
    if (const auto* one = std::get_if<std::optional<Index>*>(&field.value); one != nullptr && **one)
      check_one(field.key, ***one);
    if (const auto* list = std::get_if<std::optional<std::vector<Index>>*>(&field.value); list != nullptr && **list) {
      for (const Index value : ***list) check_one(field.key, value);
    }
  }
}

/// Sizes that no machine has are refused before any memory is planned: what is planned then cannot overflow.
void check_sizes(const RunPlan& plan, Problems& out) {
  constexpr double kMostElements = 0x1p46;
  const model::ModelConfig& m = plan.model;
  const double layer = 4.0 * static_cast<double>(m.hidden_size) * static_cast<double>(m.hidden_size) +
                       2.0 * static_cast<double>(m.hidden_size) * static_cast<double>(m.ffn_hidden_size);
  const double weights = layer * static_cast<double>(m.num_layers) +
                         static_cast<double>(m.padded_vocab_size + m.seq_len) * static_cast<double>(m.hidden_size);
  out.require(weights <= kMostElements, "model", str("about ", weights, " parameters"), "must be at most 2^46");
  const double widest = static_cast<double>(std::max({m.padded_vocab_size, m.ffn_hidden_size, 3 * m.hidden_size}));
  const double activations =
      static_cast<double>(plan.train.micro_batch) * static_cast<double>(m.seq_len) * std::max(widest, 1.0);
  out.require(activations <= kMostElements, "train.micro_batch * model.seq_len", plan.train.micro_batch * m.seq_len,
              str("their activations would have ", activations, " elements: must be at most 2^46"));
}

}  // namespace

std::optional<Policy> policy_of(std::string_view precision) {
  if (precision == "fp64") return Policy{DType::f64, DType::f64};
  if (precision == "fp32") return Policy{DType::f32, DType::f32};
  if (precision == "bf16") return Policy{DType::f32, DType::bf16};
  if (precision == "fp16") return Policy{DType::f32, DType::f16};
  return std::nullopt;
}

std::string_view default_precision(Device device) { return device == Device::cuda ? "bf16" : "fp32"; }

RunPlan resolve(const RunConfig& asked, int ranks) {
  RunPlan plan;
  Problems out;
  check_integers(asked, out);
  out.throw_if_any(asked.source);
  const std::string device = asked.device.type.value_or("cpu");
  out.require(device == "cpu" || device == "cuda", "device.type", device, "must be cpu or cuda");
  plan.device = device == "cuda" ? Device::cuda : Device::cpu;
  plan.data.tokenizer = asked.data.tokenizer.value_or(plan.data.tokenizer);
  plan.data.vocab_dir = asked.data.vocab_dir.value_or("");
  plan.data.train = asked.data.train.value_or(std::vector<std::string>{});
  plan.data.valid = asked.data.valid.value_or(std::vector<std::string>{});
  plan.data.split = asked.data.split.value_or("");
  check(plan.data, out);
  resolve_parallel(asked, ranks, plan, out);
  const bool shape_is_known = resolve_model(asked, plan, out);
  if (shape_is_known) {
    model::check(plan.model, plan.grid.tp, out);
    check_stage_layers(plan, out);
    check_gpu_kernels(plan, out);
  }
  resolve_train(asked, plan, out);
  resolve_tp_overlap(asked, plan, out);
  resolve_transfers(asked, plan, out);
  plan.sequence_parallel = asked.parallel.sequence_parallel.value_or(false);
  if (shape_is_known) check_row_shares(plan, out);
  plan.timeout_s = asked.parallel.timeout_s.value_or(plan.timeout_s);
  out.require(plan.timeout_s > 0 && std::isfinite(plan.timeout_s), "parallel.timeout_s", plan.timeout_s,
              "must be seconds above 0: what a rank waits for others");
  resolve_optimizer(asked, plan, out);
  resolve_graphs(asked.graphs, plan.graphs, out);
  out.require(plan.graphs.check_steps == 0 || plan.train.deterministic, "graphs.check", plan.graphs.check_steps,
              "must be 0 with train.deterministic = false: two runs of one step must give the same bits");
  if (shape_is_known) resolve_recompute(asked.recompute, plan, out);
  resolve_rest(asked, plan, out);
  if (shape_is_known) {
    check_sizes(plan, out);
    check_scopes(plan.graphs, plan.run_facts(), out);
  }
  out.throw_if_any(asked.source);
  return plan;
}

RunConfig RunPlan::as_config() const {
  RunConfig c;
  c.model = {{},
             model.family,
             model.num_layers,
             model.hidden_size,
             model.num_heads,
             model.ffn_hidden_size,
             model.seq_len,
             model.vocab_size,
             model.padded_vocab_size,
             model.dropout,
             model.attention_dropout,
             model.embedding_dropout};
  c.parallel = {grid.world_size,
                grid.tp,
                grid.cp,
                grid.pp,
                grid.ep,
                grid.etp,
                chunks,
                group_size,
                {},
                grid.order,
                std::string(kTpOverlaps[static_cast<std::size_t>(tp_overlap)]),
                std::string(comm::name_of(transfers)),
                sequence_parallel,
                timeout_s};
  if (grid.ep == 1) c.parallel.etp.reset();  // follows from tp
  if (!stage_layers.empty()) c.parallel.stage_layers = stage_layers;
  c.train.steps = train.steps;
  if (!train.init.empty()) c.train.init = train.init;
  c.train.global_batch = train.global_batch;
  c.train.micro_batch = train.micro_batch;
  c.train.seed = static_cast<Index>(train.seed);
  c.train.eval_interval = train.eval_interval;
  c.train.eval_batches = train.eval_batches;
  c.train.precision = train.precision;
  if (train.scaling.is_on()) {
    c.train.loss_scale = train.scaling.initial;
    c.train.loss_scale_min = train.scaling.smallest;
    c.train.loss_scale_interval = train.scaling.growth_interval;
  }
  c.train.deterministic = train.deterministic;
  if (device == Device::cuda) c.train.gemm = train.gemm == ops::GemmChoice::timed ? "timed" : "heuristic";
  constexpr const char* kDecay[] = {"constant", "linear", "cosine"};
  c.optimizer = {optimizer.lr,
                 optimizer.min_lr,
                 optimizer.weight_decay,
                 optimizer.beta1,
                 optimizer.beta2,
                 optimizer.eps,
                 optimizer.clip,
                 optimizer.warmup_steps,
                 optimizer.decay_steps,
                 kDecay[static_cast<int>(optimizer.decay)],
                 optimizer.sharding == Sharding::optimizer};
  c.data.tokenizer = data.tokenizer;
  if (!data.vocab_dir.empty()) c.data.vocab_dir = data.vocab_dir;
  if (!data.train.empty()) c.data.train = data.train;
  if (!data.valid.empty()) c.data.valid = data.valid;
  if (!data.split.empty()) c.data.split = data.split;
  if (!checkpoint.dir.empty()) c.checkpoint.dir = checkpoint.dir;
  c.checkpoint.on_corrupt = checkpoint.on_corrupt == checkpoint::OnCorrupt::fail ? "fail" : "previous";
  c.checkpoint.interval = checkpoint.interval;
  c.checkpoint.every_s = checkpoint.every_s;
  c.checkpoint.keep = checkpoint.keep;
  c.log.interval = log_interval;
  c.log.tensorboard = tensorboard;
  c.graphs = {std::string(name(graphs.mode)),
              std::string(name(graphs.per)),
              graphs.scopes.names(),
              graphs.warmup_steps,
              graphs.check_steps,
              graphs.optimizer};
  c.recompute = {std::string(name(recompute.mode)), std::string(name(recompute.method)), recompute.layers,
                 recompute.modules()};
  c.device.type = name_of(device);
  if (ranks_per_node > 0) c.device.ranks_per_node = ranks_per_node;
  if (threads > 0) c.device.threads = threads;
  c.source = "resolved recipe";
  return c;
}

std::string grid_text(const RunPlan& plan) {
  std::string text = str("tp ", plan.grid.tp, " pp ", plan.grid.pp, " dp ", plan.grid.dp);
  if (plan.chunks > 1) text += str(" chunks ", plan.chunks);
  if (plan.row_shares() > 1) text += " shared rows";
  return text;
}

}  // namespace megalith::config
