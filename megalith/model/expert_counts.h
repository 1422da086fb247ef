#pragma once
#include <cstdint>

#include "megalith/grid/parallel_config.h"
#include "megalith/model/model_config.h"
#include "megalith/nn/tensor_parallel.h"
#include "megalith/params/policy.h"

namespace megalith::model {

/// How the model's experts are laid out and computed on a rank.
struct ExpertSetting {
  Device device = Device::cpu;
  DType compute = DType::f32;
  grid::ResolvedSizes grid = {};
  nn::SequenceParallel sequence_parallel = nn::SequenceParallel::off;
};

/// Ranks of etp that get rows of their own: 1 where each has its slices of all experts and all rows
/// (nn::ExpertParallel::slices()).
int row_slices(const ExpertSetting& setting);
/// Ranks that exchange rows of experts: nn::ExpertParallel::dispatch().
int exchanging_ranks(const ExpertSetting& setting);

/// What the host of a rank has to know about experts' rows while a pass runs. Passes whose hosts need nothing can run
/// from graphs.
enum class HostCounts : std::uint8_t {
  none,        ///< nothing: all sizes stay on the device, or are read by a CPU
  rows_sent,   ///< how many rows go between the ranks that exchange them
  group_rows,  ///< how many rows each expert has, for a loop of GEMMs on a GPU
};
/// For passes in which experts take all rows that chose them. `none` for models without experts.
HostCounts host_counts(const ModelConfig& model, const ExpertSetting& setting);

/// The alignment of experts' rows: that of the kernel which reads their numbers on the device, that of blocks where
/// experts have FP8 operands, on any device, 1 for loops of GEMMs.
Index expert_alignment(const ModelConfig& model, Device device, const Policy& policy, const nn::Fp8Config& fp8,
                       int etp);

}  // namespace megalith::model
