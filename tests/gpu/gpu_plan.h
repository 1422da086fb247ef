#pragma once
#include "tests/train/small_run.h"

namespace megalith::testing {

/// Widths that tensor cores and cuDNN's attention take; an odd vocabulary; attention without dropout, so that it is
/// cuDNN's; and microbatches so long that copy engines carry what is sent of them.
inline config::RunPlan gpu_plan(const Grid& grid, const std::string& precision, Index steps) {
  config::RunConfig c = testing::small_config(grid, precision, steps);
  c.model.hidden_size = 256;
  c.model.ffn_hidden_size = 512;
  c.model.seq_len = 1024;
  c.model.attention_dropout = 0;
  c.train.global_batch = 16;
  c.train.micro_batch = 4;
  c.device.type = "cuda";
  c.train.deterministic = true;
  c.train.gemm = "heuristic";
  return config::resolve(c);
}

}  // namespace megalith::testing
