#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/capture/graphs_config.h"
#include "megalith/capture/scopes.h"
#include "megalith/checkpoint/checkpoint_config.h"
#include "megalith/comm/world.h"
#include "megalith/config/batch_ramp.h"
#include "megalith/config/run_config.h"
#include "megalith/data/data_config.h"
#include "megalith/grid/parallel_config.h"
#include "megalith/model/model_config.h"
#include "megalith/nn/fp8_config.h"
#include "megalith/nn/recompute_config.h"
#include "megalith/ops/gemm_table.h"
#include "megalith/optim/optim_config.h"
#include "megalith/params/policy.h"
#include "megalith/tasks/task_set.h"

namespace megalith::config {

/// The policy of a precision's name; nothing for any other text.
std::optional<Policy> policy_of(std::string_view precision);
/// "fp32" on the CPU, "bf16" on a GPU.
std::string_view default_precision(Device device);

struct TrainConfig {
  Index steps = 0, global_batch = 1, micro_batch = 1;
  std::optional<BatchRamp> ramp = {};  ///< its end is global_batch
  std::string init;                    ///< a checkpoint whose values a run begins with; empty: random ones
  std::uint64_t seed = 1234;
  std::string precision = "fp32";  ///< fp64, fp32, bf16, fp16, fp8
  ops::LossScaling scaling;        ///< fp16 only
  ops::NonFinite on_nonfinite = ops::NonFinite::stop;
  ops::SpikeRules spikes = {};
  Index skip_limit = 20;  ///< skipped steps in a row that end the run
  bool deterministic = true;
  ops::GemmChoice gemm = ops::GemmChoice::timed;  ///< of GEMMs on a GPU; the CPU has one algorithm
  Index eval_interval = 0;                        ///< steps between evaluations; 0: only at the end
  Index eval_batches = 8;                         ///< batches of global_batch samples each; 0: the whole set
  Index early_stop = 0;                           ///< evaluations without a better loss that end the run; 0: off
  double early_stop_delta = 0;                    ///< nats by which a loss must be lower to be better

  Policy policy() const { return policy_of(precision).value(); }
  /// Samples of the step that begins after so many: the largest number is global_batch.
  Index batch_after(Index samples) const { return ramp ? ramp->batch_after(samples) : global_batch; }
  Determinism determinism() const { return deterministic ? Determinism::required : Determinism::not_required; }
};

/// Section [eval].
struct EvalConfig {
  std::vector<std::string> tasks = {};  ///< of multiple choice, scored at evaluations: eval::choice_task_named()
};

/// Section [task]: fine-tuning.
struct TaskConfig {
  std::string name;  ///< tasks::name_of(); empty: none
  std::string init;  ///< a checkpoint, or a Hugging Face folder, with which the run begins
  Index epochs = 1;
  Index max_query = 128, doc_stride = 128;  ///< tasks::TaskSetConfig
  /// Which of these the recipe leaves to follow from the number of steps.
  bool derives_warmup = false, derives_decay = false, derives_interval = false;

  bool is_set() const { return !name.empty(); }
  /// The task must be set.
  /// `setting`: the key or option that names the file.
  tasks::TaskSetConfig set_config(Index seq_len, Index max_line, std::string_view setting = tasks::kDataOption) const;
};

/// Whether forward passes cut a microbatch into two sub-microbatches, so that the all-reduces over tp of one overlap
/// with the GEMMs of the other. `automatic`: on GPUs in 16 bits, if the microbatch can be halved. In f32 a library's
/// GEMM of fewer rows may have other bits.
enum class TpOverlap : std::uint8_t { automatic, halves, none };

/// What runs: everything is resolved and checked. Const after resolve().
struct RunPlan {
  model::ModelConfig model;
  grid::ResolvedSizes grid;
  int chunks = 1, group_size = 0;
  std::vector<Index> stage_layers;  ///< empty: equal shares
  TpOverlap tp_overlap = TpOverlap::automatic;
  comm::Transport transfers = comm::Transport::copy_engines;  ///< of large calls between GPUs, if there is a choice
  bool share_gpu_memory = true;                               ///< of processes of one host, with copy_engines
  /// Whether tensor-parallel ranks share the token rows outside their regions (nn/tensor_parallel.h). No effect with
  /// one such rank.
  bool sequence_parallel = false;
  double timeout_s = comm::WorldOptions{}.timeout_s;  ///< how long a rank waits for others before it ends the run
  TrainConfig train;
  EvalConfig eval = {};
  TaskConfig task;
  optim::OptimConfig optimizer;
  data::DataConfig data;
  checkpoint::CheckpointConfig checkpoint;
  capture::GraphsConfig graphs;
  nn::RecomputeConfig recompute;
  nn::Fp8Config fp8;
  Index log_interval = 1;
  bool tensorboard = false;  ///< event files in OUT/tensorboard
  Device device = Device::cpu;
  int ranks_per_node = 0;  ///< for warnings; 0: unknown
  int threads = 0;         ///< of a rank; 0: its share of usable_cores() among the ranks of a process or host
  /// Warnings about the recipe: keys that make model.preset another model, which itself is not part of a plan, and
  /// keys without effect.
  std::vector<std::string> recipe_warnings;

  /// Sub-microbatches of forward passes: 2 if tp_overlap requires them and equal halves can go over tp, else 1.
  int sub_batches() const;
  /// Tensor-parallel ranks that must hold equal numbers of the token rows of a microbatch, or of a sub-microbatch: tp
  /// with sequence_parallel, else 1.
  int row_shares() const { return sequence_parallel ? grid.tp : 1; }
  /// The facts that the rules on graphs.scopes need.
  capture::RunFacts run_facts() const;
  /// The checkpoint that a run begins with, and the key that names it; empty: none.
  const std::string& init() const { return task.is_set() ? task.init : train.init; }
  const char* init_key() const { return task.is_set() ? "task.init" : "train.init"; }
  /// Steps of an epoch of a fine-tuning run with so many samples: the last one may hold samples without a loss.
  Index steps_per_epoch(Index samples) const { return ceil_div(samples, train.global_batch); }
  /// Whether GEMMs of experts have FP8 operands.
  bool has_fp8_experts() const;
  /// Whether the algorithms of GEMMs are chosen, and kept in a table, before step 1.
  bool chooses_gemms() const { return device == Device::cuda && train.gemm == ops::GemmChoice::timed; }

  /// Warnings before a run begins: recipe_warnings, a warm-up that does not end within the run, settings that divide
  /// work among ranks with only one rank, GEMMs of experts that cannot be grouped or stay in bf16, and
  /// grid::placement_warnings() if ranks_per_node is known.
  std::vector<std::string> warnings() const;

  /// The same as a recipe with every key set. Parsing and resolving it gives this plan again.
  RunConfig as_config() const;
};

/// Returns the number of ids of a tokenizer (tokenizer::count_ids) whose files are in `vocab_dir`, or, if that is
/// empty, come with the program. Throws an Error that names the file.
using CountIds = std::function<Index(const std::string& tokenizer, const std::string& vocab_dir)>;

/// Fills defaults, derives other values, and checks the rules of every folder and those across folders. `ranks`: from
/// the command line or mpirun, 0 if neither gives it. `count_ids`: for the default of model.vocab_size; without it that
/// of `byte` and of GPT-2's own vocabulary is known. Throws ConfigError with all broken rules; where there is none,
/// what count_ids throws.
RunPlan resolve(const RunConfig& asked, int ranks = 0, const CountIds& count_ids = nullptr);

/// Completes the plan of a fine-tuning run, whose steps follow from the samples of its training set: train.steps, and
/// what the recipe leaves to follow from it: a warm-up of 6 % of the steps, a decay to the end, a dev score after each
/// epoch. Does nothing for other runs.
void set_samples(Index samples, RunPlan& plan);

/// "tp 2 pp 2 dp 1" (and "chunks 2" with several, "sequence parallel" with sequence parallelism): the name of a grid in
/// logs and manifests.
std::string grid_text(const RunPlan& plan);

}  // namespace megalith::config
