#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "megalith/params/param_spec.h"
#include "megalith/params/partition.h"
#include "megalith/params/policy.h"
#include "megalith/tensor/memory.h"

namespace megalith {

/// A parameter of one rank: views into flat buffers.
struct Param {
  ParamSpec spec;
  Tensor value;      ///< what layers read, in the compute dtype
  Tensor master;     ///< what the optimizer updates: `value` itself where both dtypes are one; else undefined where
                     ///< the buffer is_sharded()
  Tensor grad;       ///< main gradient, in the master dtype; undefined in a buffer without gradients
  Index offset = 0;  ///< first element in the flat buffers

  const std::string& name() const { return spec.slice.name; }
  /// A view without the padding rows, of a tensor shaped like this parameter (value, grad, a moment).
  Tensor without_padding(const Tensor& like) const { return like.rows(0, spec.slice.local[0]); }
};

/// What a buffer has memory for: `values` is what reading a model takes, without gradients (and so without moments).
enum class ParamContents : std::uint8_t { values, values_and_gradients };

/// Exactly one rank of a model copy is the owner of a parameter: it counts in the gradient norm and writes checkpoints.
enum class Ownership : std::uint8_t { owner, replica };

/// A flat range [begin, end) of whole parameters of one placement that is communicated by one call. Elements that pad
/// it to equal shards stay 0.
struct Bucket {
  Index begin = 0, end = 0;
  grid::Placement placement = grid::kSharded;
  Ownership ownership = Ownership::owner;
  std::vector<Index> layers = {};  ///< whose parameters it holds, descending; none: parameters outside the layers

  Index numel() const { return end - begin; }
};

/// A run of elements that this rank's optimizer updates, and where it lies: in tensors over all elements, and in those
/// over the updated ones alone.
struct OwnRange {
  Index in_whole = 0, in_own = 0, count = 0;

  Tensor of_whole(const Tensor& flat) const { return flat.rows(in_whole, count); }
  Tensor of_own(const Tensor& flat) const { return flat.rows(in_own, count); }
};

/// The parameters of one rank that one group of ranks sums the gradients of (grid::reduction_group), in flat buffers:
/// first those that other ranks of the model copy hold too, in buckets that look the same on all of them, whether as
/// owner or as replica; in what follows those with overwritten gradients come first, so that what must be cleared is
/// one or two ranges. Buckets cover the buffers and do not overlap; every shard begins where a parameter could.
/// Positions are fixed by the specs and the partition alone; memory comes with allocate(). References to params stay
/// valid for the buffer's life.
class ParamBuffer {
 public:
  /// Throws InternalError for placements of more than one grid, or that grid::check() refuses.
  ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy, const Partition& partition,
              ParamContents contents = ParamContents::values_and_gradients);
  /// Of a rank that shares its parameters with no other.
  ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy);
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  /// By owner: "parameters" (the masters), "gradients" (numel() elements: products add to all of them) and, where
  /// layers read another dtype, "parameter copies" (numel() elements).
  BytesByOwner bytes() const;
  /// Takes those from the ledger.
  void allocate(MemoryLedger& ledger);

  std::span<Param> params() { return params_; }
  std::span<const Param> params() const { return params_; }
  /// Null when there is none of that name.
  Param* find(std::string_view name);
  /// Throws InternalError for an unknown name.
  Param& at(std::string_view name);

  grid::GridKind grid() const { return grid_; }
  const Policy& policy() const { return policy_; }
  bool has_gradients() const { return contents_ == ParamContents::values_and_gradients; }
  bool has_copy() const { return policy_.master != policy_.compute; }
  Index numel() const { return numel_; }  ///< with alignment gaps, which stay 0
  /// Flat views, [numel()]. grads(): undefined without gradients.
  const Tensor& values() const { return values_; }
  const Tensor& grads() const { return grads_; }
  /// Flat: values() itself where both dtypes are one, else [own_numel()].
  const Tensor& masters() const { return masters_; }

  /// In the order in which backward finishes them: the last of the buffers first.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int shards() const { return partition_.shards; }
  /// Whether this rank updates its shards only. False where there is one shard.
  bool is_sharded() const { return partition_.sharding == Sharding::optimizer && partition_.shards > 1; }
  /// A bucket of a flat tensor of numel() elements, and this rank's shard of it.
  Tensor part(const Tensor& flat, const Bucket& bucket) const { return flat.rows(bucket.begin, bucket.numel()); }
  Tensor own_shard(const Tensor& flat, const Bucket& bucket) const;

  /// What this rank updates: everything in one range, or its shard of each bucket, in the order of buckets().
  const std::vector<OwnRange>& own_ranges() const { return own_ranges_; }
  Index own_numel() const { return is_sharded() ? numel_ / partition_.shards : numel_; }
  Tensor own_masters(const OwnRange& range) const {
    return has_copy() ? range.of_own(masters_) : range.of_whole(masters_);
  }
  /// The gradients that are zero when a step begins (FirstGrad::added): flat ranges, as few as there may be.
  const std::vector<Tensor>& added_grads() const { return added_grads_; }
  /// The gradients that are partial along tp: a flat range of whole buckets, the same parameters in the same order on
  /// every rank of tp. Empty where there are none.
  Tensor partial_grads() const { return grads_.rows(partial_begin_, partial_numel_); }
  /// The part of a flat tensor of numel() elements that belongs to a parameter, in its shape.
  Tensor part(const Tensor& flat, const Param& param) const;

 private:
  void place();
  std::vector<Tensor> find_added_grads() const;

  std::vector<Param> params_;
  Policy policy_;
  Partition partition_;
  ParamContents contents_;
  grid::GridKind grid_ = grid::GridKind::dense;
  std::vector<Bucket> buckets_;
  std::vector<OwnRange> own_ranges_;
  Index numel_ = 0;
  Index partial_begin_ = 0, partial_numel_ = 0;
  Buffer master_memory_, copy_memory_, grad_memory_;
  Tensor values_, masters_, grads_;
  std::vector<Tensor> added_grads_;
};

}  // namespace megalith
