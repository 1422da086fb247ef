#pragma once
#include "megalith/ops/adamw.h"
#include "megalith/optim/optim_config.h"
#include "megalith/tensor/param.h"

namespace megalith::optim {

/// AdamW over a rank's flat buffers. Each rank updates its own parameters; values are never communicated.
/// Memory: two moments, numel() elements each, owner `optimizer`.
class Optimizer {
 public:
  Optimizer(const OptimConfig& config, ParamBuffer& params)
      : config_(config),
        params_(params),
        m_(nullptr, {params.numel()}, params.dtype()),
        v_(nullptr, {params.numel()}, params.dtype()) {}

  static Index bytes(const ParamBuffer& params) { return 2 * params.numel() * size_of(params.dtype()); }
  void allocate(MemoryLedger& ledger);

  /// Sum of the squares of the owned gradients, into sum_squares [1] f64: over all ranks of one model copy these add up
  /// to the square of the global norm, every parameter counted once.
  void sum_of_squares(Exec& ex, const Tensor& sum_squares) const;
  /// Updates every parameter from its gradient as verdict (u8 [sizeof(ops::StepVerdict)]) says.
  void step(Exec& ex, const Tensor& verdict) const;

  /// The moments, flat, [numel()].
  const Tensor& m() const { return m_; }
  const Tensor& v() const { return v_; }

 private:
  OptimConfig config_;
  ParamBuffer& params_;
  Buffer memory_;
  Tensor m_, v_;
};

}  // namespace megalith::optim
