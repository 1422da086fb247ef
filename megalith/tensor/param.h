#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "megalith/tensor/memory.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith {

enum class Init : std::uint8_t { zeros, ones, normal };
enum class Decay : std::uint8_t { no, yes };
/// How the first microbatch's gradient arrives: `replaced` by a product that overwrites, so that nothing need be
/// cleared before a step nor read in it; `summed` onto zeros. Later microbatches add in either case.
enum class FirstGrad : std::uint8_t { summed, replaced };
/// What a rank's passes leave in a gradient: all of it, or the sum over some of the microbatch's rows, to which the
/// other ranks that hold the same values add theirs (layer norms under sequence parallelism).
enum class GradRows : std::uint8_t { all, some };
/// Which ranks of one model copy hold the same values: one, all of tp (layer norms), or all of embd (the tied table on
/// the first and the last stage).
enum class HeldBy : std::uint8_t { one, tp, embd };
/// Exactly one of them is the owner: it counts in the gradient norm and writes the checkpoint.
enum class Ownership : std::uint8_t { owner, replica };

/// The layer of parameters that belong to none.
inline constexpr Index kOutsideLayers = -1;

/// What a model says about a parameter before memory exists.
struct ParamSpec {
  TensorSlice slice;  ///< what of the global tensor (without padding) this rank holds
  Shape held;         ///< shape in memory; its first dimension may exceed slice.local's by padding rows, which stay 0
  Init init = Init::zeros;
  double init_std = 0;
  Decay decay = Decay::yes;
  HeldBy held_by = HeldBy::one;
  Ownership ownership = Ownership::owner;
  FirstGrad first_grad = FirstGrad::summed;
  GradRows grad_rows = GradRows::all;
  Index layer = kOutsideLayers;  ///< global number of its Transformer layer
};

/// How a run stores numbers. Sums, statistics and losses are f32 wherever compute is not f64.
struct Policy {
  DType master = DType::f32;   ///< parameters, their gradients and moments, as the optimizer and checkpoints know them
  DType compute = DType::f32;  ///< activations, and the copy of the parameters that layers read
  bool operator==(const Policy&) const = default;
};

/// A parameter of one rank: views into flat buffers.
struct Param {
  ParamSpec spec;
  Tensor value;      ///< what layers read, in the compute dtype
  Tensor master;     ///< what the optimizer updates: `value` itself where both dtypes are one; else undefined where
                     ///< the buffer is_sharded()
  Tensor grad;       ///< main gradient, in the master dtype
  Index offset = 0;  ///< first element in the flat buffers

  const std::string& name() const { return spec.slice.name; }
  /// A view without the padding rows, of a tensor shaped like this parameter (value, grad, a moment).
  Tensor without_padding(const Tensor& like) const { return like.rows(0, spec.slice.local[0]); }
};

/// What each of the ranks that hold the same parameters updates and remembers: everything, or its shard of every bucket
/// (ZeRO stage 1: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1). Values and gradients are whole in either
/// case, but a sharded step leaves the other ranks' shards of both out of date.
enum class Sharding : std::uint8_t { none, optimizer };

/// How a ParamBuffer is cut for the ranks that hold the same parameters.
struct Partition {
  Index bucket_elements = 0;  ///< a bucket is closed by the layer with which it reaches so many
  int shards = 1;             ///< ranks; a bucket has a shard for each, all of one size
  int own = 0;                ///< this rank's shard, in [0, shards)
  Sharding sharding = Sharding::none;
};

/// A flat range [begin, end) of whole parameters of one HeldBy, ownership and GradRows that is communicated by one
/// call. Elements that pad it to equal shards stay 0.
struct Bucket {
  Index begin = 0, end = 0;
  HeldBy held_by = HeldBy::one;
  Ownership ownership = Ownership::owner;
  GradRows grad_rows = GradRows::all;
  std::vector<Index> layers = {};  ///< whose parameters it holds, descending; none: parameters outside the layers

  Index numel() const { return end - begin; }
};

/// Whether there is memory for gradients: what only reads a model needs none.
enum class Gradients : std::uint8_t { taken, none };

/// A run of elements that this rank's optimizer updates, and where it lies: in tensors over all elements, and in those
/// over the updated ones alone.
struct OwnRange {
  Index in_whole = 0, in_own = 0, count = 0;

  Tensor of_whole(const Tensor& flat) const { return flat.rows(in_whole, count); }
  Tensor of_own(const Tensor& flat) const { return flat.rows(in_own, count); }
};

/// All parameters of one rank in flat buffers: first those that other ranks of the model copy hold too, in buckets that
/// look the same on all of them, whether as owner or as replica; in what follows those with replaced gradients come
/// first, so that what must be cleared is one or two ranges. Buckets cover the buffers and do not overlap; every shard
/// begins where a parameter could. Positions are fixed by the specs and the partition alone; memory comes with
/// allocate(). References to params stay valid for the buffer's life.
class ParamBuffer {
 public:
  /// Throws InternalError where a parameter with GradRows::some is not held by tp.
  ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy, const Partition& partition);
  /// Of a rank that shares its parameters with no other.
  ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy);
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  /// By owner: "parameters" (the masters), "gradients" (numel() elements: products add to all of them) and, where
  /// layers read another dtype, "parameter copies" (numel() elements).
  BytesByOwner bytes() const;
  /// Takes those from the ledger. Without memory for gradients grads() must not be written.
  void allocate(MemoryLedger& ledger, Gradients gradients = Gradients::taken);

  std::span<Param> params() { return params_; }
  std::span<const Param> params() const { return params_; }
  /// Throws InternalError for an unknown name.
  Param& at(std::string_view name);

  const Policy& policy() const { return policy_; }
  bool has_copy() const { return policy_.master != policy_.compute; }
  Index numel() const { return numel_; }  ///< with alignment gaps, which stay 0
  /// Flat views, [numel()].
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
  /// The gradients that are zero when a step begins: flat ranges, as few as there may be.
  const std::vector<Tensor>& summed_grads() const { return summed_grads_; }
  /// The gradients with GradRows::some: a flat range of whole buckets, the same parameters in the same order on every
  /// rank of tp. Empty where there are none.
  Tensor partial_grads() const { return grads_.rows(partial_begin_, partial_numel_); }
  /// The part of a flat tensor of numel() elements that belongs to a parameter, in its shape.
  Tensor part(const Tensor& flat, const Param& param) const;

 private:
  void place();
  std::vector<Tensor> find_summed_grads() const;

  std::vector<Param> params_;
  Policy policy_;
  Partition partition_;
  std::vector<Bucket> buckets_;
  std::vector<OwnRange> own_ranges_;
  Index numel_ = 0;
  Index partial_begin_ = 0, partial_numel_ = 0;
  Buffer master_memory_, copy_memory_, grad_memory_;
  Tensor values_, masters_, grads_;
  std::vector<Tensor> summed_grads_;
};

}  // namespace megalith
