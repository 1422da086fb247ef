#pragma once
#include "megalith/ops/adamw.h"
#include "megalith/optim/optim_config.h"
#include "megalith/tensor/param.h"

namespace megalith::optim {

/// AdamW over a rank's flat buffers, in one pass. Each rank updates its own parameters; values are never communicated.
/// Memory: two moments, numel() elements each, and a byte for every ops::kDecayGroup elements; owner `optimizer`.
class Optimizer {
 public:
  Optimizer(const OptimConfig& config, ParamBuffer& params);

  Index bytes() const;
  void allocate(Exec& ex, MemoryLedger& ledger);

  /// Sum of the squares of the owned gradients, into sum_squares [1] f64: over all ranks of one model copy these add up
  /// to the square of the global norm, every parameter counted once.
  void sum_of_squares(Exec& ex, const Tensor& sum_squares) const;
  /// Updates every parameter from its gradient as verdict (u8 [sizeof(ops::StepVerdict)]) says, and the copies that
  /// layers read.
  void step(Exec& ex, const Tensor& verdict) const;

  /// The moments, flat, [numel()].
  const Tensor& m() const { return m_; }
  const Tensor& v() const { return v_; }

 private:
  Index moment_bytes() const { return params_.numel() * size_of(params_.policy().master); }
  Index num_groups() const { return ceil_div(params_.numel(), ops::kDecayGroup); }

  OptimConfig config_;
  ParamBuffer& params_;
  Buffer memory_;
  Tensor m_, v_;
  Tensor decays_;  ///< u8 [num_groups()]: 1 where weights decay
};

}  // namespace megalith::optim
