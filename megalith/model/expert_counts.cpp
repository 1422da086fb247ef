#include "megalith/model/expert_counts.h"

#include "megalith/ops/e4m3.h"
#include "megalith/ops/grouped_matmul.h"

namespace megalith::model {

int row_slices(const ExpertSetting& setting) {
  const bool is_replicated =
      setting.sequence_parallel == nn::SequenceParallel::off && grid::has_same_tensor_groups(setting.grid);
  return is_replicated ? 1 : setting.grid.etp;
}

int exchanging_ranks(const ExpertSetting& setting) { return setting.grid.ep * row_slices(setting); }

HostCounts host_counts(const ModelConfig& model, const ExpertSetting& setting) {
  if (!model.moe.has_experts()) return HostCounts::none;
  // Where the dispatcher is automatic rows may be sent: the transport decides that when a run begins.
  if (exchanging_ranks(setting) > 1 && model.moe.dispatcher != nn::ExpertDispatcher::peer) return HostCounts::rows_sent;
  if (setting.device == Device::cpu) return HostCounts::none;
  const bool is_kernel =
      expert_alignment(model, setting.device, {.compute = setting.compute}, {}, setting.grid.etp) > 1;
  return is_kernel ? HostCounts::none : HostCounts::group_rows;
}

Index expert_alignment(const ModelConfig& model, Device device, const Policy& policy, const nn::Fp8Config& fp8,
                       int etp) {
  if (!model.moe.has_experts()) return 1;
  static_assert(ops::kGroupedKernelRows == ops::kScaleBlock);
  if (nn::expert_format(policy.gemms, fp8, model.hidden_size) == GemmFormat::e4m3) return ops::kScaleBlock;
  if (model.moe.gemm == nn::ExpertGemm::loop) return 1;
  return ops::grouped_kernel_alignment(device, policy.compute, model.hidden_size, model.moe.ffn_hidden_size / etp);
}

}  // namespace megalith::model
