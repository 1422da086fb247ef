#include "megalith/ops/attention_kernels.h"
#include "megalith/ops/cuda/attention_tiles.h"
#include "megalith/ops/cuda/tiled_attention.h"

namespace megalith::ops::cuda {
namespace {

/// Sizes, in shared memory, of the forward kernel for one element type and one head_dim. It holds q [kRows, kDim], then
/// two stages of k, v [kKeys, kDim], then scratch of the warps.
template <class T, int kDim>
struct ForwardTiles {
  static constexpr int kKeys = sizeof(T) == 2 ? (kDim <= 128 ? 64 : 32) : (kDim <= 128 ? 32 : 16);
  static constexpr int kStride = row_stride<T>(kDim);
  static constexpr int kTile = kKeys * kStride, kScratch = WarpProducts<T>::scratch(kKeys);
  static constexpr int kElements = kRows * kStride + 4 * kTile + kWarps * kScratch;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(T));
  // Blocks that should fit on an SM: what registers and shared memory allow.
  static constexpr int kBlocks = kDim > 128 ? 1 : kDim > 96 || sizeof(T) == 4 ? 2 : 3;
};

/// Running softmax of the lane's two rows (Dao 2023, section 3.1).
struct SoftmaxRows {
  float max[2] = {-INFINITY, -INFINITY};  // maximum of scale * log2(e) * score
  float sum[2] = {0, 0};                  // sum of 2^(that - max) over the lane's own keys
};

__device__ float sum_over_row(float of_lane) {
  of_lane += __shfl_xor_sync(~0u, of_lane, 1);
  return of_lane + __shfl_xor_sync(~0u, of_lane, 2);
}

/// Replaces scores by their weights 2^(scale_log2 score - max). correction receives the factors on the earlier sums.
/// Every row has seen a key by then (keys come in order), so max is finite. With documents a block of rows begins at
/// the keys of the first one, before which others have none: their weights and sums stay 0.
template <Form kForm, int kKeys>
__device__ void add_to_softmax(Fragment<kKeys>& scores, float scale_log2, SoftmaxRows& rows, float (&correction)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = -INFINITY;
#pragma unroll
    for (auto& tile : scores.tile) most = fmaxf(most, fmaxf(tile[2 * half], tile[2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));  // the four lanes of a row
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float max = fmaxf(rows.max[half], most * scale_log2);
    const float subtracted = kForm == Form::documents && max == -INFINITY ? 0 : max;
    float sum = 0;
#pragma unroll
    for (auto& tile : scores.tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = tile[2 * half + e];
        x = exp2_flushed(fmaf(x, scale_log2, -subtracted));
        sum += x;
      }
    }
    correction[half] = exp2_flushed(rows.max[half] - subtracted);
    rows.sum[half] = fmaf(rows.sum[half], correction[half], sum);
    rows.max[half] = max;
  }
}

/// A block computes out and log_sum_exp of 64 queries of one head, a warp 16 of them. It goes over the tiles of keys
/// that they see: up to the diagonal, or all; with documents from the begin of the first query's. Under the causal mask
/// it reads q once, and k, v of (S + kRows) / 2 keys per block on average. These are B A S / 64 * (S + 64) / 2 * 2 D
/// elements, almost all from the L2 cache. It writes out and log_sum_exp once. Random words: four Philox
/// blocks for 32 scores. B32 H12 S1024 D64 on an H200 without dropout: 252 us (cuDNN 173), 29 % of a large product's
/// FLOP/s.
template <class T, int kDim, Dropping kDropping, Form kForm>
__global__ void __launch_bounds__(kThreads, (ForwardTiles<T, kDim>::kBlocks))
    forward_kernel(AttentionCall call, const T* qkv, T* out, float* log_sum_exp) {
  using Tiles = ForwardTiles<T, kDim>;
  using Products = WarpProducts<T>;
  constexpr int kKeys = Tiles::kKeys, kTile = Tiles::kTile;
  const Work work = longest_first(call);
  const int first_query = (row_blocks(call.seq_len) - 1 - work.turn) * kRows;
  const int warp_query = first_query + warp_index() * kWarpRows;
  const QueryLane lane = query_lane(warp_query);
  const int length = length_of<kForm>(call, work.head);
  if constexpr (kForm == Form::general) {
    if (first_query >= length) {
      store_padding(out_rows(call, out, work.head, call.seq_len), first_query);
      const int row = first_query + static_cast<int>(threadIdx.x);
      if (threadIdx.x < kRows && row < call.seq_len)
        log_sum_exp[static_cast<Index>(work.head) * call.seq_len + row] = 0;
      return;
    }
  }
  const Kept<kDropping> kept(call, work.head);
  const auto rows_of = [&](Part part) { return qkv_rows<kForm>(call, qkv, work.head, part, length); };
  const HeadRows<const T> k = rows_of(Part::k), v = rows_of(Part::v);

  T* q_tile = shared_memory<T>();               // [kRows, kDim]
  T* stages = q_tile + kRows * Tiles::kStride;  // 2 x (k, v) [kKeys, kDim]
  T* scratch = stages + 4 * kTile + warp_index() * Tiles::kScratch;
  const T* q_rows = q_tile + warp_index() * kWarpRows * Tiles::kStride;
  load_tile<kRows, kDim>(q_tile, rows_of(Part::q), first_query);
  const SeenKeys<kForm> seen = seen_keys<kForm>(call, work.head, length, first_query, lane);
  load_stage<kKeys, kDim>(stages, k, v, seen.first_tile());
  __pipeline_commit();

  const float scale_log2 = call.scale * kLog2E;
  SoftmaxRows softmax;
  KeptOfQueries<kKeys> kept_of_queries;
  Fragment<kDim> sums{};  // [16, D]: weights times v so far
  for (int first_key = seen.first_tile(), stage = 0; first_key < seen.end; first_key += kKeys, stage ^= 1) {
    __pipeline_wait_prior(0);
    __syncthreads();  // this stage has arrived, and all warps have finished the other
    if (first_key + kKeys < seen.end) {
      load_stage<kKeys, kDim>(stages + (stage ^ 1) * 2 * kTile, k, v, first_key + kKeys);
      __pipeline_commit();
    }
    if (seen.none_from(first_key, warp_query) || seen.none_before(first_key + kKeys)) continue;
    const T *k_tile = stages + stage * 2 * kTile, *v_tile = k_tile + kTile;
    std::uint32_t kept_bits = 0;
    if constexpr (kDropping == Dropping::on) kept_bits = kept_of_queries.next(kept, warp_query, first_key);
    Fragment<kKeys> scores{};
    Products::template add_transposed<kDim>(scores, q_rows, k_tile);
    seen.mask(scores, lane, first_key);
    float correction[2];
    add_to_softmax<kForm>(scores, scale_log2, softmax, correction);
    for_each_element(sums, [&](int /*t*/, int i, float& sum) { sum *= correction[i / 2]; });
    if constexpr (kDropping == Dropping::on) {
      for_each_element(scores, [&](int t, int i, float& weight) {
        if ((kept_bits & kept_bit_of_queries(4 * t + i)) == 0) weight = 0;
      });
    }
    Products::template add<Tiles::kStride>(sums, scores, v_tile, scratch);
  }

  if constexpr (kForm == Form::general) clear_padding(lane.row, length, sums);
  float factor[2];
  log_sum_exp += static_cast<Index>(work.head) * call.seq_len;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = sum_over_row(softmax.sum[half]);
    factor[half] = (kDropping == Dropping::on ? call.kept_scale : 1.0f) / sum;
    const bool writes = lane_index() % 4 == 0 && lane.row[half] < call.seq_len;
    const bool is_padding = kForm == Form::general && lane.row[half] >= length;
    if (writes) log_sum_exp[lane.row[half]] = is_padding ? 0 : softmax.max[half] / kLog2E + logf(sum);
  }
  store_rows(out_rows(call, out, work.head, call.seq_len), lane.row, 0, factor, sums);
}

template <class T, int kDim, Form kForm>
auto kernel_in(const AttentionShape& shape) {
  return shape.dropout > 0 ? forward_kernel<T, kDim, Dropping::on, kForm>
                           : forward_kernel<T, kDim, Dropping::off, kForm>;
}
template <class T, int kDim>
auto kernel_of(const AttentionShape& shape) {
  switch (form_of(shape)) {
    case Form::plain:
      return kernel_in<T, kDim, Form::plain>(shape);
    case Form::documents:
      return kernel_in<T, kDim, Form::documents>(shape);
    default:
      return kernel_in<T, kDim, Form::general>(shape);
  }
}

}  // namespace

void prepare_tiled_attention_forward(const AttentionShape& shape) {
  dispatch_tiles(shape.dtype, shape.head_dim,
                 [&]<class T, int kDim>() { allow_tiles(kernel_of<T, kDim>(shape), ForwardTiles<T, kDim>::kBytes); });
}

void tiled_attention_forward(Stream stream, const AttentionForward& args) {
  if (args.batch == 0) return;
  const AttentionShape shape = shape_of(args);
  const AttentionCall call = call_of(args, in_vectors(shape.head_dim, args.qkv, args.out));
  dispatch_tiles(shape.dtype, shape.head_dim, [&]<class T, int kDim>() {
    launch_tiles(stream, kernel_of<T, kDim>(shape), 1, ForwardTiles<T, kDim>::kBytes, call,
                 static_cast<const T*>(args.qkv.raw()), static_cast<T*>(args.out.raw()),
                 static_cast<float*>(args.log_sum_exp.raw()));
  });
}

}  // namespace megalith::ops::cuda
