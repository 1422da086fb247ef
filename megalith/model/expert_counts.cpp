#include "megalith/model/expert_counts.h"

#include "megalith/ops/grouped_matmul.h"

namespace megalith::model {
namespace {

/// Whether ranks exchange rows of experts: nn::ExpertParallel::dispatch() has several.
bool sends_rows(const ExpertSetting& setting) {
  const grid::ResolvedSizes& sizes = setting.grid;
  const bool is_replicated =
      setting.sequence_parallel == nn::SequenceParallel::off && grid::has_same_tensor_groups(sizes);
  return sizes.ep > 1 || (sizes.etp > 1 && !is_replicated);
}

}  // namespace

HostCounts host_counts(const ModelConfig& model, const ExpertSetting& setting) {
  if (!model.moe.has_experts()) return HostCounts::none;
  if (sends_rows(setting)) return HostCounts::rows_sent;
  if (setting.device == Device::cpu) return HostCounts::none;
  const bool is_kernel = expert_alignment(model, setting.device, setting.compute, setting.grid.etp) > 1;
  return is_kernel ? HostCounts::none : HostCounts::group_rows;
}

Index expert_alignment(const ModelConfig& model, Device device, DType compute, int etp) {
  if (!model.moe.has_experts() || model.moe.gemm == nn::ExpertGemm::loop) return 1;
  return ops::grouped_kernel_alignment(device, compute, model.hidden_size, model.moe.ffn_hidden_size / etp);
}

}  // namespace megalith::model
