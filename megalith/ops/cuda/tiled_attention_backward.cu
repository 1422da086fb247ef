#include "megalith/ops/attention_kernels.h"
#include "megalith/ops/cuda/attention_tiles.h"
#include "megalith/ops/cuda/tiled_attention.h"

// Three kernels: delta = rowsum(dO * O); dK and dV by blocks of keys; dQ by blocks of queries. The last two both
// recompute S = Q K^T and dP = dO V^T: seven products in all. One kernel that adds into dQ atomically takes five, but
// atomics would not give the same bits twice. Names as in Dao 2023, section 2.3.2. B32 H12 S1024 D64 on an H200: 785
// us without dropout (cuDNN 552). Counted as five products, that is 24 % of a large product's rate.

namespace megalith::ops::cuda {
namespace {

/// Sizes, in shared memory, of the backward kernels for one element type and one head_dim. First come two tensors
/// [kRows, kDim] that stay, then two stages of two tensors [kTileRows, kDim], then scratch of the warps, then f32
/// statistics.
template <class T, int kDim>
struct BackwardTiles {
  static constexpr int kTileRows = sizeof(T) == 2 || kDim <= 96 ? 32 : 16;
  static constexpr int kStride = row_stride<T>(kDim);
  static constexpr int kKept = kRows * kStride, kTile = kTileRows * kStride;
  static constexpr int kScratch = WarpProducts<T>::scratch(kTileRows);
  static constexpr int kElements = 2 * kKept + 4 * kTile + kWarps * kScratch;
  static constexpr int kStatistics = 4 * kTileRows;  // two stages of log_sum_exp and delta
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(T)) + kStatistics * static_cast<int>(sizeof(float));
  // Above 128 columns the sums of both dK and dV do not fit in registers. Two blocks take half of the columns each.
  static constexpr int kColumns = kDim <= 128 ? kDim : kDim / 2;
  // Blocks that should fit on an SM: what registers and shared memory allow.
  static constexpr int kKeyBlocks = kDim > 128 ? 1 : kDim > 64 || sizeof(T) == 4 ? 2 : 3;
  static constexpr int kQueryBlocks = kDim > 128 ? 1 : kDim > 96 || sizeof(T) == 4 ? 2 : 3;
};

/// The tensors of a call. log_sum_exp, delta [B, A, S]; the others as in ops/attention.h.
template <class T>
struct BackwardTensors {
  const T *dout, *qkv;
  const float *log_sum_exp, *delta;
  const std::int32_t* document_end;  // [B*S], of documents
  T* dqkv;
};

constexpr int kDeltaLanes = 8;  // lanes of one row of the delta kernel

/// delta [B, A, S] = rowsum(dout * out), 0 for padding, 8 lanes per row. Reads out and dout once, writes 4 bytes
/// per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(AttentionCall call, const T* out, const T* dout, float* delta) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  struct alignas(16) Vector {
    T elements[kVector];
  };
  const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const Index row = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) / kDeltaLanes;  // (b * S + i) * A + a
  const bool inside = row < static_cast<Index>(call.heads) * call.seq_len;
  const Index token = row / call.num_heads, sample = token / call.seq_len;
  const bool attends =
      inside && (call.lengths == nullptr || static_cast<int>(token % call.seq_len) < call.lengths[sample]);
  const T *x = out + row * call.head_dim, *dx = dout + row * call.head_dim;
  float sum = 0;
  if (attends && call.vectors) {
    for (int column = lane * kVector; column < call.head_dim; column += kDeltaLanes * kVector) {
      const Vector a = *reinterpret_cast<const Vector*>(x + column), b = *reinterpret_cast<const Vector*>(dx + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum = fmaf(static_cast<float>(a.elements[i]), static_cast<float>(b.elements[i]), sum);
      }
    }
  } else if (attends) {
    for (int column = lane; column < call.head_dim; column += kDeltaLanes) {
      sum = fmaf(static_cast<float>(x[column]), static_cast<float>(dx[column]), sum);
    }
  }
#pragma unroll
  for (int step = 1; step < kDeltaLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (!inside || lane != 0) return;
  delta[(sample * call.num_heads + row % call.num_heads) * call.seq_len + token % call.seq_len] = sum;
}

/// document_end [B*S]: after the last token of a token's document. A thread takes a token, and searches among the
/// begins, which grow: log2(S) reads of 4 bytes, most of them from the cache.
__global__ void __launch_bounds__(kThreads)
    document_end_kernel(const std::int32_t* document_begin, int seq_len, Index tokens, std::int32_t* document_end) {
  const Index token = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= tokens) return;
  const std::int32_t* begins = document_begin + token / seq_len * seq_len;
  const int row = static_cast<int>(token % seq_len);
  int in_document = row, outside = seq_len;  // the last row known to be in it, the first known not to be
  while (outside - in_document > 1) {
    const int middle = (in_document + outside) / 2;
    (begins[middle] <= row ? in_document : outside) = middle;
  }
  document_end[token] = outside;
}

/// The factors that turn scores into gradients.
struct Factors {
  float scale_log2, kept_scale;
};

__device__ inline Factors factors_of(const AttentionCall& call) {
  return {.scale_log2 = call.scale * kLog2E, .kept_scale = call.kept_scale};
}

/// Replaces a score by P, dropped out but without the factor kept_scale, and its dP by dS / scale.
template <Dropping kDropping>
__device__ void differentiate(float& score, float& dprob, const Factors& factors, float2 lse_and_delta, bool kept) {
  const float p = exp2_flushed(fmaf(score, factors.scale_log2, -kLog2E * lse_and_delta.x));
  if constexpr (kDropping == Dropping::on) {
    score = kept ? p : 0;
    dprob = p * ((kept ? dprob * factors.kept_scale : 0) - lse_and_delta.y);
  } else {
    score = p;
    dprob = p * (dprob - lse_and_delta.y);
  }
}

/// A lane's part of a fragment of keys x queries: keys row[0..1] and, of every 8 queries, the 2 from two_queries.
struct KeyLane {
  int row[2];
  int two_queries;
};

/// `first`: the first of the warp's keys.
__device__ inline KeyLane key_lane(int first) {
  const int row = first + lane_index() / 4;
  return {.row = {row, row + 8}, .two_queries = lane_index() % 4 * 2};
}

/// Scores of queries before their key become -inf: no weight.
template <int kQueries>
__device__ void mask_past(Fragment<kQueries>& scores, const KeyLane& lane, int first_query) {
  for_each_element(scores, [&](int t, int i, float& score) {
    const int query = first_query + 8 * t + lane.two_queries + i % 2;
    if (lane.row[i / 2] > query) score = -INFINITY;
  });
}

/// The first query that sees keys of a block.
template <Form kForm>
__device__ int first_query_of(const AttentionCall& call, int first_key) {
  return kForm == Form::plain || call.mask == AttentionMask::causal ? first_key : 0;
}

/// Which queries the keys of a block, of a warp and of a lane are seen by.
template <Form kForm>
struct SeeingQueries {
  int begin, end;  // of a block
  bool sees_all;

  __device__ SeeingQueries(const AttentionCall& call, const std::int32_t* /*document_end*/, int /*sample*/,
                           int first_key, const KeyLane& /*lane*/, int length)
      : begin(first_query_of<kForm>(call, first_key)),
        end(length),
        sees_all(kForm == Form::general && call.mask == AttentionMask::full) {}
  /// Whether the warp's keys, which begin at warp_key, are seen by no query of a tile.
  __device__ bool none_in(int /*first_query*/, int end_of_tile, int warp_key) const {
    return !sees_all && end_of_tile <= warp_key;
  }
  /// Scores of queries that do not see their key become -inf.
  template <int kQueries>
  __device__ void mask(Fragment<kQueries>& scores, const KeyLane& lane, int first_query, int warp_key) const {
    if (!sees_all && first_query < warp_key + kWarpRows - 1) mask_past(scores, lane, first_query);
  }
};

/// With documents: a key is seen from itself to the end of its document.
template <>
struct SeeingQueries<Form::documents> {
  int begin, end;
  int end_of_first, end_of_last;  // for the warp's keys
  int end_of[2];                  // for the lane's keys

  __device__ SeeingQueries(const AttentionCall& call, const std::int32_t* document_end, int sample, int first_key,
                           const KeyLane& lane, int /*length*/)
      : begin(first_key) {
    const std::int32_t* ends = document_end + static_cast<Index>(sample) * call.seq_len;
    const auto end_at = [&](int key) { return ends[min(key, call.seq_len - 1)]; };
    end = end_at(first_key + kRows - 1);
    const int warp_key = first_key + warp_index() * kWarpRows;
    end_of_first = end_at(warp_key);
    end_of_last = end_at(warp_key + kWarpRows - 1);
    end_of[0] = end_at(lane.row[0]);
    end_of[1] = end_at(lane.row[1]);
  }
  __device__ bool none_in(int first_query, int end_of_tile, int warp_key) const {
    return end_of_tile <= warp_key || first_query >= end_of_last;
  }
  template <int kQueries>
  __device__ void mask(Fragment<kQueries>& scores, const KeyLane& lane, int first_query, int warp_key) const {
    if (first_query >= warp_key + kWarpRows - 1 && first_query + kQueries <= end_of_first) return;
    for_each_element(scores, [&](int t, int i, float& score) {
      const int query = first_query + 8 * t + lane.two_queries + i % 2;
      if (lane.row[i / 2] > query || query >= end_of[i / 2]) score = -INFINITY;
    });
  }
};

/// Which elements of fragments of 16 keys x queries dropout keeps. The four warps of a block draw the patches of 64
/// queries x the block's keys, one each, and every warp takes the bits of its keys from all four.
template <Dropping kDropping>
struct KeptOfKeys {
  std::uint32_t bits = 0;  // of 64 queries

  /// All threads call it for every tile of queries. first_key: of the block. in_patches: the tile's place among the
  /// queries of the block, which begin with a patch.
  __device__ void draw(const KeptPatches& kept, int first_query, int in_patches, int first_key) {
    __shared__ std::uint32_t shared_groups[kWarps][kWarp];
    if (in_patches % kRows != 0) return;
    shared_groups[warp_index()][lane_index()] =
        transposed(kept.group(first_query + warp_index() * KeptPatch::kQueries, first_key));
    __syncthreads();  // and the next tile begins with one, before shared_groups is written again
    std::uint32_t groups[kWarps];
#pragma unroll
    for (int r = 0; r < kWarps; ++r) groups[r] = shared_groups[r][lane_index()];
    bits = kept_of_sixteen_keys(groups, warp_index());
  }
  /// Those of a tile of queries: kept_bit_of_keys(4 t + i) for tile[t][i].
  __device__ std::uint32_t at(int in_patches) const { return bits >> in_patches % kRows / 4; }
};
static_assert(kRows == KeptPatch::kKeys && kRows == kWarps * KeptPatch::kQueries);

/// The inputs of a block of keys from one of its heads.
template <class T, Dropping kDropping, Form kForm>
struct HeadOfGroup {
  Kept<kDropping> kept;
  HeadRows<const T> q, dout;
  Index first_statistic;

  __device__ HeadOfGroup(const AttentionCall& call, const BackwardTensors<T>& tensors, int head, int length)
      : kept(call, head),
        q(qkv_rows<kForm>(call, tensors.qkv, head, Part::q, length)),
        dout(out_rows(call, tensors.dout, head, length)),
        first_statistic(static_cast<Index>(head) * call.seq_len) {}
};

/// A block computes dk and dv of 64 keys of one group (for D > 128, half of their columns), a warp 16 of them. It goes
/// over the heads of the group and the tiles of queries from the diagonal on, to the end of the last key's document, or
/// over all. It computes transposed, so that
/// P^T and dS^T come out as the left sides of the next products. Under the causal mask it reads k, v once. It reads q,
/// dout, log_sum_exp, delta of (S + kRows) / 2 queries per head and block on average, almost all from the L2 cache. It
/// writes dk, dv once. Random words: four Philox blocks for 32 scores. Longer than a function should be: its sums stay
/// in registers.
template <class T, int kDim, Dropping kDropping, Form kForm>
__global__ void __launch_bounds__(kThreads, (BackwardTiles<T, kDim>::kKeyBlocks))
    key_value_kernel(AttentionCall call, BackwardTensors<T> tensors) {
  using Tiles = BackwardTiles<T, kDim>;
  using Products = WarpProducts<T>;
  constexpr int kQueries = Tiles::kTileRows, kStride = Tiles::kStride, kTile = Tiles::kTile;
  const Work work = longest_first(call);
  const int first_key = work.turn * kRows, warp_key = first_key + warp_index() * kWarpRows;
  const int first_column = Tiles::kColumns == kDim ? 0 : static_cast<int>(blockIdx.y) * Tiles::kColumns;
  const int sharing = sharing_of<kForm>(call), first_head = work.head * sharing;
  const int length = length_of<kForm>(call, first_head);
  const auto gradient_of = [&](Part part) {
    return qkv_rows<kForm>(call, tensors.dqkv, first_head, part, call.seq_len);
  };
  if constexpr (kForm == Form::general) {
    if (first_key >= length) {  // both halves of the columns write the same zeros
      store_padding(gradient_of(Part::k), first_key);
      store_padding(gradient_of(Part::v), first_key);
      return;
    }
  }
  const KeyLane lane = key_lane(warp_key);
  HeadOfGroup<T, kDropping, kForm> head(call, tensors, first_head, length);

  T* k_tile = shared_memory<T>();     // [kRows, kDim]
  T* v_tile = k_tile + Tiles::kKept;  // [kRows, kDim]
  T* stages = v_tile + Tiles::kKept;  // 2 x (q, dout) [kQueries, kDim]
  T* scratch = stages + 4 * kTile + warp_index() * Tiles::kScratch;
  auto* statistics = reinterpret_cast<float*>(k_tile + Tiles::kElements);  // 2 x (log_sum_exp, delta) [kQueries]
  const auto load_queries = [&](int first_query, int stage) {
    load_stage<kQueries, kDim>(stages + stage * 2 * kTile, head.q, head.dout, first_query);
    float* row = statistics + stage * 2 * kQueries;
    load_statistics<kQueries>(row, tensors.log_sum_exp + head.first_statistic, first_query, length);
    load_statistics<kQueries>(row + kQueries, tensors.delta + head.first_statistic, first_query, length);
    __pipeline_commit();
  };
  const auto keys_of = [&](Part part) { return qkv_rows<kForm>(call, tensors.qkv, first_head, part, length); };
  const SeeingQueries<kForm> seeing(call, tensors.document_end, first_head / call.num_heads, first_key, lane, length);
  const int begin = seeing.begin;
  load_tile<kRows, kDim>(k_tile, keys_of(Part::k), first_key);
  load_tile<kRows, kDim>(v_tile, keys_of(Part::v), first_key);
  load_queries(begin, 0);

  const T *k_rows = k_tile + warp_index() * kWarpRows * kStride, *v_rows = k_rows + Tiles::kKept;
  const Factors factors = factors_of(call);
  KeptOfKeys<kDropping> kept_of_keys;
  Fragment<Tiles::kColumns> dk{}, dv{};  // [16, D], without scale and kept_scale
  const auto add_head = [&] {
    for (int first_query = begin, stage = 0; first_query < seeing.end; first_query += kQueries, stage ^= 1) {
      __pipeline_wait_prior(0);
      __syncthreads();  // this stage has arrived, and all warps have finished the other
      if (first_query + kQueries < seeing.end) load_queries(first_query + kQueries, stage ^ 1);
      if constexpr (kDropping == Dropping::on)
        kept_of_keys.draw(head.kept, first_query, first_query - begin, first_key);
      if (seeing.none_in(first_query, first_query + kQueries, warp_key)) continue;
      const std::uint32_t kept_bits = kept_of_keys.at(first_query - begin);
      const T *q_tile = stages + stage * 2 * kTile, *dout_tile = q_tile + kTile;
      const float *lse = statistics + stage * 2 * kQueries + lane.two_queries, *delta = lse + kQueries;
      Fragment<kQueries> scores{}, dprobs{};
      Products::template add_transposed<kDim>(scores, k_rows, q_tile);
      Products::template add_transposed<kDim>(dprobs, v_rows, dout_tile);
      seeing.mask(scores, lane, first_query, warp_key);
      // A query past the end has q, dout, log_sum_exp and delta 0. So P = 1 and dS = 0: it adds nothing.
      for_each_element(scores, [&](int t, int i, float& score) {
        const int column = 8 * t + i % 2;
        const bool keep = (kept_bits & kept_bit_of_keys(4 * t + i)) != 0;
        differentiate<kDropping>(score, dprobs.tile[t][i], factors, make_float2(lse[column], delta[column]), keep);
      });
      Products::template add<kStride>(dv, scores, dout_tile + first_column, scratch);
      Products::template add<kStride>(dk, dprobs, q_tile + first_column, scratch);
    }
  };
  if constexpr (kForm == Form::plain) {
    add_head();
  } else {
    for (int next = first_head + 1;; ++next) {
      add_head();
      if (next == first_head + sharing) break;
      head = HeadOfGroup<T, kDropping, kForm>(call, tensors, next, length);
      __syncthreads();  // all warps have finished the previous head
      load_queries(begin, 0);
    }
  }
  if constexpr (kForm == Form::general) {
    clear_padding(lane.row, length, dk);
    clear_padding(lane.row, length, dv);
  }
  const float kept_scale = kDropping == Dropping::on ? call.kept_scale : 1.0f;
  const float dv_factor[2] = {kept_scale, kept_scale}, dk_factor[2] = {call.scale, call.scale};
  store_rows(gradient_of(Part::v), lane.row, first_column, dv_factor, dv);
  store_rows(gradient_of(Part::k), lane.row, first_column, dk_factor, dk);
}

/// A block computes dq of 64 queries of one head, a warp 16 of them, over the tiles of keys that they see. Reads q,
/// dout, log_sum_exp, delta once. Reads k, v of (S + kRows) / 2 keys per block on average, almost all from the L2
/// cache. Writes dq once. Random words: four Philox blocks for 32 scores.
template <class T, int kDim, Dropping kDropping, Form kForm>
__global__ void __launch_bounds__(kThreads, (BackwardTiles<T, kDim>::kQueryBlocks))
    query_kernel(AttentionCall call, BackwardTensors<T> tensors) {
  using Tiles = BackwardTiles<T, kDim>;
  using Products = WarpProducts<T>;
  constexpr int kKeys = Tiles::kTileRows, kStride = Tiles::kStride, kTile = Tiles::kTile;
  const Work work = longest_first(call);
  const int first_query = (row_blocks(call.seq_len) - 1 - work.turn) * kRows;
  const int warp_query = first_query + warp_index() * kWarpRows;
  const QueryLane lane = query_lane(warp_query);
  const int length = length_of<kForm>(call, work.head);
  const auto gradient = [&] { return qkv_rows<kForm>(call, tensors.dqkv, work.head, Part::q, call.seq_len); };
  if constexpr (kForm == Form::general) {
    if (first_query >= length) return store_padding(gradient(), first_query);
  }
  const Kept<kDropping> kept(call, work.head);
  const auto rows_of = [&](Part part) { return qkv_rows<kForm>(call, tensors.qkv, work.head, part, length); };
  const HeadRows<const T> k = rows_of(Part::k), v = rows_of(Part::v);

  T* q_tile = shared_memory<T>();        // [kRows, kDim]
  T* dout_tile = q_tile + Tiles::kKept;  // [kRows, kDim]
  T* stages = dout_tile + Tiles::kKept;  // 2 x (k, v) [kKeys, kDim]
  T* scratch = stages + 4 * kTile + warp_index() * Tiles::kScratch;
  load_tile<kRows, kDim>(q_tile, rows_of(Part::q), first_query);
  load_tile<kRows, kDim>(dout_tile, out_rows(call, tensors.dout, work.head, length), first_query);
  const SeenKeys<kForm> seen = seen_keys<kForm>(call, work.head, length, first_query, lane);
  load_stage<kKeys, kDim>(stages, k, v, seen.first_tile());
  __pipeline_commit();

  float2 lse_and_delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool inside = lane.row[half] < length;
    const Index at = static_cast<Index>(work.head) * call.seq_len + lane.row[half];
    lse_and_delta[half] = inside ? make_float2(tensors.log_sum_exp[at], tensors.delta[at]) : make_float2(0, 0);
  }
  const T *q_rows = q_tile + warp_index() * kWarpRows * kStride, *dout_rows = q_rows + Tiles::kKept;
  const Factors factors = factors_of(call);
  KeptOfQueries<kKeys> kept_of_queries;
  Fragment<kDim> dq{};  // [16, D], without scale
  for (int first_key = seen.first_tile(), stage = 0; first_key < seen.end; first_key += kKeys, stage ^= 1) {
    __pipeline_wait_prior(0);
    __syncthreads();  // this stage has arrived, and all warps have finished the other
    if (first_key + kKeys < seen.end) {
      load_stage<kKeys, kDim>(stages + (stage ^ 1) * 2 * kTile, k, v, first_key + kKeys);
      __pipeline_commit();
    }
    if (seen.none_from(first_key, warp_query) || seen.none_before(first_key + kKeys)) continue;
    std::uint32_t kept_bits = 0;
    if constexpr (kDropping == Dropping::on) kept_bits = kept_of_queries.next(kept, warp_query, first_key);
    const T *k_tile = stages + stage * 2 * kTile, *v_tile = k_tile + kTile;
    Fragment<kKeys> scores{}, dprobs{};
    Products::template add_transposed<kDim>(scores, q_rows, k_tile);
    Products::template add_transposed<kDim>(dprobs, dout_rows, v_tile);
    seen.mask(scores, lane, first_key);
    for_each_element(scores, [&](int t, int i, float& score) {
      const bool keep = (kept_bits & kept_bit_of_queries(4 * t + i)) != 0;
      differentiate<kDropping>(score, dprobs.tile[t][i], factors, lse_and_delta[i / 2], keep);
    });
    Products::template add<kStride>(dq, dprobs, k_tile, scratch);
  }
  if constexpr (kForm == Form::general) clear_padding(lane.row, length, dq);
  const float factor[2] = {call.scale, call.scale};
  store_rows(gradient(), lane.row, 0, factor, dq);
}

/// The two kernels of a call.
template <class T>
struct Kernels {
  void (*key_value)(AttentionCall, BackwardTensors<T>);
  void (*query)(AttentionCall, BackwardTensors<T>);
};
template <class T, int kDim, Form kForm>
Kernels<T> kernels_in(const AttentionShape& shape) {
  if (shape.dropout > 0)
    return {key_value_kernel<T, kDim, Dropping::on, kForm>, query_kernel<T, kDim, Dropping::on, kForm>};
  return {key_value_kernel<T, kDim, Dropping::off, kForm>, query_kernel<T, kDim, Dropping::off, kForm>};
}
template <class T, int kDim>
Kernels<T> kernels_of(const AttentionShape& shape) {
  switch (form_of(shape)) {
    case Form::plain:
      return kernels_in<T, kDim, Form::plain>(shape);
    case Form::documents:
      return kernels_in<T, kDim, Form::documents>(shape);
    default:
      return kernels_in<T, kDim, Form::general>(shape);
  }
}

}  // namespace

void prepare_tiled_attention_backward(const AttentionShape& shape) {
  dispatch_tiles(shape.dtype, shape.head_dim, [&]<class T, int kDim>() {
    constexpr int kBytes = BackwardTiles<T, kDim>::kBytes;
    const Kernels<T> kernels = kernels_of<T, kDim>(shape);
    allow_tiles(kernels.key_value, kBytes);
    allow_tiles(kernels.query, kBytes);
  });
}

Index tiled_attention_backward_scratch_bytes(Index batch, Index seq_len, Index num_heads) {
  return batch * num_heads * seq_len * size_of(DType::f32);
}

void tiled_attention_backward(Stream stream, const AttentionBackward& args, const Tensor& scratch) {
  if (args.batch == 0) return;
  const AttentionShape shape = shape_of(args);
  const bool vectors = in_vectors(shape.head_dim, args.dout, args.qkv, args.out, args.dqkv);
  const AttentionCall call = call_of(args, vectors);
  dispatch_tiles(shape.dtype, shape.head_dim, [&]<class T, int kDim>() {
    using Tiles = BackwardTiles<T, kDim>;
    auto* delta = static_cast<float*>(scratch.raw());
    const auto* dout = static_cast<const T*>(args.dout.raw());
    const Index delta_rows = Index{call.heads} * call.seq_len;
    const auto delta_blocks = static_cast<unsigned>(ceil_div(delta_rows * kDeltaLanes, kThreads));
    delta_kernel<<<delta_blocks, kThreads, 0, megalith::cuda::native(stream)>>>(
        call, static_cast<const T*>(args.out.raw()), dout, delta);
    megalith::cuda::check(cudaGetLastError());

    auto* document_end = reinterpret_cast<std::int32_t*>(delta + delta_rows);
    if (args.document_begin) {
      const Index tokens = args.batch * args.seq_len;
      document_end_kernel<<<static_cast<unsigned>(ceil_div(tokens, kThreads)), kThreads, 0,
                            megalith::cuda::native(stream)>>>(call.document_begin, call.seq_len, tokens, document_end);
      megalith::cuda::check(cudaGetLastError());
    }
    const BackwardTensors<T> tensors{.dout = dout,
                                     .qkv = static_cast<const T*>(args.qkv.raw()),
                                     .log_sum_exp = static_cast<const float*>(args.log_sum_exp.raw()),
                                     .delta = delta,
                                     .document_end = document_end,
                                     .dqkv = static_cast<T*>(args.dqkv.raw())};
    const Kernels<T> kernels = kernels_of<T, kDim>(shape);
    AttentionCall of_groups = call;
    of_groups.heads /= call.sharing;
    launch_tiles(stream, kernels.key_value, kDim / Tiles::kColumns, Tiles::kBytes, of_groups, tensors);
    launch_tiles(stream, kernels.query, 1, Tiles::kBytes, call, tensors);
  });
}

}  // namespace megalith::ops::cuda
