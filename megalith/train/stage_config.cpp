#include "megalith/train/stage_config.h"

namespace megalith::train {
namespace {

model::PieceConfig pieces(const capture::GraphsConfig& graphs) {
  if (graphs.mode != capture::GraphMode::layers) return {};
  return {pieces_of(graphs.scopes),
          graphs.per == capture::GraphsPer::slot ? model::ChunkEdges::own : model::ChunkEdges::of_caller};
}

}  // namespace

model::LayerPieces pieces_of(const capture::ScopeSet& scopes) {
  const bool attention = scopes.has(capture::Scope::attn), mlp = scopes.has(capture::Scope::mlp);
  if (attention == mlp) return model::LayerPieces::whole;
  return attention ? model::LayerPieces::attention : model::LayerPieces::mlp;
}

model::StageConfig stage_config(const config::RunPlan& plan) {
  return {.model = plan.model,
          .stage_layers = plan.stage_layers,
          .chunks = plan.chunks,
          .group_size = plan.group_size,
          .rows = plan.sequence_parallel ? nn::Rows::shared : nn::Rows::whole,
          .forward_parts = plan.forward_parts(),
          .global_batch = plan.train.global_batch,
          .micro_batch = plan.train.micro_batch,
          .seed = plan.train.seed,
          .policy = plan.train.policy(),
          .device = plan.device,
          .determinism = plan.train.determinism(),
          .input_uploads = plan.graphs.mode == capture::GraphMode::iteration ? model::InputUploads::whole_step
                                                                             : model::InputUploads::one_by_one,
          .pieces = pieces(plan.graphs),
          .instances = plan.graphs.per == capture::GraphsPer::slot ? model::PieceInstance::slot
                                                                   : model::PieceInstance::microbatch,
          .sharding = plan.optimizer.sharding};
}

}  // namespace megalith::train
