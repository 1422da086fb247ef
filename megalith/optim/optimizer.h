#pragma once
#include <cstddef>
#include <functional>

#include "megalith/comm/group.h"
#include "megalith/ops/adamw.h"
#include "megalith/optim/optim_config.h"
#include "megalith/params/param_buffer.h"

namespace megalith::optim {

/// AdamW over a rank's flat buffers: over all of them in one pass, or where the parameters are sharded over this rank's
/// shards, one bucket after the other (ParamBuffer::own_ranges). Values are not communicated here.
/// Memory: two moments, own_numel() elements each, and a byte for every ops::kDecayGroup of them; owner `optimizer`.
class Optimizer {
 public:
  /// `data`: the reduction group of `params`, one rank for each of its shards.
  Optimizer(const OptimConfig& config, ParamBuffer& params, comm::Group data);

  Index bytes() const;
  void allocate(Exec& ex, MemoryLedger& ledger);

  /// Sums of the squares of the gradients that count here and of all others, into sum_squares [2] f64. Over all ranks
  /// of the run the first add up to the square of the global norm: every parameter counts once, at its owner in the
  /// first model copy. The second, which count elsewhere, tell whether they are finite. Blocks lie within a shard of a
  /// bucket and are added in one order, so that the norm has the same bits whether the parameters are sharded or not.
  /// Where they are, every rank sums its own shards, and the blocks' sums are communicated: an all-reduce of an f64 for
  /// every ops::square_blocks. Scratch: as much. await(bucket): comes before a bucket is read, for each of them in the
  /// order of ParamBuffer::buckets(), so that on GPUs the sums of squares of one run beside the communication of those
  /// behind it.
  void sum_of_squares(Exec& ex, const Tensor& sum_squares, const std::function<void(std::size_t)>& await = {}) const;
  /// Updates the elements of own_ranges() from their gradients as verdict (u8 [sizeof(ops::StepVerdict)]) says, and the
  /// copies that layers read.
  void step(Exec& ex, const Tensor& verdict) const;

  /// The moments, flat, [own_numel()].
  const Tensor& m() const { return m_; }
  const Tensor& v() const { return v_; }

 private:
  Index moment_bytes() const { return params_.own_numel() * size_of(params_.policy().master); }
  Tensor own_decays(const OwnRange& range) const;
  Index num_groups() const { return ceil_div(params_.own_numel(), ops::kDecayGroup); }

  OptimConfig config_;
  ParamBuffer& params_;
  comm::Group data_;
  Buffer memory_;
  Tensor m_, v_;
  Tensor decays_;  ///< u8 [num_groups()]: 1 where weights decay
};

}  // namespace megalith::optim
