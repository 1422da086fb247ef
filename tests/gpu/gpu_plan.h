#pragma once
#include "tests/comm/gpu_ranks.h"
#include "tests/train/small_run.h"

namespace megalith::support {

/// Widths that tensor cores and cuDNN's attention take; an odd vocabulary; attention without dropout, so that it is
/// cuDNN's; and microbatches so long that copy engines carry what is sent of them, but short where processes may send
/// it by a network.
inline config::RunPlan gpu_plan(const Grid& grid, const std::string& precision, Index steps,
                                const std::string& family = "gpt2") {
  config::RunConfig c = support::small_config(grid, precision, steps);
  c.model.family = family;
  c.model.hidden_size = 256;
  c.model.ffn_hidden_size = 512;
  c.model.seq_len = comm::ranks_are_processes() ? 128 : 1024;
  c.model.attention_dropout = 0;
  c.train.global_batch = grid.dp == 3 ? 24 : 16;
  c.train.micro_batch = 4;
  c.device.type = "cuda";
  c.train.deterministic = true;
  c.train.gemm = "heuristic";
  return config::resolve(c);
}

}  // namespace megalith::support
