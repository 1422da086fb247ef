#include "megalith/train/gpu_memory.h"

#include <algorithm>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/gather_values.h"
#include "megalith/train/attention_facts.h"

namespace megalith::train {

void require_gpu_memory(std::span<const GpuShare> ranks, const config::RunPlan& plan) {
  const auto first = std::ranges::find_if(ranks, [](const GpuShare& rank) { return rank.needed > rank.left; });
  if (first == ranks.end()) return;
  const Index attention = deterministic_attention_bytes(plan);
  const std::string without = attention == 0 ? ""
                                             : str(", or train.deterministic = false, whose attention takes up to ",
                                                   human_bytes(attention), " less");
  throw ConfigError(str("train.micro_batch = ", plan.train.micro_batch, ": rank ", first - ranks.begin(), " takes ",
                        human_bytes(first->needed), " (", first->owners.data(), ") of its GPU, where ",
                        human_bytes(first->left),
                        " are left beside what other programs hold: must fit; use a smaller train.micro_batch, more "
                        "of parallel.tp or parallel.pp, a smaller model",
                        without));
}

void require_gpu_memory(comm::World& world, const config::RunPlan& plan, const BytesByOwner& to_take) {
  GpuShare mine{.needed = total(to_take), .left = device::memory_left(plan.device)};
  owners_text(to_take).copy(mine.owners.data(), mine.owners.size() - 1);
  require_gpu_memory(comm::gather_values(world.all(), mine), plan);
}

}  // namespace megalith::train
