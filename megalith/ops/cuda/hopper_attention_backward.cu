#include "megalith/ops/cuda/hopper_attention.h"
#include "megalith/ops/cuda/hopper_attention_tiles.cuh"

// Three kernels, as in tiled_attention_backward.cu: the statistics of the queries; dK and dV by blocks of keys; dQ by
// blocks of queries. The last two both recompute S = Q K^T and dP = dO V^T: seven products in all. The bound is the
// work on scores between products, not the tensor cores, so two more products cost less than the sums in memory, one
// after the other, that dQ takes in one kernel with five. Names as in Dao 2023, section 2.3.2.
//
// With P and dP of kept elements alone, c = 1 / P(keep) and delta = rowsum(dO * O):
//   dV = c (P kept)^T dO,   dS = c P (kept dP - delta / c),   dQ = dS K / sqrt(D),   dK = dS^T Q / sqrt(D).
// So c is a factor of the results, and of the statistic delta / c.
//
// The tensor cores read the tiles that stay from shared memory. With those in registers, over the loop, nvcc 13.0 gave
// their registers to other values.

namespace megalith::ops::cuda {
namespace hopper_attention {

inline constexpr int kGroups = 2;  // warp groups of a block
inline constexpr int kThreads = kGroups * kGroupThreads, kBlockRows = kGroups * kTile;

namespace {

/// Shared memory of both kernels: two tiles that stay per group (k, v; or q, dO), and stages of two tiles (q, dO; or k,
/// v) and of statistics.
template <int kDim>
struct alignas(1024) Shared {
  std::byte own[kGroups][2][kTileBytes<kDim>];
  std::byte stages[kStages][2][kTileBytes<kDim>];
  float2 statistics[kStages][kTile];                          // of q, dO
  std::uint32_t kept_groups[kGroups][2][kGroupWarps][kWarp];  // in turn; of the kernel of dk and dv
  Ring<kGroups> ring;
};

inline constexpr int kStatisticLanes = 8, kStatisticThreads = 128;  // lanes of one row of the kernel below

/// statistics [B, A, S rounded up to tiles] = (log2(e) log_sum_exp, delta / c), 8 lanes per row. A query that is
/// padding or beyond the sample has (inf, 0), so its P and dS are 0. Reads out and dout once.
template <class T>
__global__ void __launch_bounds__(kStatisticThreads)
    hopper_attention_statistics_kernel(const T* out, const T* dout, const float* log_sum_exp,
                                       const std::int32_t* lengths, int seq_len, int padded_len, int num_heads,
                                       int head_dim, Index rows, float kept, float2* statistics) {
  const int lane = static_cast<int>(threadIdx.x) % kStatisticLanes;
  const Index row = (static_cast<Index>(blockIdx.x) * kStatisticThreads + threadIdx.x) / kStatisticLanes;
  if (row >= rows) return;  // all lanes of the row
  const int head = static_cast<int>(row % num_heads);
  const Index token = row / num_heads, sample = token / padded_len;  // of padded samples
  const int query = static_cast<int>(token % padded_len);
  const bool attends = query < (lengths == nullptr ? seq_len : min(lengths[sample], seq_len));
  float sum = 0;
  if (attends) {
    const Index first = ((sample * seq_len + query) * num_heads + head) * head_dim;
    for (int column = lane * kPack<T>; column < head_dim; column += kStatisticLanes * kPack<T>) {
      const auto x = unpack(load_pack<kPack<T>>(out, first + column)),
                 dx = unpack(load_pack<kPack<T>>(dout, first + column));
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sum = fmaf(x[i], dx[i], sum);
    }
  }
  const unsigned of_row = 0xffu << threadIdx.x % kWarp / kStatisticLanes * kStatisticLanes;
#pragma unroll
  for (int step = 1; step < kStatisticLanes; step *= 2) sum += __shfl_xor_sync(of_row, sum, step);
  if (lane > 0) return;
  const Index head_row = (sample * num_heads + head) * padded_len + query;
  if (attends) {
    const float lse = log_sum_exp[(sample * num_heads + head) * seq_len + query];
    statistics[head_row] = {kLog2E * lse, kept * sum};
  } else {
    statistics[head_row] = {INFINITY, 0};
  }
}

/// A score becomes P, of kept elements alone, and its dP becomes dS / c.
template <Dropping kDropping>
__device__ __forceinline__ void differentiate(float& score, float& dprob, float scale_log2, float log2_sum, float delta,
                                              bool kept) {
  const float p = exp2_approx(fmaf(score, scale_log2, -log2_sum));
  if constexpr (kDropping == Dropping::on) {
    score = kept ? p : 0.0f;
    dprob = fmaf(score, dprob, -p * delta);
  } else {
    score = p;
    dprob = p * (dprob - delta);
  }
}

/// A block computes dk and dv of 128 keys of one group of heads, a warp group 64 of them. It goes over the heads of the
/// group and the tiles of 64 queries from the diagonal on, or over all. It computes transposed, so that P^T and dS^T
/// come out as the left sides of the next products. The four warps of a group draw the dropout of a tile's 64 x 64
/// elements once, each for 16 queries, and exchange it by shared memory while products are on the tensor cores.
///
/// Reads k and v once, and q, dO and their statistics once per block from the L2 cache. Instructions per score for D =
/// 64: 118 / 32 for random words, 15 / 32 to exchange them, 2 to apply them, 5 for P and dS, 1 to round, 0.25 to read
/// statistics; 17 in all where nothing is masked (sm_90a code of nvcc 13.0). At 128 per clock they bound the kernel at
/// 7.5 scores per clock of an SM. The tensor cores' bound is 10.7, as they read k and v from shared memory for every
/// tile. On an H200 both kernels together take 782 us with dropout 0.1 and 542 without, for 32 x 12 heads
/// of 1024 x 64, and 373 and 301 us for 8 x 16 heads of 1024 x 128.
template <class T, int kDim, Dropping kDropping>
__global__ void __launch_bounds__(kThreads, 1) hopper_attention_keys_kernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte hopper_attention_shared[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(hopper_attention_shared);
  const Place place;
  const int group = place.group, warp = place.warp, lane = place.lane;
  const Work work = work_of(args);
  const int num_kv_heads = args.num_heads / args.sharing;
  const int sample = work.head / num_kv_heads, first_head = work.head % num_kv_heads * args.sharing;
  const int length = length_of(args, sample);
  const int first_key = work.turn * kBlockRows, group_key = first_key + group * kTile;
  // Steps: the tiles of queries from begin on, for each of the heads.
  const int begin = args.is_causal ? first_key / kTile : 0;
  const int tiles = first_key < length ? tiles_of(length) - begin : 0, num_steps = tiles * args.sharing;
  const bool copies = group == 0 && warp == 0 && lane == 0;

  shared.ring.init();
  const int row_tiles = tiles_of(args.seq_len);
  const auto load = [&](int step) {
    const int head = first_head + step / tiles, tile = begin + step % tiles, stage = step % kStages;
    Barrier& full = shared.ring.full[stage];
    hopper::arrive_and_expect(full, 2 * kTileBytes<kDim> + sizeof(shared.statistics[0]));
    load_tile<kDim>(shared.stages[stage][0], args.qkv, full, column_of<kDim>(args, head, Part::q), tile * kTile,
                    sample);
    load_tile<kDim>(shared.stages[stage][1], args.dout, full, head * kDim, tile * kTile, sample);
    hopper::load_bytes(
        shared.statistics[stage],
        args.statistics + ((static_cast<Index>(sample) * args.num_heads + head) * row_tiles + tile) * kTile,
        sizeof(shared.statistics[0]), full);
  };
  const int column_k = column_of<kDim>(args, first_head, Part::k),
            column_v = column_of<kDim>(args, first_head, Part::v);
  const auto load_own = [&](Barrier& full) {
    for (int i = 0; i < kGroups; ++i)
      load_keys<kDim>(shared.own[i], args, full, column_k, column_v, first_key + i * kTile, sample);
  };
  shared.ring.start(num_steps, copies, sizeof(shared.own), load_own, load);
  const std::byte *const k_tile = shared.own[group][0], *const v_tile = shared.own[group][1];

  const float scale_log2 = args.scale * kLog2E;
  const int column_patch = group_key / kTile, key = group_key + warp * 16 + lane / 4;
  float dk[kDim / 2] = {}, dv[kDim / 2] = {};  // [64, D], without factors
  KeptHead kept;
  std::uint32_t half_kept = 0;  // of the tile to come
  const auto draw_half = [&](int tile) {
    if constexpr (kDropping == Dropping::on)
      half_kept = kept.half_group(args, tile * kGroupWarps + warp, column_patch, lane);
  };
  if constexpr (kDropping == Dropping::on) kept = KeptHead(args, sample, first_head);
  draw_half(begin);
  int exchanges = 0;  // of groups of dropout
  for (int step = 0, tile = begin; step < num_steps; ++step) {
    shared.ring.begin(step, num_steps, copies, load);
    const int query = tile * kTile, stage = step % kStages;
    const KeptHead kept_now = kept;
    if (++tile == begin + tiles) tile = begin, ++kept.head;
    if (args.is_causal && query < group_key) {  // before all keys of the group
      draw_half(tile);
      shared.ring.release(step, lane);
      continue;
    }
    const std::byte *const q_tile = shared.stages[stage][0], *const dout_tile = shared.stages[stage][1];
    float scores[32], dprobs[32];  // [64 keys, 64 queries]
    hopper::begin_products();
    multiply_rows<T, kDim>(scores, k_tile, q_tile);
    multiply_rows<T, kDim>(dprobs, v_tile, dout_tile);
    hopper::commit_products();
    std::uint32_t kept_bits = 0;
    if constexpr (kDropping == Dropping::on) {
      auto& groups = shared.kept_groups[group][exchanges++ % 2];
      groups[warp][lane] =
          transposed(kept_now.whole_group(args, query / KeptPatch::kQueries + warp, column_patch, lane, half_kept));
      sync_group(group);  // the next exchange is in the other place, so that all have read this one before it is reused
      const std::uint32_t of_lane[4] = {groups[0][lane], groups[1][lane], groups[2][lane], groups[3][lane]};
      kept_bits = kept_of_sixteen_keys(of_lane, warp);
    }
    hopper::wait_for_products<0>();
    hopper::hold(scores);
    hopper::hold(dprobs);
    if (args.is_causal && query == group_key) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (key + i / 2 % 2 * 8 > query + i / 4 * 8 + lane % 4 * 2 + i % 2) scores[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      // Two queries: (log2 sum, delta) of each.
      const float4 two = *reinterpret_cast<const float4*>(&shared.statistics[stage][8 * t + lane % 4 * 2]);
#pragma unroll
      for (int i = 4 * t; i < 4 * t + 4; ++i) {
        differentiate<kDropping>(scores[i], dprobs[i], scale_log2, i % 2 == 0 ? two.x : two.z,
                                 i % 2 == 0 ? two.y : two.w, (kept_bits & kept_bit_of_keys(i)) != 0);
      }
    }
    std::uint32_t probs[4][4], gradients[4][4];
    round_sums<T>(probs, scores);
    round_sums<T>(gradients, dprobs);
    hopper::hold(probs);
    hopper::hold(gradients);
    hopper::hold(dv);
    hopper::hold(dk);
    hopper::begin_products();
    multiply_add<T, kDim>(dv, probs, dout_tile);
    multiply_add<T, kDim>(dk, gradients, q_tile);
    hopper::commit_products();
    draw_half(tile);
    hopper::wait_for_products<0>();
    hopper::hold(probs);
    hopper::hold(gradients);
    hopper::hold(dv);
    hopper::hold(dk);
    shared.ring.release(step, lane);
  }

  const int first_row = group_key + warp * 16;
  const float dk_factor[2] = {args.scale * args.kept_scale, args.scale * args.kept_scale};
  const float dv_factor[2] = {args.kept_scale, args.kept_scale};
  sync_group(group);  // all of its products have read k and v
  store_sums<T, kDim>(args.result, shared.own[group][0], dk, dk_factor, column_k, first_row, sample, length, warp,
                      lane);
  store_sums<T, kDim>(args.result, shared.own[group][1], dv, dv_factor, column_v, first_row, sample, length, warp,
                      lane);
  if (lane == 0) hopper::wait_for_reads_of_stores<0>();  // shared memory is released with the block
#endif
}

/// A block computes dq of 128 queries of one head, a warp group 64 of them, over the tiles of 64 keys that they see.
/// Reads q, dO and the statistics once, and k and v once per block from the L2 cache. Instructions per score as above,
/// without the exchange: 14 in all, so at most 9 scores per clock of an SM.
template <class T, int kDim, Dropping kDropping>
__global__ void __launch_bounds__(kThreads, 1) hopper_attention_queries_kernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte hopper_attention_shared[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(hopper_attention_shared);
  const Place place;
  const int group = place.group, warp = place.warp, lane = place.lane;
  const auto [head_of_all, sample, head, length, first_query, group_query, num_tiles, group_tiles] =
      QueryTiles(args, kBlockRows, group);
  const bool copies = group == kGroups - 1 && warp == 0 && lane == 0;

  shared.ring.init();
  const int column_q = column_of<kDim>(args, head, Part::q);
  const int column_k = column_of<kDim>(args, head, Part::k), column_v = column_of<kDim>(args, head, Part::v);
  const auto load = [&](int tile) {
    const int stage = tile % kStages;
    Barrier& full = shared.ring.full[stage];
    hopper::arrive_and_expect(full, 2 * kTileBytes<kDim>);
    load_keys<kDim>(shared.stages[stage], args, full, column_k, column_v, tile * kTile, sample);
  };
  const auto load_own = [&](Barrier& full) {
    for (int i = 0; i < kGroups; ++i) {
      load_tile<kDim>(shared.own[i][0], args.qkv, full, column_q, first_query + i * kTile, sample);
      load_tile<kDim>(shared.own[i][1], args.dout, full, head * kDim, first_query + i * kTile, sample);
    }
  };
  shared.ring.start(num_tiles, copies, sizeof(shared.own), load_own, load);
  const std::byte *const q_tile = shared.own[group][0], *const dout_tile = shared.own[group][1];

  const int first_row = group_query + warp * 16, row = first_row + lane / 4;
  const int padded_len = tiles_of(args.seq_len) * kTile;
  float2 statistics[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half < padded_len)
      statistics[half] = args.statistics[static_cast<Index>(head_of_all) * padded_len + row + 8 * half];
  }
  const float scale_log2 = args.scale * kLog2E;
  float dq[kDim / 2] = {};  // [64, D], without factors
  KeptHead kept;
  if constexpr (kDropping == Dropping::on) kept = KeptHead(args, sample, head);
  std::uint32_t half_kept = 0;  // of the tile to come
  const auto draw_half = [&](int tile) {
    if constexpr (kDropping == Dropping::on)
      half_kept = kept.half_group(args, first_row / KeptPatch::kQueries, tile, lane);
  };
  draw_half(0);
  for (int tile = 0; tile < group_tiles; ++tile) {
    shared.ring.begin(tile, num_tiles, copies, load);
    const std::byte *const k_tile = shared.stages[tile % kStages][0], *const v_tile = shared.stages[tile % kStages][1];
    float scores[32], dprobs[32];  // [64 queries, 64 keys]
    hopper::begin_products();
    multiply_rows<T, kDim>(scores, q_tile, k_tile);
    multiply_rows<T, kDim>(dprobs, dout_tile, v_tile);
    hopper::commit_products();
    std::uint32_t kept_bits = 0;
    if constexpr (kDropping == Dropping::on)
      kept_bits = kept.whole_group(args, first_row / KeptPatch::kQueries, tile, lane, half_kept);
    hopper::wait_for_products<0>();
    hopper::hold(scores);
    hopper::hold(dprobs);
    const int end = (tile + 1) * kTile;
    if (end > length || (args.is_causal && end > group_query))
      mask_scores(scores, row, tile * kTile + lane % 4 * 2, length, args.is_causal);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      differentiate<kDropping>(scores[i], dprobs[i], scale_log2, statistics[i / 2 % 2].x, statistics[i / 2 % 2].y,
                               (kept_bits & kept_bit_of_queries(i)) != 0);
    }
    std::uint32_t gradients[4][4];
    round_sums<T>(gradients, dprobs);
    hopper::hold(gradients);
    hopper::hold(dq);
    hopper::begin_products();
    multiply_add<T, kDim>(dq, gradients, k_tile);
    hopper::commit_products();
    draw_half(tile + 1);
    hopper::wait_for_products<0>();
    hopper::hold(gradients);
    hopper::hold(dq);
    shared.ring.release(tile, lane);
  }
  for (int tile = group_tiles; tile < num_tiles; ++tile) {  // those of the other group
    shared.ring.begin(tile, num_tiles, copies, load);
    shared.ring.release(tile, lane);
  }

  const float factor[2] = {args.scale * args.kept_scale, args.scale * args.kept_scale};
  sync_group(group);  // all of its products have read q
  store_sums<T, kDim>(args.result, shared.own[group][0], dq, factor, column_q, first_row, sample, length, warp, lane);
  if (lane == 0) hopper::wait_for_reads_of_stores<0>();  // shared memory is released with the block
#endif
}

}  // namespace
}  // namespace hopper_attention

void prepare_hopper_attention_backward(const AttentionShape& shape) {
  using namespace hopper_attention;
  dispatch(shape, [&]<class T, int kDim, Dropping kDropping>() {
    megalith::cuda::allow_shared_memory(hopper_attention_keys_kernel<T, kDim, kDropping>, sizeof(Shared<kDim>));
    megalith::cuda::allow_shared_memory(hopper_attention_queries_kernel<T, kDim, kDropping>, sizeof(Shared<kDim>));
  });
}

void hopper_attention_backward(Stream stream, const AttentionBackward& args, const Tensor& scratch) {
  using namespace hopper_attention;
  if (args.batch == 0) return;
  const AttentionShape shape = shape_of(args);
  zero_padding_of(stream, args.qkv, args.seq_len, args.lengths);
  zero_padding_of(stream, args.dout, args.seq_len, args.lengths);
  Args call = args_of(args, static_cast<int>(shape.head_dim));
  const Index width = args.dout.dim(1), padded_len = round_up(args.seq_len, Index{kTile});
  call.dout =
      tensor_map<3>(args.dout, {width, args.seq_len, args.batch}, {width, args.seq_len * width}, {64, kTile, 1});
  call.result = map_of_results(args.dqkv, args.batch, args.seq_len);
  call.statistics = pointer<float2>(scratch);
  dispatch(shape, [&]<class T, int kDim, Dropping kDropping>() {
    const Index rows = args.batch * args.num_heads * padded_len;
    launch({stream, ceil_div(rows * kStatisticLanes, Index{kStatisticThreads}), kStatisticThreads},
           hopper_attention_statistics_kernel<T>, pointer<const T>(args.out), pointer<const T>(args.dout),
           pointer<const float>(args.log_sum_exp), call.lengths, call.seq_len, static_cast<int>(padded_len),
           call.num_heads, kDim, rows, 1.0f / call.kept_scale, pointer<float2>(scratch));
    Args of_groups = call;
    of_groups.heads /= call.sharing;
    launch_groups<kGroups>(stream, hopper_attention_keys_kernel<T, kDim, kDropping>, sizeof(Shared<kDim>), of_groups);
    launch_groups<kGroups>(stream, hopper_attention_queries_kernel<T, kDim, kDropping>, sizeof(Shared<kDim>), call);
  });
}

}  // namespace megalith::ops::cuda
