#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/ops/adamw.h"
#include "megalith/optim/muon.h"
#include "megalith/optim/optim_config.h"
#include "megalith/params/param_buffer.h"

namespace megalith::optim {

/// AdamW over a rank's flat buffers: over all elements in one pass or, if the parameters are sharded, over this rank's
/// shards, bucket by bucket (ParamBuffer::own_ranges). Does not communicate values. With OptimizerType::muon Muon
/// updates the matrices of layers, and AdamW all else.
/// Memory: a first moment of own_numel() elements, a second one of those that AdamW updates, and one byte for every
/// ops::kDecayGroup of own_numel(); with moments in bf16 four more bytes for each of these, and 40 for every parameter.
/// Owner `optimizer`.
class Optimizer {
 public:
  /// `data`: the reduction group of `params`, one rank per shard. `tp`: the ranks that hold slices of its matrices.
  /// `seed`: the run's, of the words that round moments in bf16.
  Optimizer(const OptimConfig& config, ParamBuffer& params, comm::Group data, comm::Group tp, std::uint64_t seed = 0);

  Index bytes() const;
  void allocate(Exec& ex, MemoryLedger& ledger);

  /// Writes two sums of squares of gradients to sum_squares [2] f64: of those that count here, and of all others. Over
  /// all ranks of the run the first add up to the square of the global norm: every parameter counts once, at its owner
  /// in the first model copy. The second show whether the other gradients are finite.
  /// Blocks lie within a shard of a bucket and are added in one fixed order, so the norm has the same bits with and
  /// without sharding. With sharding every rank sums its own shards, and an all-reduce communicates the blocks' sums:
  /// one f64 per ops::square_blocks. Scratch: as much. Gradients whose op has summed their squares
  /// (Param::grad_squares) are not read.
  /// await(bucket) is called before a bucket is read, in the order of ParamBuffer::buckets(). So on GPUs the sums of
  /// squares of one bucket overlap with the communication of later ones.
  void sum_of_squares(Exec& ex, const Tensor& sum_squares, const std::function<void(std::size_t)>& await = {}) const;
  /// Updates the elements of own_ranges() from their gradients, according to verdict (u8 [sizeof(ops::StepVerdict)]),
  /// and the copies that layers read. Muon overwrites gradients, and communicates (muon.h).
  void step(Exec& ex, const Tensor& verdict) const;

  /// The moments, flat. m: [own_numel()], v: the elements of second_moments().
  const Tensor& m() const { return m_; }
  const Tensor& v() const { return v_; }
  /// The elements that have a second moment, and their places in v(): own_ranges() without Muon.
  const std::vector<OwnRange>& second_moments() const { return second_moments_; }

 private:
  void divide();
  void update_by_adamw(Exec& ex, const Tensor& verdict) const;
  void update_by_muon(Exec& ex, const Tensor& verdict) const;
  Index numel_of_v() const;
  bool rounds_moments() const { return config_.moments == MomentType::bf16; }
  DType moment_dtype() const { return rounds_moments() ? DType::bf16 : params_.policy().master; }
  void fill_decays(Exec& ex) const;
  void fill_rounding(Exec& ex) const;
  ops::MomentRounding rounding_of(const OwnRange& range) const;
  /// Elements [begin, end) of the flat buffers, in a bucket, whose squares no op has summed.
  struct Unsummed {
    std::size_t bucket;
    Index begin, end;
  };
  std::vector<Unsummed> find_unsummed() const;
  std::size_t kind_of(std::size_t bucket) const;
  /// The part of a tensor [num_groups()] that belongs to a range.
  static Tensor own_groups(const Tensor& tensor, const OwnRange& range);
  Index num_groups() const { return ceil_div(params_.own_numel(), ops::kDecayGroup); }

  OptimConfig config_;
  ParamBuffer& params_;
  comm::Group data_;
  std::uint64_t seed_;
  std::vector<Unsummed> unsummed_;
  std::optional<Muon> muon_;
  /// Parts of own_ranges(), in their order: of AdamW, with their places in v_ and in tensors of own_numel() elements;
  /// of Muon, with the latter.
  std::vector<OwnRange> second_moments_, adamw_ranges_, muon_ranges_;
  Buffer memory_;
  Tensor m_, v_;
  Tensor decays_;  ///< u8 [num_groups()]: 1 for weights with decay
  /// With moments in bf16: u8 [parameters * sizeof(ops::RoundedParam)], i32 [num_groups()].
  Tensor rounded_params_, param_of_;
};

}  // namespace megalith::optim
