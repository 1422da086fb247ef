#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "megalith/capture/graphs_config.h"
#include "megalith/capture/scopes.h"
#include "megalith/checkpoint/checkpoint_config.h"
#include "megalith/comm/world.h"
#include "megalith/config/run_config.h"
#include "megalith/data/data_config.h"
#include "megalith/grid/parallel_config.h"
#include "megalith/model/model_config.h"
#include "megalith/nn/recompute_config.h"
#include "megalith/ops/gemm_table.h"
#include "megalith/optim/optim_config.h"
#include "megalith/params/policy.h"

namespace megalith::config {

/// What a precision's name stands for; nothing for any other text.
std::optional<Policy> policy_of(std::string_view precision);
/// "fp32" on the CPU, "bf16" on a GPU.
std::string_view default_precision(Device device);

struct TrainConfig {
  Index steps = 0, global_batch = 1, micro_batch = 1;
  std::string init;  ///< a checkpoint whose values a run begins with; empty: random ones
  std::uint64_t seed = 1234;
  std::string precision = "fp32";  ///< fp64, fp32, bf16, fp16
  ops::LossScaling scaling;        ///< fp16 only
  bool deterministic = true;
  ops::GemmChoice gemm = ops::GemmChoice::timed;  ///< of matrix products on a GPU; the CPU has one way
  Index eval_interval = 0;                        ///< steps between evaluations; 0: only at the end
  Index eval_batches = 8;                         ///< batches of global_batch samples each; 0: the whole set

  Policy policy() const { return policy_of(precision).value(); }
  Determinism determinism() const { return deterministic ? Determinism::required : Determinism::not_required; }
};

/// Whether the forward passes take the microbatch's halves in turn, so that what one half sends over tp goes beside the
/// products of the other. `automatic`: on GPUs in 16 bits, where there are such halves; the library's f32 products of
/// fewer rows may have other bits.
enum class TpOverlap : std::uint8_t { automatic, halves, none };

/// What runs: everything resolved and checked; const after resolve().
struct RunPlan {
  model::ModelConfig model;
  grid::ResolvedSizes grid;
  int chunks = 1, group_size = 0;
  std::vector<Index> stage_layers;  ///< empty: equal shares
  TpOverlap tp_overlap = TpOverlap::automatic;
  comm::Transport transfers =
      comm::Transport::copy_engines;  ///< of what is large between GPUs, where there is a choice
  /// Whether tensor-parallel ranks share the token rows outside their regions (nn/tensor_parallel.h). Of no effect with
  /// one of them.
  bool sequence_parallel = false;
  double timeout_s = comm::WorldOptions{}.timeout_s;  ///< what a rank waits for others before it ends the run
  TrainConfig train;
  optim::OptimConfig optimizer;
  data::DataConfig data;
  checkpoint::CheckpointConfig checkpoint;
  capture::GraphsConfig graphs;
  nn::RecomputeConfig recompute;
  Index log_interval = 1;
  bool tensorboard = false;  ///< event files in OUT/tensorboard
  Device device = Device::cpu;
  int ranks_per_node = 0;  ///< what is warned of goes by it; 0: not known
  int threads = 0;         ///< of a rank; 0: what the ranks of a process or host have of usable_cores()
  /// Of keys that make another model of model.preset: the preset is not part of a plan.
  std::vector<std::string> preset_warnings;

  /// Parts of a microbatch that forward passes take in turn: 2 where tp_overlap says so and equal halves go over tp,
  /// else 1.
  int sub_batches() const;
  /// Tensor-parallel ranks that must hold as many of a microbatch's token rows, or of its halves': tp with
  /// sequence_parallel, else 1.
  int row_shares() const { return sequence_parallel ? grid.tp : 1; }
  /// What the rules on graphs.scopes ask for.
  capture::RunFacts run_facts() const;
  /// Whether the algorithms of matrix products are chosen, and kept in a table, before step 1.
  bool chooses_gemms() const { return device == Device::cuda && train.gemm == ops::GemmChoice::timed; }

  /// What a run is warned of before it begins: preset_warnings, a warm-up that the run does not reach the end of,
  /// settings that divide work among ranks where there is one, and grid::placement_warning() where ranks_per_node is
  /// known.
  std::vector<std::string> warnings() const;

  /// The same as a recipe with every key set: parsing and resolving it gives this plan again.
  RunConfig as_config() const;
};

/// Fills defaults, derives what follows, checks every folder's rules and those across folders. `ranks`: from the
/// command line or mpirun, 0 when neither says. Throws ConfigError with all broken rules.
RunPlan resolve(const RunConfig& asked, int ranks = 0);

/// "tp 2 pp 2 dp 1" (and "chunks 2" where there are several, "shared rows" with sequence parallelism): how logs and
/// manifests name a grid.
std::string grid_text(const RunPlan& plan);

}  // namespace megalith::config
