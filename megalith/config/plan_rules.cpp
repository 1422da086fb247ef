#include "megalith/config/plan_rules.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/config/moe_rules.h"
#include "megalith/config/task_rules.h"
#include "megalith/eval/choice_task.h"
#include "megalith/model/model_spec.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/e4m3.h"
#include "megalith/ops/norm.h"
#include "megalith/pipeline/schedule.h"

namespace megalith::config {
namespace {

/// Layers of the largest chunk.
Index max_layers(const RunPlan& plan) {
  if (!plan.stage_layers.empty()) return *std::ranges::max_element(plan.stage_layers);
  return ceil_div(plan.model.num_layers, Index{plan.grid.pp} * plan.chunks);
}

void check_stage_layers(const RunPlan& plan, Problems& out) {
  const Index stages = Index{plan.grid.pp} * plan.chunks;
  if (plan.stage_layers.empty()) {
    out.require(plan.model.num_layers % stages == 0, "model.num_layers", plan.model.num_layers,
                str("must be divisible by parallel.pp * chunks = ", stages, ", or give parallel.stage_layers"));
    return;
  }
  const auto count = static_cast<Index>(plan.stage_layers.size());
  const Index sum = std::accumulate(plan.stage_layers.begin(), plan.stage_layers.end(), Index{0});
  out.require(count == stages, "parallel.stage_layers", str(count, " numbers"),
              str("must be pp * chunks = ", stages, " numbers"));
  out.require(sum == plan.model.num_layers, "parallel.stage_layers", str("sum ", sum),
              str("must sum to model.num_layers = ", plan.model.num_layers));
}

/// Shapes that our kernels for GPUs do not take. The values named fit all other rules, with the other sizes as they
/// are.
void check_gpu_kernels(const RunPlan& plan, Problems& out) {
  constexpr Index kMaxHidden = ops::kMaxNormColumnsOnGpu, kMaxHeadDim = ops::kMaxHeadDimOnGpu;
  const Index hidden = plan.model.hidden_size, heads = plan.model.num_heads, width = plan.model.head_width();
  if (plan.device != Device::cuda || hidden < 1 || heads < 1) return;
  if (hidden > kMaxHidden) {
    const Index fits = heads * std::min(kMaxHidden / heads, kMaxHeadDim);
    out.add("model.hidden_size", hidden,
            str("must be at most ", kMaxHidden, " with device.type = cuda: a norm's kernel holds a row in one block",
                fits > 0 ? str("; with model.num_heads = ", heads, " the nearest that fits is ", fits) : ""));
    return;  // the heads follow from it
  }
  if (width <= kMaxHeadDim) return;
  if (hidden != heads * width) {
    out.add("model.head_dim", width,
            str("must be at most ", kMaxHeadDim, " with device.type = cuda: the widest head of attention's kernels"));
    return;
  }
  const Index tp = std::max(1, plan.grid.tp);
  Index fits = round_up(ceil_div(hidden, kMaxHeadDim), tp);
  while (fits <= hidden && hidden % fits != 0) fits += tp;
  out.add("model.num_heads", heads,
          str("must be at least ", ceil_div(hidden, kMaxHeadDim), " with device.type = cuda and model.hidden_size = ",
              hidden, ": a head of attention's kernels is at most ", kMaxHeadDim, " wide",
              fits <= hidden ? str("; the nearest that fits is ", fits) : ""));
}

/// Sizes that no machine has are refused before any memory is planned: what is planned then cannot overflow.
void check_sizes(const RunPlan& plan, Problems& out) {
  constexpr double kMaxElements = 0x1p46;
  const model::ModelConfig& m = plan.model;
  model::ModelSpec spec = model::model_spec(m);
  spec.seq_len = 0;  // GEMMs remain, which cost 2 FLOPs per weight
  const double weights =
      model::forward_flops_per_token(spec) / 2 + static_cast<double>(m.seq_len) * static_cast<double>(m.hidden_size);
  out.require(weights <= kMaxElements, "model", str("about ", weights, " parameters"), "must be at most 2^46");
  const double widest = static_cast<double>(
      std::max({m.padded_vocab_size, 2 * m.ffn_hidden_size, (m.num_heads + 2 * m.kv_heads()) * m.head_width()}));
  const double activations =
      static_cast<double>(plan.train.micro_batch) * static_cast<double>(m.seq_len) * std::max(widest, 1.0);
  out.require(activations <= kMaxElements, "train.micro_batch * model.seq_len", plan.train.micro_batch * m.seq_len,
              str("their activations would have ", activations, " elements: must be at most 2^46"));
}

/// Rows of FP8 operands on GPUs come in multiples of this (ops/scaled_matmul.h).
constexpr Index kGemmRows = 4;

/// "the nearest are 128 and 256": multiples of `step` beside `size`.
std::string nearest_multiples(Index size, Index step) {
  const Index below = size / step * step;
  return below > 0 ? str("the nearest are ", below, " and ", below + step) : str("the least is ", step);
}

/// The widths of attention's operands that hold no whole blocks of 128 on each of tp ranks, in words; empty: none.
std::string cut_widths(const model::ModelConfig& m, Index tp) {
  const Index heads = m.num_heads * m.head_width(), kv = m.kv_heads() * m.head_width(), step = ops::kScaleBlock * tp;
  std::string cut;
  const auto add = [&](std::string_view name, Index width, Index multiple) {
    if (width % multiple != 0) cut += str(cut.empty() ? "" : ", ", name, " ", width, " (a multiple of ", multiple, ")");
  };
  if (m.head_dim == 0) add("hidden_size", m.hidden_size, ops::kScaleBlock);
  add("num_heads * head width =", heads, step);
  add("(num_heads + 2 * num_kv_heads) * head width =", heads + 2 * kv, step);
  return cut;
}

/// Names the nearest values of keys, each alone, with which no width is cut.
std::string fp8_attention_fixes(const model::ModelConfig& m, Index tp) {
  std::string fixes;
  const auto add = [&](std::string_view key, Index value) {
    fixes += str(fixes.empty() ? "" : " or ", key, " = ", value);
  };
  const auto try_size = [&](std::string_view key, Index model::ModelConfig::*member, Index multiple) {
    const auto fits = [&](Index value) {
      model::ModelConfig changed = m;
      changed.*member = value;
      return cut_widths(changed, tp).empty();
    };
    const Index now = m.*member, most = now + 2 * ops::kScaleBlock * tp * m.num_heads;
    const auto search = [&](Index value, Index step) {
      for (; value > 0 && value <= most; value += step)
        if (fits(value)) return add(key, value);
    };
    search(now / multiple * multiple, -multiple);
    search((now / multiple + 1) * multiple, multiple);
  };
  if (m.head_dim == 0)
    try_size("model.hidden_size", &model::ModelConfig::hidden_size, m.num_heads);
  else
    try_size("model.head_dim", &model::ModelConfig::head_dim, 1);
  for (Index kv = 1; kv <= m.num_heads; ++kv) {
    model::ModelConfig changed = m;
    changed.num_kv_heads = kv;
    if (m.num_heads % kv != 0 || kv % tp != 0 || !cut_widths(changed, tp).empty()) continue;
    add("model.num_kv_heads", kv);
    break;
  }
  for (Index fewer = tp - 1; fewer >= 1; --fewer) {
    if (m.num_heads % fewer != 0 || m.kv_heads() % fewer != 0 || !cut_widths(m, fewer).empty()) continue;
    add("parallel.tp", fewer);
    break;
  }
  return fixes.empty() ? "change hidden_size and heads together" : fixes;
}

void check_fp8_attention(const model::ModelConfig& m, Index tp, Problems& out) {
  if (m.num_heads % tp != 0 || (m.head_dim == 0 && m.hidden_size % m.num_heads != 0)) return;  // other rules name it
  const std::string cut = cut_widths(m, tp);
  if (cut.empty()) return;
  out.add(m.head_dim == 0 ? "model.hidden_size" : "model.head_dim", m.head_dim == 0 ? m.hidden_size : m.head_dim,
          str("train.precision = fp8 has blocks of 128, which no rank may cut",
              tp > 1 ? str(" (parallel.tp = ", tp, ")") : "", ": ", cut, "; use ", fp8_attention_fixes(m, tp)));
}

/// FP8 operands: blocks of 128 must not be cut by tp, and every other part of a model computes in bf16.
void check_fp8(const RunPlan& plan, Problems& out) {
  if (plan.train.policy().gemms != GemmFormat::e4m3) return;
  const model::ModelConfig& m = plan.model;
  if (m.num_heads < 1) return;
  if (m.is_bert() && plan.fp8.head)
    out.add("fp8.head", "true", "is for models that predict the next token; remove it with model.family = bert");
  const Index tp = std::max(1, plan.grid.tp);
  check_fp8_attention(m, tp, out);
  bool has_fp8 = plan.fp8.head;
  for (Index layer = 0; layer < m.num_layers; ++layer)
    has_fp8 |= nn::gemm_formats(GemmFormat::e4m3, plan.fp8, layer, m.num_layers).rows == GemmFormat::e4m3;
  if (!has_fp8)
    out.add("fp8.skip_layers", nn::kFp8SkipNames[static_cast<std::size_t>(plan.fp8.skip_layers)],
            str("leaves no GEMM in FP8 with model.num_layers = ", m.num_layers, "; use train.precision = bf16"));
  const auto require = [&](const char* key, Index size, Index ranks, const char* group = "parallel.tp") {
    const Index step = ops::kScaleBlock * ranks;
    if (size % step == 0) return;
    out.add(key, size,
            str("must be a multiple of ", ops::kScaleBlock, ranks > 1 ? str(" * ", group, " = ", step) : "",
                " with train.precision = fp8, whose blocks no rank may cut; ", nearest_multiples(size, step)));
  };
  if (m.head_dim != 0) require("model.hidden_size", m.hidden_size, 1);
  if (m.num_moe_layers() < m.num_layers) require("model.ffn_hidden_size", m.ffn_hidden_size, tp);
  if (m.moe.has_experts()) {
    require("moe.shared_ffn_hidden_size", m.moe.shared_ffn_hidden_size, tp);
    if (plan.has_fp8_experts()) {
      require("moe.ffn_hidden_size", m.moe.ffn_hidden_size, std::max(1, plan.grid.etp), "parallel.etp");
      if (m.moe.gemm == nn::ExpertGemm::loop)
        out.add(
            "moe.gemm", "loop",
            "must be auto or grouped with experts in fp8, which have one kernel for all; or use fp8.experts = none");
    }
  }
  if (plan.fp8.head) require("model.padded_vocab_size", m.padded_vocab_size, tp);
  const Index samples = plan.train.micro_batch, tokens = samples * m.seq_len, parts = plan.sub_batches();
  const auto nearest = [&](Index rows) { return nearest_multiples(samples, rows / std::gcd(rows, m.seq_len)); };
  if (plan.fp8.weight_grad && tokens % ops::kScaleBlock != 0) {
    out.add("train.micro_batch", samples,
            str("micro_batch * model.seq_len = ", tokens, " must be a multiple of ", ops::kScaleBlock,
                " with fp8.weight_grad = true, whose blocks no microbatch may cut; ", nearest(ops::kScaleBlock)));
  }
  if (plan.device == Device::cuda && tokens % (kGemmRows * parts) != 0)
    out.add("train.micro_batch", samples,
            str("micro_batch * model.seq_len = ", tokens, " must be a multiple of ", kGemmRows * parts,
                " with train.precision = fp8 on a GPU", parts > 1 ? " and parallel.tp_overlap = halves" : "", "; ",
                nearest(kGemmRows * parts)));
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

/// Whether the pipeline can run a step of so many samples, a multiple of micro_batch * dp.
bool can_run(const RunPlan& plan, Index batch) {
  Problems problems;
  const Index microbatches = batch / (plan.train.micro_batch * plan.grid.dp);
  pipeline::check_shape({plan.grid.pp, plan.chunks, static_cast<int>(microbatches), plan.group_size}, problems);
  return problems.empty();
}

/// The first size of a ramp from `start` that the pipeline cannot run; 0: there is none. Whether it can depends on the
/// microbatches beyond whole groups, which repeat.
Index first_illegal_size(const RunPlan& plan, Index start) {
  const Index group = plan.group_size == 0 ? plan.grid.pp : plan.group_size;
  for (Index i = 1; i <= std::min(plan.train.ramp->end / start, group); ++i)
    if (!can_run(plan, i * start)) return i * start;
  return 0;
}

/// The legal start of a ramp to the same end that is nearest to the one given; 0: there is none.
Index nearest_start(const RunPlan& plan) {
  const BatchRamp& ramp = *plan.train.ramp;
  const Index samples = plan.train.micro_batch * plan.grid.dp;
  Index nearest = 0;
  const auto consider = [&](Index start) {
    if (start == ramp.end || start % samples != 0 || first_illegal_size(plan, start) != 0) return;
    const auto distance = [&](Index of) { return std::pair(std::abs(of - ramp.start), of); };
    if (nearest == 0 || distance(start) < distance(nearest)) nearest = start;
  };
  for (Index divisor = 1; divisor * divisor <= ramp.end; ++divisor) {
    if (ramp.end % divisor != 0) continue;
    consider(divisor);
    consider(ramp.end / divisor);
  }
  return nearest;
}

/// Each size of a batch that grows must have whole microbatches, as many as the chunks of a pipeline can run.
void check_ramp(const RunPlan& plan, Problems& out) {
  if (!plan.train.ramp) return;
  const BatchRamp& ramp = *plan.train.ramp;
  const Index samples = plan.train.micro_batch * plan.grid.dp;
  const auto require = [&](bool fits, const std::string& rule) {
    out.require(fits, "train.batch_ramp", ramp.text(), rule);
  };
  require(!plan.task.is_set(),
          "does not go with task.name: an epoch has whole batches of one size, and intervals are counted in steps");
  require(plan.model.moe.replay.empty(), "does not go with moe.replay, whose file has steps of one size");
  const bool ends_right = ramp.end == plan.train.global_batch;
  require(ends_right, str("must end at train.global_batch = ", plan.train.global_batch, "; leave that out"));
  const bool can_end = ramp.end % samples == 0 && can_run(plan, ramp.end);
  const auto nearest = [&]() -> std::string {
    if (!ends_right || !can_end) return "";  // of another END, which is reported
    const Index start = nearest_start(plan);
    if (start > 0) return str("; the nearest START is ", start);
    return str("; there is none with END = ", ramp.end, plan.chunks > 1 ? ": give another one, or fewer chunks" : "");
  };
  if (ramp.start % samples != 0)
    return require(false, str("must start at a multiple of train.micro_batch * dp = ", plan.train.micro_batch, " * ",
                              plan.grid.dp, " = ", samples, nearest()));
  if (!can_end) return;  // reported already
  if (const Index illegal = first_illegal_size(plan, ramp.start); illegal > 0)
    require(false, str("its steps of ", illegal, " samples have ", illegal / samples,
                       " microbatches, which parallel.chunks = ", plan.chunks, " cannot run in groups of ",
                       plan.group_size == 0 ? plan.grid.pp : plan.group_size, " over parallel.pp = ", plan.grid.pp,
                       nearest()));
}

void check_batches(const RunPlan& plan, Problems& out) {
  check_ramp(plan, out);
  const TrainConfig& t = plan.train;
  out.require(t.micro_batch <= t.global_batch, "train.micro_batch", t.micro_batch,
              str("must be at most train.global_batch = ", t.global_batch));
  if (t.micro_batch > t.global_batch) return;
  const Index samples = t.micro_batch * plan.grid.dp;
  if (t.global_batch % samples != 0) {
    out.add("train.global_batch", t.global_batch,
            str("must be a multiple of train.micro_batch * dp = ", t.micro_batch, " * ", plan.grid.dp, " = ", samples,
                t.global_batch < samples ? str("; the least is ", samples)
                                         : str("; the nearest are ", t.global_batch / samples * samples, " and ",
                                               round_up(t.global_batch, samples))));
    return;
  }
  const pipeline::ScheduleShape shape{plan.grid.pp, plan.chunks, static_cast<int>(t.global_batch / samples),
                                      plan.group_size};
  pipeline::check_shape(shape, out);
}

void check_train(const RunPlan& plan, Problems& out) {
  const TrainConfig& t = plan.train;
  out.require(!plan.data.train.empty() || t.steps == 0, "data.train", "[]", "must name at least one file to train on");
  for (const auto& [key, factor] : {std::pair{"train.spike_loss", t.spikes.loss}, {"train.spike_norm", t.spikes.norm}})
    out.require(factor == 0 || factor > 1, key, factor, "must be above 1: so many times the mean is a spike; 0: off");
  if (t.early_stop > 0) {
    out.require(plan.data.has_valid(), "train.early_stop", t.early_stop,
                "needs a held-out set: give data.valid or data.split");
    out.require(t.eval_interval > 0 || plan.task.derives_interval, "train.early_stop", t.early_stop,
                "needs evaluations during the run: set train.eval_interval");
  }
  if (plan.device == Device::cuda) {
    out.require(t.precision != "fp64", "train.precision", t.precision,
                "is for device.type = cpu, to check with: a GPU computes in bf16, fp16 or fp32");
  }
  out.require(!t.scaling.is_on() || t.scaling.smallest <= t.scaling.initial, "train.loss_scale_min", t.scaling.smallest,
              str("must be at most train.loss_scale = ", t.scaling.initial));
  out.require(plan.tp_overlap != TpOverlap::halves || t.micro_batch % 2 == 0, "train.micro_batch", t.micro_batch,
              "must be even with parallel.tp_overlap = halves");
  out.require(plan.graphs.check_steps == 0 || t.deterministic, "graphs.check", plan.graphs.check_steps,
              "must be 0 with train.deterministic = false: two runs of one step must give the same bits");
}

/// Rules of eval.tasks that need no file.
void check_choice_tasks(const RunPlan& plan, Problems& out) {
  std::vector<std::string> series;
  for (const std::string& text : plan.eval.tasks) {
    const auto task = eval::choice_task_named("eval.tasks", text, out);
    if (!task) continue;
    out.require(std::ranges::find(series, task->series()) == series.end(), "eval.tasks", text,
                str("its results would have the name of another one's, ", task->series(),
                    ": must have another file name; make a link of another name"));
    series.push_back(task->series());
  }
  if (plan.eval.tasks.empty()) return;
  const char* const why = "must be left out: questions are for models that predict the next token, not for ";
  out.require(!plan.model.is_bert(), "eval.tasks", bracketed(plan.eval.tasks), str(why, "model.family = bert"));
  out.require(!plan.task.is_set(), "eval.tasks", bracketed(plan.eval.tasks), str(why, "task.name = ", plan.task.name));
}

void check_documents(const RunPlan& plan, Problems& out) {
  out.require(plan.data.attend_across_documents || !plan.model.is_bert(), "data.attend_across_documents", "false",
              "must be true with model.family = bert: its samples are made of one or two documents, and every token "
              "attends to all of them");
}

void check_chat(const RunPlan& plan, Problems& out) {
  if (plan.data.format != data::DataFormat::chat) return;
  out.require(!plan.model.is_bert(), "data.format", "chat",
              "must be text with model.family = bert: only a model that predicts the next token can answer");
  const nn::MoeConfig& moe = plan.model.moe;
  if (!moe.has_experts()) return;
  constexpr std::string_view kRule =
      "must be 0 with data.format = chat: the sum is over all tokens, also padding, and a step divides by the tokens "
      "of answers";
  out.require(moe.aux_loss == 0, "moe.aux_loss", moe.aux_loss, kRule);
  out.require(moe.z_loss == 0, "moe.z_loss", moe.z_loss, kRule);
}

}  // namespace

void check_rules(const RunPlan& plan, ModelShape shape, const BrokenKeys& broken, Problems& out) {
  check(plan.data, out);
  if (!broken.has("eval.tasks")) check_choice_tasks(plan, out);
  if (!broken.has("data.format")) check_chat(plan, out);
  check_documents(plan, out);
  if (!broken.any("task.") && !broken.any("model.")) check_task(plan, out);
  if (shape == ModelShape::known) {
    model::check(plan.model, plan.grid.tp, out);
    if (!broken.any("parallel.")) check_stage_layers(plan, out);
    check_gpu_kernels(plan, out);
    check_row_shares(plan, out);
    check_fp8(plan, out);
    check_sizes(plan, out);
    Problems of_experts;
    check_moe(plan, of_experts);
    broken.add_others(of_experts, out);
    // What rules on experts read of broken keys is not what the user wrote.
    const bool reads_broken = broken.has("graphs.scopes") || (plan.model.moe.has_experts() && broken.any("moe."));
    if (!reads_broken) check_scopes(plan.graphs, plan.run_facts(), out);
    if (!broken.any("recompute.")) check(plan.recompute, max_layers(plan), out);
  }
  if (!broken.any("parallel.") && !broken.any("train.micro_batch") && !broken.any("train.global_batch"))
    check_batches(plan, out);
  check_train(plan, out);
  if (!broken.any("optimizer.lr")) check(plan.optimizer, out);
  if (!broken.any("graphs.mode")) check(plan.graphs, out);
}

}  // namespace megalith::config
