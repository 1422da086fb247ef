#include "megalith/train/clone_memory.h"

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/train/host_memory.h"
#include "megalith/train/host_staging.h"
#include "megalith/train/run_memory.h"

namespace megalith::train {
namespace {

config::RunPlan with_weights(config::RunPlan plan, nn::EchoWeights weights) {
  plan.model.moe.echo.weights = weights;
  return plan;
}

bool has_slots(const config::RunPlan& plan) { return plan.model.moe.echo.slots > 0 && plan.grid.ep > 1; }

}  // namespace

config::RunPlan with_clone_weights(comm::World& world, config::RunPlan plan) {
  if (!has_slots(plan) || plan.model.moe.echo.weights != nn::EchoWeights::automatic) return plan;
  config::RunPlan keep = with_weights(plan, nn::EchoWeights::keep);
  if (plan.device != Device::cpu) return keep;
  const Index needed = total(planned_bytes(keep, world.rank())) + HostStaging::bytes(plan.device, plan.train.policy());
  if (lack_of_host_memory(world, needed, "", "").empty()) return keep;
  return with_weights(std::move(plan), nn::EchoWeights::redispatch);
}

std::string clone_weights_advice(const config::RunPlan& plan, const BytesByOwner& bytes, const PlannedBytes& planned) {
  if (!has_slots(plan) || plan.model.moe.echo.weights == nn::EchoWeights::redispatch) return "";
  const Index less = total(bytes) - total(planned(with_weights(plan, nn::EchoWeights::redispatch)));
  return less > 0 ? str(", or moe.echo.weights = redispatch, which takes ", human_bytes(less), " less") : "";
}

}  // namespace megalith::train
