#include "megalith/train/gpu_memory.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::train {

Index apart_sums_bytes(const config::RunPlan& plan) {
  const bool has_pass = plan.device == Device::cuda && plan.train.deterministic && plan.train.precision != "fp32" &&
                        plan.model.attention_dropout == 0;
  const Index seq_len = plan.model.seq_len;
  return has_pass ? plan.train.micro_batch * (plan.model.num_heads / plan.grid.tp) * seq_len * seq_len * 2 : 0;
}

void require_gpu_memory(const config::RunPlan& plan, const BytesByOwner& to_take, Index left) {
  const Index needed = total(to_take);
  if (needed <= left) return;
  const Index apart = apart_sums_bytes(plan);
  const std::string without = apart == 0
                                  ? ""
                                  : str(", or train.deterministic = false, whose attention takes up to ",
                                        human_bytes(apart), " less: 2 bytes for every query and key of a rank's heads");
  throw ConfigError(str("train.micro_batch = ", plan.train.micro_batch, ": a rank takes ", human_bytes(needed), " (",
                        owners_text(to_take), "), its GPU has ", human_bytes(left),
                        " left: must fit; use a smaller train.micro_batch, more of parallel.tp or parallel.pp, a "
                        "smaller model",
                        without));
}

}  // namespace megalith::train
