#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cuda/warp_products.h"
#include "megalith/ops/kept_patch.h"
#include "megalith/runtime/step_state.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/gpu_attribute.h"
#include "megalith/tensor/cuda/shared_limit.h"

// Shared code of the kernels of attention. A block of 4 warps keeps 64 rows of one head (queries or keys) in shared
// memory, 16 per warp. It streams tiles of the other side past them: the next tile is copied while one is computed
// with.

namespace megalith::ops::cuda {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kRows = kWarps * kWarpRows;  // rows that a block keeps

constexpr float kLog2E = 1.44269504f;  // 2^(x kLog2E) = e^x

constexpr int row_blocks(int seq_len) { return (seq_len + kRows - 1) / kRows; }

enum class Dropping : bool { off, on };

/// Plain: causal, every sample full, every head with keys of its own. Documents: causal within the documents of full
/// samples. General: whatever else ops/attention.h allows. Each is instantiated apart, without an instruction for the
/// others.
enum class Form : std::uint8_t { plain, general, documents };

/// The arguments that every kernel gets about the call, by value.
struct AttentionCall {
  int seq_len, num_heads, head_dim;  // S, A, D
  int heads;                         // B*A, numbered sample * A + head; for the kernel of dk and dv: B*G
  int concurrent_heads;              // see longest_first()
  Index qkv_stride, out_stride;      // elements from one token to the next, in qkv and in out
  bool vectors;                      // every row of every tensor starts at a multiple of 16 bytes
  float scale;                       // 1 / sqrt(D)
  // Dropout. Kernels without it read none of these.
  std::uint64_t seed;
  std::uint32_t site, threshold;
  float kept_scale;  // 1 / P(keep)
  Index first_sample, first_head, num_global_heads;
  const StepState* step_state;
  // The general form. The plain one reads none of these.
  AttentionMask mask;
  int sharing;  // A / G, heads of a group
  QkvOrder order;
  const std::int32_t* lengths;  // [B], or null
  // The form of documents. It has groups of heads, too.
  const std::int32_t* document_begin;  // [B*S]
};

inline Form form_of(const AttentionShape& shape) {
  if (shape.documents == DocumentMask::given) return Form::documents;
  const bool is_plain = shape.mask == AttentionMask::causal && kv_heads_of(shape) == shape.num_heads &&
                        shape.lengths == SampleLengths::equal && shape.order == QkvOrder::groups;
  return is_plain ? Form::plain : Form::general;
}

template <class Args>
AttentionCall call_of(const Args& args, bool vectors) {
  // K and V, or Q and dO, of the heads in flight should stay in a part of the L2 cache (A100: 40 MB, H100: 50 MB).
  constexpr Index kCachedBytes = Index{16} << 20;
  const Index head_dim = args.out.dim(1) / args.num_heads, heads = args.batch * args.num_heads;
  const Index head_bytes = 2 * args.seq_len * head_dim * size_of(args.out.dtype());
  const bool drops = args.dropout.probability > 0;
  return {
      .seq_len = static_cast<int>(args.seq_len),
      .num_heads = static_cast<int>(args.num_heads),
      .head_dim = static_cast<int>(head_dim),
      .heads = static_cast<int>(heads),
      .concurrent_heads = static_cast<int>(std::clamp(kCachedBytes / head_bytes, Index{1}, heads)),
      .qkv_stride = args.qkv.dim(1),
      .out_stride = args.out.dim(1),
      .vectors = vectors,
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))),
      .seed = args.dropout.seed,
      .site = args.dropout.site,
      .threshold = attention_dropout_threshold(args.dropout.probability),
      .kept_scale = static_cast<float>(attention_kept_scale(args.dropout.probability)),
      .first_sample = args.dropout.first_row / args.seq_len,
      .first_head = args.first_head,
      .num_global_heads = args.num_global_heads,
      .step_state = drops ? static_cast<const StepState*>(args.dropout.step_state.raw()) : nullptr,
      .mask = args.mask,
      .sharing = static_cast<int>(args.num_heads / kv_heads_of(args)),
      .order = args.order,
      .lengths = args.lengths ? static_cast<const std::int32_t*>(args.lengths.raw()) : nullptr,
      .document_begin = args.document_begin ? static_cast<const std::int32_t*>(args.document_begin.raw()) : nullptr};
}

/// Whether tensors of rows of head_dim elements can be read and written by 16 bytes.
template <class... Tensors>
bool in_vectors(Index head_dim, const Tensors&... tensors) {
  const auto aligned = [&](const Tensor& t) {
    return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0 && head_dim * size_of(t.dtype()) % 16 == 0;
  };
  return (aligned(tensors) && ...);
}

/// Calls f.template operator()<T, kDim>() with the element type of the kernels and head_dim rounded up to a tile.
template <class F>
void dispatch_tiles(DType dtype, Index head_dim, const F& f) {
  const auto with_dim = [&]<class T>() {
    if (head_dim <= 32) return f.template operator()<T, 32>();
    if (head_dim <= 64) return f.template operator()<T, 64>();
    if (head_dim <= 96) return f.template operator()<T, 96>();
    if (head_dim <= 128) return f.template operator()<T, 128>();
    if (head_dim <= kMaxHeadDimOnGpu) return f.template operator()<T, kMaxHeadDimOnGpu>();
    throw BackendError(
        str("[attention] head_dim = ", head_dim, ": must be at most ", kMaxHeadDimOnGpu, " on a GPU; use more heads"));
  };
  switch (dtype) {
    case DType::f32:
      return with_dim.template operator()<float>();
    case DType::bf16:
      return with_dim.template operator()<__nv_bfloat16>();
    case DType::f16:
      return with_dim.template operator()<__half>();
    default:
      throw BackendError(str("[attention] dtype = ", name_of(dtype), ": needs f32, bf16 or f16 on a GPU"));
  }
}

/// Runs before the first step, and at every launch of a kernel of launch_tiles().
template <class Kernel>
void allow_tiles(Kernel* kernel, int shared_bytes) {
  const int most = megalith::cuda::gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (shared_bytes > most)  // sm_80 with fp32 and heads of more than 128 elements
    throw BackendError(str("[attention] shared memory of a thread block = ", shared_bytes, ": this GPU has ", most,
                           "; use half precision or more heads"));
  megalith::cuda::allow_shared_memory(kernel, shared_bytes);
}

/// Launches kernel(call, args...) with a block for every kRows rows of every head, `parts` times.
template <class... Params, class... Args>
void launch_tiles(Stream stream, void (*kernel)(AttentionCall, Params...), Index parts, int shared_bytes,
                  const AttentionCall& call, Args... args) {
  allow_tiles(kernel, shared_bytes);
  const Index blocks = Index{row_blocks(call.seq_len)} * call.heads;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
  kernel<<<grid, kThreads, static_cast<std::size_t>(shared_bytes), megalith::cuda::native(stream)>>>(call, args...);
  megalith::cuda::check(cudaGetLastError());
}

/// Which part of a head a block computes.
struct Work {
  int head;  // sample * A + head
  int turn;  // a row block of the head: 0 has the largest number of tiles
};

/// Under the causal mask the blocks of a head take from one to all of the tiles. So the longest start first, and the
/// short ones fill the gaps at the end. Heads go in groups whose streamed tensors fit in the L2 cache together.
__device__ inline Work longest_first(const AttentionCall& call) {
  const int block = static_cast<int>(blockIdx.x), blocks = row_blocks(call.seq_len);
  const int first = block / (call.concurrent_heads * blocks) * call.concurrent_heads;
  const int heads = min(call.concurrent_heads, call.heads - first), in_group = block - first * blocks;
  return {.head = first + in_group % heads, .turn = in_group / heads};
}

/// Rows of one head in global memory: [S, D], rows `stride` elements apart.
template <class T>
struct HeadRows {
  T* data;
  Index stride;
  int rows, columns;
  bool vectors;
};

/// Tokens of a head's sample that are not padding.
template <Form kForm>
__device__ int length_of(const AttentionCall& call, int head) {
  if constexpr (kForm != Form::general) return call.seq_len;
  return call.lengths == nullptr ? call.seq_len : min(max(call.lengths[head / call.num_heads], 0), call.seq_len);
}

/// The first token of the document of a token of a head's sample. A number that is none does not leave the sample.
__device__ inline int document_begin_of(const AttentionCall& call, int head, int token) {
  const int row = min(token, call.seq_len - 1);
  const int begin = call.document_begin[static_cast<Index>(head / call.num_heads) * call.seq_len + row];
  return min(max(begin, 0), row);
}

/// Heads of a group.
template <Form kForm>
__device__ int sharing_of(const AttentionCall& call) {
  if constexpr (kForm == Form::plain) return 1;
  return call.sharing;
}

enum class Part { q, k, v };

/// qkv or dqkv [B*S, (A + 2G)*D]: the rows below `rows` of q of a head, or of the k or v that it reads.
template <Form kForm, class T>
__device__ HeadRows<T> qkv_rows(const AttentionCall& call, T* qkv, int head, Part part, int rows) {
  const Index sample = head / call.num_heads, in_sample = head % call.num_heads;
  if constexpr (kForm == Form::plain) {
    const Index row = sample * call.seq_len * call.num_heads + in_sample;
    qkv += (row * 3 + static_cast<Index>(part)) * call.head_dim;
  } else {
    const Index group = in_sample / call.sharing, in_group = in_sample % call.sharing;
    const Index place =
        group * (call.sharing + 2) + (part == Part::q ? in_group : call.sharing - 1 + static_cast<Index>(part));
    const Index column =
        call.order == QkvOrder::groups ? place : place_in_parts(place, call.sharing, call.num_heads / call.sharing);
    qkv += sample * call.seq_len * call.qkv_stride + column * call.head_dim;
  }
  return {.data = qkv, .stride = call.qkv_stride, .rows = rows, .columns = call.head_dim, .vectors = call.vectors};
}

/// out or dout [B*S, A*D]: the rows of a head below `rows`.
template <class T>
__device__ HeadRows<T> out_rows(const AttentionCall& call, T* out, int head, int rows) {
  const Index sample = head / call.num_heads, in_sample = head % call.num_heads;
  return {.data = out + (sample * call.seq_len * call.num_heads + in_sample) * call.head_dim,
          .stride = call.out_stride,
          .rows = rows,
          .columns = call.head_dim,
          .vectors = call.vectors};
}

template <class T>
__device__ T* shared_memory() {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  return reinterpret_cast<T*>(shared_bytes);
}

/// Starts the copy of rows first .. first + kTileRows - 1 to a tile [kTileRows, kDim] of shared memory, 0 outside the
/// head. The caller commits, waits and synchronises. Every 4 or 8 threads copy a row, so that a thread advances by
/// constant steps and keeps one address.
template <int kTileRows, int kDim, class T>
__device__ void load_tile(T* tile, const HeadRows<const T>& from, int first) {
  constexpr int kStride = row_stride<T>(kDim), kVector = 16 / static_cast<int>(sizeof(T));
  const int thread = static_cast<int>(threadIdx.x);
  if (from.vectors) {
    constexpr int kVectors = kDim / kVector, kLanes = kVectors % 8 == 0 ? 8 : 4, kPass = kThreads / kLanes;
    static_assert(kTileRows % kPass == 0 && kPass % 16 == 0 && kVectors % kLanes == 0);
    const int row = thread / kLanes, source = first + row, column = thread % kLanes * kVector;
    const T* data = from.data + source * from.stride + column;
    tile += row * kStride + column;
#pragma unroll
    for (int i = 0; i < kTileRows; i += kPass) {
#pragma unroll
      for (int j = 0; j < kDim; j += kLanes * kVector) {
        const bool inside = source + i < from.rows && column + j < from.columns;
        // With 16 bytes of zeros nothing is read, wherever the address points.
        __pipeline_memcpy_async(tile + i * kStride + j, data + i * from.stride + j, 16, inside ? 0 : 16);
      }
    }
  } else {
    for (int i = thread; i < kTileRows * kDim; i += kThreads) {
      const int row = i / kDim, column = i % kDim, source = first + row;
      const bool inside = source < from.rows && column < from.columns;
      tile[row * kStride + column] = inside ? from.data[source * from.stride + column] : static_cast<T>(0.0f);
    }
  }
}

/// Loads two consecutive tiles: a stage.
template <int kTileRows, int kDim, class T>
__device__ void load_stage(T* stage, const HeadRows<const T>& a, const HeadRows<const T>& b, int first) {
  load_tile<kTileRows, kDim>(stage, a, first);
  load_tile<kTileRows, kDim>(stage + kTileRows * row_stride<T>(kDim), b, first);
}

/// As load_tile() for kCount of the first `rows` numbers of a head [S].
template <int kCount>
__device__ void load_statistics(float* tile, const float* from, int first, int rows) {
  static_assert(kCount <= kThreads);
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kCount) return;
  const bool inside = first + i < rows;
  __pipeline_memcpy_async(tile + i, inside ? from + first + i : from, 4, inside ? 0 : 4);
}

/// Writes the lane's two rows of sums times their factors to rows row[0..1] of a head, from first_column on.
template <class T, int kColumns>
__device__ void store_rows(const HeadRows<T>& to, const int (&row)[2], int first_column, const float (&factor)[2],
                           const Fragment<kColumns>& sums) {
  using Pair = std::conditional_t<std::is_same_v<T, float>, float2,
                                  std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row[half] >= to.rows) continue;
    T* data = to.data + row[half] * to.stride;
#pragma unroll
    for (int t = 0; t < Fragment<kColumns>::kTiles; ++t) {
      const int column = first_column + WarpProducts<T>::output_column(t);
      const T low = static_cast<T>(sums.tile[t][2 * half] * factor[half]);
      const T high = static_cast<T>(sums.tile[t][2 * half + 1] * factor[half]);
      if (to.vectors) {
        if (column < to.columns) *reinterpret_cast<Pair*>(data + column) = Pair{low, high};
      } else {
        if (column < to.columns) data[column] = low;
        if (column + 1 < to.columns) data[column + 1] = high;
      }
    }
  }
}

/// Sets sums of rows that are padding to 0.
template <int kColumns>
__device__ void clear_padding(const int (&row)[2], int length, Fragment<kColumns>& sums) {
  for_each_element(sums, [&](int /*t*/, int i, float& sum) {
    if (row[i / 2] >= length) sum = 0;
  });
}

/// Writes 0 to the kRows rows of a head from `first` on, all of them padding.
template <class T>
__device__ void store_padding(const HeadRows<T>& to, int first) {
  const int rows = min(kRows, to.rows - first);
  for (int i = static_cast<int>(threadIdx.x); i < rows * to.columns; i += kThreads)
    to.data[(first + i / to.columns) * to.stride + i % to.columns] = static_cast<T>(0.0f);
}

/// The bits of a group of elements that are kept (ops/kept_patch.h). It is not inlined, so the compiler does not
/// interleave it with the products. Interleaving pushed sums out of the registers (key_value_kernel, bf16, D = 96, 168
/// registers: 404 bytes of spills against none; nvcc 13.0). 232 instructions for 32 elements.
__device__ __noinline__ inline std::uint32_t draw_group(RandomSite site, std::uint64_t block, std::uint32_t threshold) {
  return kept_elements(site, block, threshold);
}

/// Which probabilities of one head are kept.
class KeptPatches {
 public:
  __device__ KeptPatches(const AttentionCall& call, int head) : threshold_(call.threshold), seq_len_(call.seq_len) {
    const StepState state = *call.step_state;
    site_ = {.seed = call.seed, .step = static_cast<std::uint32_t>(state.step), .site = call.site};
    const std::uint64_t sample =
        state.first_sample + static_cast<std::uint64_t>(call.first_sample + head / call.num_heads);
    const Index in_sample = call.first_head + head % call.num_heads;
    first_ = (sample * static_cast<std::uint64_t>(call.num_global_heads) + static_cast<std::uint64_t>(in_sample)) *
             kept_head_blocks(call.seq_len);
  }

  /// The lane's group of the patch from (query, key).
  __device__ std::uint32_t group(int query, int key) const {
    return draw_group(
        site_,
        first_ + kept_patch_block(seq_len_, query, key) + static_cast<unsigned>(lane_index() * KeptPatch::kGroupBlocks),
        threshold_);
  }

 private:
  RandomSite site_;
  std::uint32_t threshold_;
  int seq_len_;
  std::uint64_t first_;  // the head's first block
};

struct AllKept {
  __device__ AllKept(const AttentionCall& /*call*/, int /*head*/) {}
};

template <Dropping kDropping>
using Kept = std::conditional_t<kDropping == Dropping::on, KeptPatches, AllKept>;

/// A lane's part of a fragment of queries x keys: rows row[0..1] and, of every 8 keys, the 2 from two_keys.
struct QueryLane {
  int row[2];
  int two_keys;
};

/// `first`: the first of the warp's queries.
__device__ inline QueryLane query_lane(int first) {
  const int row = first + lane_index() / 4;
  return {.row = {row, row + 8}, .two_keys = lane_index() % 4 * 2};
}

/// Scores of keys after their query become -inf: no weight.
template <int kKeys>
__device__ void mask_future(Fragment<kKeys>& scores, const QueryLane& lane, int first_key) {
  for_each_element(scores, [&](int t, int i, float& score) {
    const int key = first_key + 8 * t + lane.two_keys + i % 2;
    if (key > lane.row[i / 2]) score = -INFINITY;
  });
}

/// Which keys the queries of a warp see.
template <Form kForm>
struct SeenKeys {
  int end;         // after the last key that a block of queries sees
  int end_of_all;  // after the last key that every query of the warp sees
  int length;
  bool is_causal;

  __device__ SeenKeys(const AttentionCall& call, int length_, int first_query, int warp_query) : length(length_) {
    is_causal = kForm == Form::plain || call.mask == AttentionMask::causal;
    end = is_causal ? min(first_query + kRows, length) : length;
    end_of_all = kForm == Form::plain ? warp_query + 1 : is_causal ? min(warp_query + 1, length) : length;
  }
  __device__ int first_tile() const { return 0; }
  /// Whether no query of the warp sees a key of a tile before `end_of_tile`.
  __device__ bool none_before(int /*end_of_tile*/) const { return false; }
  /// Whether no query of the warp sees a key from first_key on.
  __device__ bool none_from(int first_key, int warp_query) const {
    return is_causal && first_key >= warp_query + kWarpRows;
  }
  /// Scores of keys that their query does not see become -inf: no weight.
  template <int kKeys>
  __device__ void mask(Fragment<kKeys>& scores, const QueryLane& lane, int first_key) const {
    if (first_key + kKeys <= end_of_all) return;
    if constexpr (kForm == Form::plain) return mask_future(scores, lane, first_key);
    for_each_element(scores, [&](int t, int i, float& score) {
      const int key = first_key + 8 * t + lane.two_keys + i % 2;
      if (key >= length || (is_causal && key > lane.row[i / 2])) score = -INFINITY;
    });
  }
};

/// With documents: the keys from the first token of a query's document to the query. First tokens grow with queries.
template <>
struct SeenKeys<Form::documents> {
  int begin;                          // the first key that a query of the block sees
  int end, end_of_all;                // as above
  int begin_of_first, begin_of_last;  // of the warp's queries
  int begin_of[2];                    // of the lane's rows

  __device__ SeenKeys(const AttentionCall& call, int head, int first_query, int warp_query, const QueryLane& lane)
      : begin(document_begin_of(call, head, first_query)),
        end(min(first_query + kRows, call.seq_len)),
        end_of_all(warp_query + 1),
        begin_of_first(document_begin_of(call, head, warp_query)),
        begin_of_last(document_begin_of(call, head, warp_query + kWarpRows - 1)),
        begin_of{document_begin_of(call, head, lane.row[0]), document_begin_of(call, head, lane.row[1])} {}
  /// Dropout is drawn for patches of keys.
  __device__ int first_tile() const { return begin / KeptPatch::kKeys * KeptPatch::kKeys; }
  __device__ bool none_before(int end_of_tile) const { return end_of_tile <= begin_of_first; }
  __device__ bool none_from(int first_key, int warp_query) const { return first_key >= warp_query + kWarpRows; }
  template <int kKeys>
  __device__ void mask(Fragment<kKeys>& scores, const QueryLane& lane, int first_key) const {
    if (first_key >= begin_of_last && first_key + kKeys <= end_of_all) return;
    for_each_element(scores, [&](int t, int i, float& score) {
      const int key = first_key + 8 * t + lane.two_keys + i % 2;
      if (key < begin_of[i / 2] || key > lane.row[i / 2]) score = -INFINITY;
    });
  }
};

/// The keys that the queries of a warp see in a head of `length` tokens that are not padding.
template <Form kForm>
__device__ SeenKeys<kForm> seen_keys(const AttentionCall& call, int head, int length, int first_query,
                                     const QueryLane& lane) {
  const int warp_query = first_query + warp_index() * kWarpRows;
  if constexpr (kForm == Form::documents) {
    return {call, head, first_query, warp_query, lane};
  } else {
    return {call, length, first_query, warp_query};
  }
}

/// Which elements of fragments of 16 queries x kKeys keys dropout keeps, one fragment after the other. A patch has the
/// keys of one or of several.
template <int kKeys>
struct KeptOfQueries {
  static_assert(KeptPatch::kKeys % kKeys == 0 && kKeys % 16 == 0);
  int column = -1;         // of the patch
  std::uint32_t bits = 0;  // of the lane's group

  /// The bits of the fragment from first_key on: kept_bit_of_queries(4 t + i) for tile[t][i]. warp_query: the first of
  /// the warp's queries.
  __device__ std::uint32_t next(const KeptPatches& kept, int warp_query, int first_key) {
    if (column != first_key / KeptPatch::kKeys) {
      column = first_key / KeptPatch::kKeys;
      bits = kept.group(warp_query, first_key);
    }
    return bits >> first_key % KeptPatch::kKeys / 4;
  }
};

}  // namespace megalith::ops::cuda
