#pragma once
#include "megalith/comm/mesh.h"
#include "megalith/model/model_config.h"
#include "megalith/nn/moe/expert_parallel.h"

namespace megalith::model {

/// The groups in which the layers of a model compute on a rank: with those of the expert grid where it has experts.
inline nn::LayerGroups layer_groups(const nn::TensorParallel& tp, const ModelConfig& model, const comm::Mesh& mesh) {
  if (!model.moe.has_experts()) return tp;
  return {tp, nn::ExpertParallel(tp, mesh.ep, mesh.etp, mesh.etp_ep)};
}

}  // namespace megalith::model
