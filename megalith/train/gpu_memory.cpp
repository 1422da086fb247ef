#include "megalith/train/gpu_memory.h"

#include <algorithm>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/gather_values.h"
#include "megalith/train/attention_facts.h"
#include "megalith/train/clone_memory.h"
#include "megalith/train/expert_rows.h"

namespace megalith::train {
namespace {

bool lacks_memory(const GpuShare& rank) { return rank.needed > rank.left; }

}  // namespace

void require_gpu_memory(std::span<const GpuShare> ranks, const config::RunPlan& plan, const std::string& recompute) {
  const auto first = std::ranges::find_if(ranks, lacks_memory);
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
                        recompute, without));
}

void require_gpu_memory(comm::World& world, const config::RunPlan& plan, const BytesByOwner& bytes,
                        const PlannedBytes& planned) {
  BytesByOwner to_take = bytes;
  to_take.erase(kWorkspaceOwner);
  GpuShare mine{.needed = total(to_take), .left = device::memory_left(plan.device)};
  owners_text(to_take).copy(mine.owners.data(), mine.owners.size() - 1);
  const std::vector<GpuShare> ranks = comm::gather_values(world.all(), mine);
  if (std::ranges::none_of(ranks, lacks_memory)) return;
  const auto fits = [&](Index less) {
    const GpuShare with_less{.needed = mine.needed - less, .left = mine.left};
    return std::ranges::none_of(comm::gather_values(world.all(), with_less), lacks_memory);
  };
  const std::string recompute = recompute_that_fits(plan, bytes, planned, fits);
  const std::string clones = clone_weights_advice(plan, bytes, planned);
  require_gpu_memory(ranks, plan,
                     recompute + clones + expert_rows_advice(plan, to_take, planned, mine.needed - mine.left));
}

}  // namespace megalith::train
