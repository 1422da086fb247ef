#include "megalith/train/stage_config.h"

namespace megalith::train {
namespace {

model::CaptureConfig capture_config(const config::RunPlan& plan) {
  const capture::GraphsConfig& graphs = plan.graphs;
  if (graphs.mode != capture::GraphMode::layers) return {};
  return {{.dense = edges_of(graphs.scopes, {}), .moe = edges_of(graphs.scopes, {.moe = true})},
          graphs.per == capture::GraphsPer::slot ? model::BoundaryBuffers::fixed : model::BoundaryBuffers::messages};
}

}  // namespace

model::StageConfig stage_config(const config::RunPlan& plan) {
  return {.model = plan.model,
          .stage_layers = plan.stage_layers,
          .chunks = plan.chunks,
          .group_size = plan.group_size,
          .sequence_parallel = plan.sequence_parallel ? nn::SequenceParallel::on : nn::SequenceParallel::off,
          .sub_batches = plan.sub_batches(),
          .global_batch = plan.train.global_batch,
          .micro_batch = plan.train.micro_batch,
          .smallest_batch = plan.train.ramp ? plan.train.ramp->start : 0,
          .seed = plan.train.seed,
          .policy = plan.train.policy(),
          .device = plan.device,
          .determinism = plan.train.determinism(),
          .input_uploads = plan.graphs.mode == capture::GraphMode::iteration ? model::InputUploads::whole_step
                                                                             : model::InputUploads::one_by_one,
          .capture = capture_config(plan),
          .instances = plan.graphs.per == capture::GraphsPer::slot ? model::CaptureInstance::slot
                                                                   : model::CaptureInstance::microbatch,
          .recompute = plan.recompute,
          .fp8 = plan.fp8,
          .sharding = plan.optimizer.sharding,
          .shard = plan.optimizer.shard};
}

}  // namespace megalith::train
