#pragma once
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/params/param_spec.h"
#include "megalith/params/partition.h"
#include "megalith/params/policy.h"
#include "megalith/tensor/master_values.h"
#include "megalith/tensor/memory.h"

namespace megalith {

/// A parameter of one rank: views into flat buffers.
struct Param {
  ParamSpec spec;
  Tensor value;  ///< the copy that layers read, in the compute dtype
  /// What the optimizer updates: `value` itself if both dtypes are equal; otherwise undefined if the buffer
  /// is_sharded().
  MasterValues masters;
  Tensor grad;  ///< main gradient, in the master dtype; undefined in a buffer without gradients
  /// Whether `grad` lies in a window (ParamBuffer): every microbatch overwrites it, and it holds no sums.
  bool grad_in_window = false;
  /// f64 [spec.grad_squares] whose sum is that of the squares of `grad`. The op that writes `grad` writes it, too. Only
  /// where nothing changes `grad` after the op: a step has one microbatch, and no other rank holds the parameter.
  Tensor grad_squares;
  Index offset = 0;  ///< first element in the flat buffers

  const std::string& name() const { return spec.slice.name; }
  /// A view without the padding rows of a tensor shaped like this parameter (value, grad, a moment).
  Tensor without_padding(const Tensor& like) const { return like.rows(0, spec.slice.local[0]); }
  /// The masters of the same elements, flat.
  MasterValues masters_without_padding() const { return masters.rows(0, spec.slice.local.numel()); }
};

/// The contents of a buffer. `values` is enough to read a model; there are no gradients, and so no moments.
enum class ParamContents : std::uint8_t { values, values_and_gradients };

/// Exactly one rank of a model copy is the owner of a parameter: it counts it in the gradient norm and writes it to
/// checkpoints.
enum class Ownership : std::uint8_t { owner, replica };

/// The number of gradient windows of a buffer: backward writes one layer's while the other layer's is summed.
inline constexpr int kGradWindows = 2;
inline constexpr const char* kGradWindowsOwner = "gradient windows";

/// A flat range [begin, end) of whole parameters of one placement that one call communicates. Elements that pad it to
/// equal shards stay 0.
struct Bucket {
  Index begin = 0, end = 0;
  grid::Placement placement = grid::kSharded;
  Ownership ownership = Ownership::owner;
  std::vector<Index> layers = {};  ///< whose parameters it holds, descending; empty: parameters outside the layers
  int window = kNoWindow;          ///< of its gradients
  static constexpr int kNoWindow = -1;

  bool has_window() const { return window != kNoWindow; }
  Index numel() const { return end - begin; }
};

/// A range of elements that this rank's optimizer updates, and its positions: in tensors over all elements, and in
/// tensors over only the updated ones.
struct OwnRange {
  Index in_whole = 0, in_own = 0, count = 0;

  Tensor of_whole(const Tensor& flat) const { return flat.rows(in_whole, count); }
  Tensor of_own(const Tensor& flat) const { return flat.rows(in_own, count); }
};

/// The parameters of one rank that have one reduction group (grid::reduction_group), in flat buffers. First come the
/// parameters that other ranks of the model copy also hold, in buckets that have the same layout on all of them, for
/// owners and replicas. Among the others, those with overwritten gradients come first, so that the gradients to be
/// cleared are one or two ranges. Buckets cover the buffers and do not overlap. Every shard is aligned like a
/// parameter. Positions depend only on the specs and the partition. allocate() takes the memory. References to params
/// stay valid for the buffer's life.
///
/// With ShardedState::gradients the weights of layers' GEMMs that no other rank of the model copy holds have gradient
/// windows. They are the last in the buffers, a bucket per layer. The buckets use kGradWindows windows in turn: there a
/// backward pass writes the gradients of its microbatch, at addresses that are the same in every pass. The sums over
/// microbatches and ranks are kept as this rank's shards. Other gradients stay whole: vectors are small, and a tied
/// table is written from the beginning to the end of a pass.
class ParamBuffer {
 public:
  /// Throws InternalError for placements of more than one grid, or that grid::check() refuses.
  ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy, const Partition& partition,
              ParamContents contents = ParamContents::values_and_gradients);
  /// For a rank that shares its parameters with no other.
  ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy);
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  /// By owner: "parameters" (the masters; of split ones what their copy lacks), "gradients" (numel() elements, because
  /// GEMMs add to all of them, and Param::grad_squares) and, if layers read another dtype, "parameter copies" (numel()
  /// elements). With ShardedState::gradients "gradients" are the whole ones and this rank's shards of the others, and
  /// there are "gradient windows": two times the largest layer.
  BytesByOwner bytes() const;
  /// Takes these bytes from the ledger.
  void allocate(MemoryLedger& ledger);

  std::span<Param> params() { return params_; }
  std::span<const Param> params() const { return params_; }
  /// Null if there is no parameter of that name.
  Param* find(std::string_view name);
  /// Throws InternalError for an unknown name.
  Param& at(std::string_view name);

  grid::GridKind grid() const { return grid_; }
  const Policy& policy() const { return policy_; }
  bool has_gradients() const { return contents_ == ParamContents::values_and_gradients; }
  bool has_copy() const { return policy_.has_copy(); }
  Index numel() const { return numel_; }  ///< with alignment gaps, which stay 0
  /// A flat view, [numel()].
  const Tensor& values() const { return values_; }
  /// The gradients that are whole, flat: [numel()], without windows' buckets. Undefined without gradients.
  const Tensor& grads() const { return grads_; }
  /// This rank's shards of the gradients with windows, flat, in the order of the elements: empty without windows.
  const Tensor& grad_shards() const { return grad_shards_; }
  const std::vector<Tensor>& grad_windows() const { return grad_windows_; }
  /// Flat: values() itself if both dtypes are equal, else [own_numel()]; of split masters MasterValues::low.
  const Tensor& master_memory() const { return masters_; }

  /// In the order in which backward completes them: the last one of the buffers first.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int shards() const { return partition_.shards; }
  /// Whether this rank updates only its shards. False with one shard.
  bool is_sharded() const { return partition_.sharding == Sharding::optimizer && partition_.shards > 1; }
  /// Whether gradients of layers' weights have windows. Implies is_sharded().
  bool shards_gradients() const {
    return is_sharded() && has_gradients() && partition_.shard == ShardedState::gradients;
  }
  /// A bucket of a flat tensor of numel() elements, and this rank's shard of it.
  Tensor part(const Tensor& flat, const Bucket& bucket) const { return flat.rows(bucket.begin, bucket.numel()); }
  Tensor own_shard(const Tensor& flat, const Bucket& bucket) const;
  /// The gradients of a bucket where backward writes them: in its window, or among the whole ones.
  Tensor grads_of(const Bucket& bucket) const;
  /// This rank's shard of grads_of(): where a reduce-scatter in place leaves its result.
  Tensor own_shard_of_grads(const Bucket& bucket) const;
  /// Where the sums of this rank's shard of a bucket are kept: elsewhere only if the bucket has a window.
  Tensor own_grads(const Bucket& bucket) const;
  /// The same of a range of own_ranges(), or of a part of one.
  Tensor own_grads(const OwnRange& range) const;
  /// The parts of a bucket's window that belong to no parameter. They must be 0 in a sum, and other buckets write them.
  const std::vector<Tensor>& window_gaps(std::size_t bucket) const { return window_gaps_[bucket]; }
  /// The bytes that a rank sends in a step of so many microbatches to sum its gradients: of a reduce-scatter of every
  /// bucket, and of an all-gather unless the optimizer is sharded.
  Index sum_bytes(Index microbatches) const;

  /// The elements that this rank updates: one range of all elements, or its shard of each bucket, in the order of
  /// buckets().
  const std::vector<OwnRange>& own_ranges() const { return own_ranges_; }
  /// Those in grad_shards(), and their positions there.
  std::vector<OwnRange> shard_ranges() const;
  /// What this rank keeps of the sums of a parameter's gradient: `grad` itself, or the parts in its shard.
  std::vector<Tensor> kept_grads(const Param& param) const;
  Index own_numel() const { return is_sharded() ? numel_ / partition_.shards : numel_; }
  /// The masters of such a range, or of a part of one.
  MasterValues own_masters(const OwnRange& range) const;
  /// The gradients that must be zero when a step begins (FirstGrad::added), in as few flat ranges as possible.
  const std::vector<Tensor>& added_grads() const { return added_grads_; }
  /// The gradients that are partial along tp: a flat range of whole buckets, with the same parameters in the same order
  /// on every rank of tp. Empty if there are none.
  Tensor partial_grads() const { return grads_.rows(partial_begin_, partial_numel_); }
  /// The part of a flat tensor of numel() elements that belongs to a parameter, in its shape.
  Tensor part(const Tensor& flat, const Param& param) const;

 private:
  void place();
  bool gets_window(const ParamSpec& spec) const;
  void place_windows();
  void allocate_gradients(MemoryLedger& ledger);
  const Bucket& bucket_of(const Param& param) const;
  std::vector<Tensor> gaps_of(const Bucket& bucket) const;
  std::vector<Tensor> find_added_grads() const;
  Index squares_bytes() const;
  /// The masters of a parameter, whose elements this rank updates; `whole` has its shape.
  MasterValues masters_of(const Param& param) const;
  Index shards_bytes() const { return grad_shards_ ? grad_shards_.bytes() : 0; }
  Index windows_bytes() const;

  std::vector<Param> params_;  // as many as there will be: by_name_ points into it
  std::unordered_map<std::string_view, Param*> by_name_;
  Policy policy_;
  Partition partition_;
  ParamContents contents_;
  grid::GridKind grid_ = grid::GridKind::dense;
  std::vector<Bucket> buckets_;
  std::vector<OwnRange> own_ranges_;
  Index numel_ = 0, whole_numel_ = 0;  // of the second the gradients are whole: the first elements
  Index partial_begin_ = 0, partial_numel_ = 0;
  Buffer master_memory_, copy_memory_, grad_memory_, window_memory_;
  Tensor values_, masters_, grads_, grad_shards_;
  Tensor carries_;  ///< MasterValues::carries, of own_numel() elements
  std::vector<Tensor> grad_windows_;
  std::vector<std::vector<Tensor>> window_gaps_;  // of each bucket
  std::vector<Tensor> added_grads_;
};

}  // namespace megalith
