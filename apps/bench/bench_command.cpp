#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/data/sample_documents.h"
#include "megalith/train/attention_facts.h"
#include "megalith/train/engine.h"
#include "megalith/train/trace_file.h"

#include "apps/bench/bench.h"
#include "apps/bench/bench_echo.h"
#include "apps/bench/bench_grouped.h"
#include "apps/bench/bench_moe.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"

namespace megalith::apps {
namespace {

struct StepBench {
  std::string device = "cpu", precision, format = "text";
  Index layers = 6, hidden = 384, heads = 6, vocab = 256, seq = 256, batch = 16, micro_batch = 0, steps = 10,
        warmup = 2;
  Index tp = 1, pp = 1, dp = 1, chunks = 1, group_size = 0;
  std::vector<Index> stage_layers;
  double dropout = 0;
  bool deterministic = false, profile = false;
  std::string trace;
  std::optional<Index> alone;         ///< the only rank that runs
  double link = 0;                    ///< GB/s of its links to the others; 0: communication takes no time
  std::vector<std::string> settings;  ///< settings KEY=VALUE of the recipe
  std::vector<std::string> shape;     ///< the given options that a preset also sets
};

/// All ops with one name.
struct OpTime {
  std::string name;
  Index count = 0;
  double seconds = 0;
};

/// All ops of one phase, or the time without ops.
struct PhaseTime {
  std::string name;
  double seconds = 0;
};

/// The time of one step on rank 0, by ops and phases.
struct Profile {
  std::vector<OpTime> ops;        ///< the longest first; empty unless requested
  std::vector<PhaseTime> phases;  ///< in the order of StepPhase, then the idle time; the sum is the step
  double seconds = 0;             ///< of the step
};

struct Measured {
  double step_s = 0;            ///< median of `steps_s`
  std::vector<double> steps_s;  ///< of each measured step, in order
  BytesByOwner memory;          ///< of rank 0
  Index in_use = 0;             ///< on rank 0's GPU after all steps, by the driver; 0 on the CPU
  double loss = 0;
  Index reruns = 0;              ///< of the measured steps
  double rows_factor = 0;        ///< with which they had not been run again
  std::string attention;         ///< its kernels; empty on the CPU
  train::CapturedGraphs graphs;  ///< of rank 0
  Profile profile;               ///< of one more step; empty unless requested
  std::string unwritten_trace;   ///< why not; empty if it was written or not requested
};

/// Random tokens: the cost of a step does not depend on them. Where samples have documents, each has four.
class RandomBatches : public model::BatchSource {
 public:
  explicit RandomBatches(const model::ModelConfig& model)
      : vocab_(static_cast<std::uint32_t>(model.vocab_size)), seq_len_(static_cast<std::int32_t>(model.seq_len)) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    const std::span<std::int32_t> tokens = batch.tokens, targets = batch.targets;
    const RandomSite site{.seed = 1, .step = static_cast<std::uint32_t>(first_sample)};
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(site.word(2 * i) % vocab_);
    for (std::size_t i = 0; i < targets.size(); ++i)
      targets[i] = static_cast<std::int32_t>(site.word(2 * i + 1) % vocab_);
    if (!batch.lengths.empty()) fill_bert(count, batch);
    if (!batch.document_begin.empty()) fill_documents(count, batch);
  }

 private:
  void fill_documents(Index count, const model::Batch& batch) const {
    const auto size = static_cast<std::size_t>(seq_len_), documents = std::min<std::size_t>(4, size);
    for (std::size_t first = 0; first < static_cast<std::size_t>(count) * size; first += size) {
      const data::SampleDocuments to{batch.document_begin.subspan(first, size), batch.positions.subspan(first, size)};
      for (std::size_t i = 0; i < documents; ++i) to.put(i * size / documents, (i + 1) * size / documents);
    }
  }
  /// Whole samples, whose first tokens after [CLS] are masked.
  void fill_bert(Index count, const model::Batch& batch) const {
    std::ranges::fill(batch.lengths, seq_len_);
    std::ranges::fill(batch.types, 0);
    std::ranges::fill(batch.labels, 0);
    if (batch.rows.empty()) return;
    std::vector<std::int32_t> places(batch.targets.size());
    const std::size_t masked = places.size() / static_cast<std::size_t>(count);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(1 + i % masked);
    model::fill_rows(places, batch);
  }

  std::uint32_t vocab_;
  std::int32_t seq_len_;
};

config::RunPlan plan_of(const StepBench& b) {
  if (b.micro_batch == 0 && b.batch % b.dp != 0)
    throw ConfigError(str("--batch = ", b.batch, ": must be a multiple of --dp = ", b.dp));
  config::RunConfig c = config::parse_recipe("", "bench step", b.settings);
  const auto set = [](auto& key, const auto& value) {
    if (!key) key = value;
  };
  refuse_sizes_beside_preset(c, b.shape);
  if (!c.model.preset) {
    set(c.model.num_layers, b.layers);
    set(c.model.hidden_size, b.hidden);
    set(c.model.num_heads, b.heads);
    set(c.model.vocab_size, b.vocab);
    set(c.model.seq_len, b.seq);
  }
  set(c.model.dropout, b.dropout);
  set(c.parallel.tp, b.tp);
  set(c.parallel.pp, b.pp);
  set(c.parallel.chunks, b.chunks);
  if (b.group_size > 0) set(c.parallel.group_size, b.group_size);
  if (!b.stage_layers.empty()) set(c.parallel.stage_layers, b.stage_layers);
  set(c.parallel.ranks, b.tp * b.pp * b.dp);
  set(c.train.steps, b.steps + b.warmup);
  set(c.train.global_batch, b.batch);
  set(c.train.micro_batch, b.micro_batch > 0 ? b.micro_batch : b.batch / b.dp);
  if (!b.precision.empty()) set(c.train.precision, b.precision);
  set(c.train.deterministic, b.deterministic);
  set(c.device.type, b.device);
  set(c.data.tokenizer, "byte");
  set(c.data.train, std::vector<std::string>{"random tokens"});
  prepare_gpus_for_training(c);
  return config::resolve(c);
}

/// Sorted, the longest first.
std::vector<OpTime> times_by_op(const Tracer& tracer) {
  std::map<std::string, OpTime> by_name;
  for (const Tracer::Span& span : tracer.spans()) {
    OpTime& op = by_name[span.name];
    op.name = span.name;
    ++op.count;
    op.seconds += span.duration_s;
  }
  std::vector<OpTime> ops;
  for (const auto& [name, op] : by_name) ops.push_back(op);
  std::ranges::sort(ops, std::ranges::greater{}, &OpTime::seconds);
  return ops;
}

/// A phase without ops is left out.
std::vector<PhaseTime> times_by_phase(const Tracer& tracer) {
  std::array<double, kNumStepPhases> seconds{};
  double idle_s = tracer.seconds();
  for (const Tracer::Span& span : tracer.spans()) {
    seconds[static_cast<std::size_t>(span.phase)] += span.duration_s;
    idle_s -= span.duration_s;
  }
  std::vector<PhaseTime> phases;
  for (int phase = 0; phase < kNumStepPhases; ++phase) {
    const double taken_s = seconds[static_cast<std::size_t>(phase)];
    if (taken_s > 0) phases.push_back({std::string(name_of(static_cast<StepPhase>(phase))), taken_s});
  }
  phases.push_back({"idle", idle_s});
  return phases;
}

/// One more step alone. Its time includes its batch and the reading of its results.
void profile_step(comm::World& world, train::Engine& engine, const StepBench& bench, const RandomBatches& source,
                  const train::Progress& progress, Measured& out) {
  if (!bench.profile && bench.trace.empty()) return;
  Tracer tracer(engine.exec().device());
  train::begin_trace(world, engine.exec(), tracer);
  engine.step(source, progress, train::Stop::no);
  engine.exec().set_tracer(nullptr);
  try {
    if (!bench.trace.empty())
      train::write_trace(world, *io::posix_fs(), bench.trace, tracer, train::traced_groups(engine.mesh()));
  } catch (const IoError& error) {
    out.unwritten_trace = error.what();
  }
  if (bench.profile) out.profile = {times_by_op(tracer), times_by_phase(tracer), tracer.seconds()};
}

/// Throws ConfigError for options that need other ranks, or that need `alone`.
void check_alone(const StepBench& bench, const config::RunPlan& plan, const Launcher& launcher) {
  if (!bench.alone) {
    if (bench.link > 0) throw ConfigError("--link: needs --alone, which runs one rank without the others");
    return;
  }
  const Index ranks = plan.grid.world_size;
  if (*bench.alone >= ranks)
    throw ConfigError(str("--alone = ", *bench.alone, ": must be a rank of the grid, from 0 to ", ranks - 1));
  if (launcher.processes > 0)
    throw ConfigError("--alone: runs one rank without the others: start it without mpirun or srun");
  if (!bench.trace.empty())
    throw ConfigError("--trace: has the calls of all ranks, and --alone runs one: use --profile, or leave one out");
}

/// A shard without an id has no probability, and the loss of a rank that is alone with it is not finite.
void require_vocabulary(const comm::Mesh& mesh, const config::RunPlan& plan, Index rank) {
  const Index shard = plan.model.padded_vocab_size / mesh.tp.size();
  if (!mesh.last_stage() || mesh.tp_rank() * shard < plan.model.vocab_size) return;
  throw ConfigError(str("--alone = ", rank, ": its shard of the vocabulary, ", plan.model.vocab_size, " ids padded to ",
                        plan.model.padded_vocab_size,
                        ", has padding only: use a larger --vocab, or a rank of another "
                        "shard"));
}

/// Measured on rank 0, or on the rank that runs alone; other processes have no result.
std::optional<Measured> measure(const StepBench& bench, const config::RunPlan& plan, const Launcher& launcher) {
  std::optional<Measured> measured;
  const auto shape = [&] {
    require_processes(launcher, "tp * pp * dp", plan.grid.world_size);
    if (!bench.trace.empty()) train::require_trace(plan, bench.trace);
    if (bench.profile) train::require_single_ops(plan, "--profile");
    check_alone(bench, plan, launcher);
    JobShape job = shape_of(plan);
    if (bench.alone) job.alone = AloneRank{static_cast<int>(*bench.alone), {.bytes_per_s = 1e9 * bench.link}};
    return job;
  };
  const auto body = [&](comm::World& world) {
    train::Engine engine(world, plan);
    if (bench.alone) require_vocabulary(engine.mesh(), plan, *bench.alone);
    engine.allocate();
    engine.choose_gemms();
    const RandomBatches source(plan.model);
    train::Progress progress;
    // As in a run: step by step on the CPU; on a GPU the next step starts before the results of the last one are read.
    const int under_way = engine.steps_ahead();
    const bool from_graph = plan.graphs.mode != capture::GraphMode::none;
    const Index warmup = bench.warmup + (from_graph ? plan.graphs.warmup_steps + plan.graphs.check_steps + 1 : 0);
    std::vector<double> times;
    train::StepReport result;
    Measured mine;
    double last = 0;
    for (Index i = 0; i < warmup + bench.steps + under_way; ++i) {
      if (under_way == 0) comm::barrier(engine.exec(), world.all());
      if (under_way == 0 || i == 0) last = monotonic_s();
      engine.start_step(source, progress);
      ++progress.step;
      progress.samples += plan.train.global_batch;
      if (engine.steps_started() <= under_way) continue;
      result = engine.finish_step();
      const double now = monotonic_s();
      if (i - under_way >= warmup) {
        times.push_back(now - last);
        mine.reruns += result.rerun ? 1 : 0;
        mine.rows_factor = std::max(mine.rows_factor, result.rows_factor);
      }
      last = now;
    }
    while (engine.steps_started() > 0) engine.finish_step();
    mine.step_s = median(times);
    mine.steps_s = std::move(times);
    mine.memory = engine.taken_bytes();
    mine.in_use = device::memory_in_use(plan.device);
    mine.loss = result.loss;
    mine.attention = train::attention_kernels(plan);
    mine.graphs = engine.captured_graphs();
    profile_step(world, engine, bench, source, progress, mine);
    if (world.rank() == 0 || bench.alone) measured = std::move(mine);
  };
  run_job(launcher, {.shape = shape, .body = body});
  return measured;
}

/// Allocations of the engine, without CUDA's context and NCCL, as PyTorch counts its own.
Index own_bytes(const Measured& measured, const config::RunPlan& plan) {
  Index bytes = total(measured.memory);
  for (const std::string& owner : train::measured_owners(plan)) bytes -= measured.memory.at(owner);
  return bytes;
}

void print_profile(const Profile& profile) {
  if (!profile.phases.empty())
    std::printf("one more step, alone, on rank 0: %.3f ms, idle where no op ran\n", 1e3 * profile.seconds);
  for (const PhaseTime& phase : profile.phases) {
    std::printf("  %-24s %8.3f ms %5.1f %%\n", phase.name.c_str(), 1e3 * phase.seconds,
                100 * phase.seconds / profile.seconds);
  }
  if (!profile.ops.empty()) std::printf("its ops\n");
  for (const OpTime& op : profile.ops) {
    std::printf("  %-24s %5lld x %9.1f us = %8.3f ms\n", op.name.c_str(), static_cast<long long>(op.count),
                1e6 * op.seconds / static_cast<double>(op.count), 1e3 * op.seconds);
  }
}

void print(const StepBench& bench, const config::RunPlan& plan, const Measured& m) {
  const double tokens = static_cast<double>(plan.train.global_batch * plan.model.seq_len) / m.step_s;
  const double tflops = tokens * model::flops_per_token(plan.model) * 1e-12;
  const Index memory_bytes = total(m.memory);
  if (bench.format == "json") {
    nlohmann::ordered_json out = {{"tokens_per_second", tokens},     {"step_time_s", m.step_s},
                                  {"memory_bytes", memory_bytes},    {"model_tflops_per_s", tflops},
                                  {"grid", config::grid_text(plan)}, {"loss", m.loss},
                                  {"step_times_s", m.steps_s}};
    if (bench.alone) {
      out["alone_rank"] = *bench.alone;
      out["link_bytes_per_s"] = 1e9 * bench.link;
      out.erase("loss");  // of data that other ranks do not have
    }
    if (m.graphs.launch_s > 0) {
      out["launch_s"] = m.graphs.launch_s;
      out["submit_s"] = m.graphs.submit_s;
      out["comm_calls"] = m.graphs.comm_calls_per_step;
    }
    if (m.reruns > 0) {
      out["reruns"] = m.reruns;
      out["rows_factor"] = m.rows_factor;
    }
    if (!m.attention.empty()) out["attention"] = m.attention;
    for (const auto& [owner, bytes] : m.memory) out["memory"][owner] = bytes;
    if (m.in_use > 0) {
      out["gpu_memory_in_use"] = m.in_use;
      out["own_memory_bytes"] = own_bytes(m, plan);
    }
    for (const OpTime& op : m.profile.ops)
      out["ops"].push_back({{"name", op.name}, {"count", op.count}, {"seconds", op.seconds}});
    for (const PhaseTime& phase : m.profile.phases)
      out["phases"].push_back({{"name", phase.name}, {"seconds", phase.seconds}});
    if (!m.profile.phases.empty()) out["profiled_step_s"] = m.profile.seconds;
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  if (bench.alone) {
    std::printf("alone              rank %lld of %d: others neither compute nor send; communication takes %s\n",
                static_cast<long long>(*bench.alone), plan.grid.world_size,
                bench.link > 0 ? str("the time of ", bench.link, " GB/s").c_str() : "no time");
  }
  std::printf(
      "grid               %s\ntokens_per_second  %.0f\nstep_time_s        %.5f\n"
      "model_tflops_per_s %.3f (6 per weight of every product + 12 L h T a token)\n"
      "memory_bytes       %lld (%s, rank %lld)\n",
      config::grid_text(plan).c_str(), tokens, m.step_s, tflops, static_cast<long long>(memory_bytes),
      human_bytes(memory_bytes).c_str(), static_cast<long long>(bench.alone.value_or(0)));
  if (m.reruns > 0) {
    std::printf("reruns             %lld of %lld steps: experts need moe.rank_capacity_factor = %.3f\n",
                static_cast<long long>(m.reruns), static_cast<long long>(bench.steps), m.rows_factor);
  }
  if (!m.attention.empty()) std::printf("attention          %s\n", m.attention.c_str());
  if (m.graphs.launch_s > 0) {
    std::printf(
        "launch_s           %.6f (the host's, to launch a step's graphs)\n"
        "submit_s           %.6f (the host's, from the upload of the inputs on)\n"
        "comm_calls         %lld (between ranks, in these launches)\n",
        m.graphs.launch_s, m.graphs.submit_s, static_cast<long long>(m.graphs.comm_calls_per_step));
  }
  for (const auto& [owner, bytes] : m.memory)
    std::printf("  %-18s %14lld %12s\n", owner.c_str(), static_cast<long long>(bytes), human_bytes(bytes).c_str());
  if (m.in_use > 0) {
    const Index own = own_bytes(m, plan);
    std::printf("own_memory_bytes   %lld (%s, without %s, as PyTorch counts its own)\n", static_cast<long long>(own),
                human_bytes(own).c_str(), plan.grid.world_size == 1 ? "cuda context" : "cuda context and nccl");
    std::printf("in use by the GPU's driver after the last step: %lld (%s)\n", static_cast<long long>(m.in_use),
                human_bytes(m.in_use).c_str());
  }
  print_profile(m.profile);
}

void run_step_bench(const StepBench& bench) {
  const config::RunPlan plan = plan_of(bench);
  const std::optional<Measured> measured = measure(bench, plan, detect_launcher());
  if (!measured) return;
  print(bench, plan, *measured);
  if (!measured->unwritten_trace.empty())
    throw IoError(str("--trace = ", bench.trace, ": not written: ", measured->unwritten_trace));
}

}  // namespace

void add_bench(CLI::App& program) {
  CLI::App* command = program.add_subcommand("bench", "Measure the engine");
  command->require_subcommand(1);
  add_bench_ops(*command);
  add_bench_grouped(*command);
  add_bench_moe(*command);
  add_bench_echo(*command);
  add_bench_collectives(*command);
  auto b = std::make_shared<StepBench>();
  CLI::App* step = command->add_subcommand(
      "step", "Whole training steps on random tokens: forward, backward, reduction, clip, AdamW");
  step->add_option("--device", b->device, "cpu or cuda")->capture_default_str();
  step->add_option("--precision", b->precision,
                   "fp64, fp32, bf16, fp16 or fp8 (default: fp32 on the CPU, bf16 on a GPU)");
  const auto size = [&](const char* name, Index& value, const char* what) {
    return step->add_option(name, value, what)->check(at_least(1))->capture_default_str();
  };
  const std::vector<CLI::Option*> shape = {
      size("--layers", b->layers, "Transformer layers"), size("--hidden", b->hidden, "Hidden size"),
      size("--heads", b->heads, "Attention heads"), size("--vocab", b->vocab, "Vocabulary"),
      size("--seq", b->seq, "Sequence length")};
  size("--batch", b->batch, "Samples of a step, over all ranks");
  step->add_option("--micro-batch", b->micro_batch, "Samples of a microbatch (default: batch / dp)")
      ->check(at_least(1));
  size("--steps", b->steps, "Steps measured");
  size("--warmup", b->warmup, "Steps before them");
  size("--tp", b->tp, "Tensor-parallel ranks");
  size("--pp", b->pp, "Pipeline stages");
  size("--dp", b->dp, "Data-parallel ranks");
  size("--chunks", b->chunks, "Model chunks per pipeline stage");
  step->add_option(
          "--stage-layers", b->stage_layers,
          "Layers of each of the pp * chunks stages, in the order of the model, as 7,9 (default: equal shares)")
      ->delimiter(',');
  step->add_option("--group-size", b->group_size,
                   "Microbatches that a chunk takes before the next one's turn (default: pp)")
      ->check(at_least(1));
  step->add_flag(
      "--profile", b->profile,
      "Also time one more step by phase (forward, backward, communication and waits for it, optimizer, idle) and "
      "by op");
  step->add_option("--trace", b->trace,
                   "Write one more step's ops and communication calls of all ranks to a file that Perfetto opens");
  CLI::Option* const alone =
      step->add_option("--alone", b->alone,
                       "Run this rank only (default: 0), in the shapes of the grid and without the other ranks: what a "
                       "rank computes and holds, on one device. No pipeline bubble")
          ->check(at_least(0))
          ->expected(0, 1);
  step->add_option("--link", b->link,
                   "With --alone: GB/s between a rank and the others, in and out at once (default: communication "
                   "takes no time)")
      ->check(CLI::PositiveNumber);
  step->add_flag("--deterministic", b->deterministic, "The same bits every time");
  add_dropout(*step, b->dropout, "Dropout everywhere");
  step->add_option("--set", b->settings, "KEY=VALUE of a recipe, for what has no option here; it wins");
  step->add_option("--format", b->format, "text or json")->check(CLI::IsMember({"text", "json"}));
  step->callback([b, shape, alone] {
    if (alone->count() > 0 && !b->alone) b->alone = 0;
    for (const CLI::Option* option : shape)
      if (option->count() > 0) b->shape.push_back(option->get_name());
    run_step_bench(*b);
  });
}

}  // namespace megalith::apps
