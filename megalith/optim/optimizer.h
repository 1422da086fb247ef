#pragma once
#include <cstddef>
#include <functional>

#include "megalith/comm/group.h"
#include "megalith/ops/adamw.h"
#include "megalith/optim/optim_config.h"
#include "megalith/tensor/param.h"

namespace megalith::optim {

/// AdamW over a rank's flat buffers: over all of them in one pass, or where the parameters are sharded over this rank's
/// shards, one bucket after the other (ParamBuffer::own_ranges). Values are not communicated here.
/// Memory: two moments, own_numel() elements each, and a byte for every ops::kDecayGroup of them; owner `optimizer`.
class Optimizer {
 public:
  /// `dp`: the ranks that hold the same parameters, one for each shard of `params`.
  Optimizer(const OptimConfig& config, ParamBuffer& params, comm::Group dp);

  Index bytes() const;
  void allocate(Exec& ex, MemoryLedger& ledger);

  /// Sums of the squares of the owned gradients and of the replicas', into sum_squares [2] f64. Over all ranks of one
  /// model copy the first add up to the square of the global norm, every parameter counted once; the second, which an
  /// owner counts elsewhere, tell whether a replica's are finite. Blocks lie within a shard of a bucket and are
  /// added in one order, so that it has the same bits on every rank of dp whether the parameters are sharded or not.
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
  comm::Group dp_;
  Buffer memory_;
  Tensor m_, v_;
  Tensor decays_;  ///< u8 [num_groups()]: 1 where weights decay
};

}  // namespace megalith::optim
