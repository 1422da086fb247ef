#include "megalith/ops/cuda/hopper_attention.h"
#include "megalith/ops/cuda/hopper_attention_tiles.cuh"

namespace megalith::ops::cuda {
namespace hopper_attention {

/// Running softmax of the lane's two rows (Dao 2023, section 3.1).
struct SoftmaxRows {
  float max[2] = {-INFINITY, -INFINITY};  // maximum of scale * log2(e) * score
  float sum[2] = {0, 0};                  // sum of 2^(that - max) over the lane's own keys
};

/// Replaces scores [64, 64] by their weights 2^(scale_log2 score - max). correction receives the factors on the earlier
/// sums. Every row has seen a key by then, so max is finite.
__device__ inline void add_to_softmax(float (&scores)[32], float scale_log2, SoftmaxRows& rows,
                                      float (&correction)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = -INFINITY;
#pragma unroll
    for (int t = 0; t < 8; ++t) most = fmaxf(most, fmaxf(scores[4 * t + 2 * half], scores[4 * t + 2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));  // the four lanes of a row
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float max = fmaxf(rows.max[half], most * scale_log2);
    float sum = 0;
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[4 * t + 2 * half + e];
        x = exp2_approx(fmaf(x, scale_log2, -max));
        sum += x;
      }
    }
    correction[half] = exp2_approx(rows.max[half] - max);
    rows.sum[half] = fmaf(rows.sum[half], correction[half], sum);
    rows.max[half] = max;
  }
}

namespace {

/// Warp groups of a block, blocks of an SM, and shared memory: q of every group, and stages of k and v.
template <int kDim>
struct Forward {
  static constexpr int kGroups = kDim == 64 ? 2 : 3, kBlocks = kDim == 64 ? 2 : 1;
  static constexpr int kThreads = kGroups * kGroupThreads;
  struct alignas(1024) Shared {
    std::byte q[kGroups][kTileBytes<kDim>];
    std::byte stages[kStages][2][kTileBytes<kDim>];  // k, v
    Ring<kGroups> ring;
  };
};

/// A block computes out and log_sum_exp of 128 queries of one head (D = 128: 192), a warp group 64 of them. It goes
/// over the tiles of 64 keys that its queries see. A group issues the products of a tile of scores, and draws the
/// tile's dropout while they, and those of the last tile's weights with v, are on the tensor cores.
///
/// Reads q once, and k and v once per block from the L2 cache: 2 bytes per score for D = 64. Instructions per score for
/// D = 64: 118 / 32 to draw and compare random words, 1.25 to apply them, 5 for the softmax, 1.5 to scale the sums, 0.5
/// to round; 14 in all where nothing is masked (sm_90a code of nvcc 13.0). At 128 per clock they bound the kernel at 9
/// scores per clock of an SM. The tensor cores' bound is 21, that of the exponentials 16.
/// On an H200 32 x 12 heads of 1024 x 64 take 235 us with dropout 0.1, 164 without; 8 x 16 of 1024 x 128 135 and 101.
template <class T, int kDim, Dropping kDropping>
__global__ void __launch_bounds__(Forward<kDim>::kThreads, Forward<kDim>::kBlocks)
    hopper_attention_forward_kernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Sizes = Forward<kDim>;
  constexpr int kBlockRows = Sizes::kGroups * kTile;
  extern __shared__ __align__(1024) std::byte hopper_attention_shared[];
  auto& shared = *reinterpret_cast<typename Sizes::Shared*>(hopper_attention_shared);
  const Place place;
  const int group = place.group, warp = place.warp, lane = place.lane;
  const auto [head_of_all, sample, head, length, first_query, group_query, num_tiles, group_tiles] =
      QueryTiles(args, kBlockRows, group);
  // Of the group with the largest number of tiles.
  const bool copies = group == Sizes::kGroups - 1 && warp == 0 && lane == 0;

  auto& ring = shared.ring;
  ring.init();
  const int column_k = column_of<kDim>(args, head, Part::k), column_v = column_of<kDim>(args, head, Part::v);
  const auto load = [&](int tile) {
    Barrier& full = ring.full[tile % kStages];
    hopper::arrive_and_expect(full, 2 * kTileBytes<kDim>);
    load_keys<kDim>(shared.stages[tile % kStages], args, full, column_k, column_v, tile * kTile, sample);
  };
  const auto load_own = [&](Barrier& full) {
    const int column = column_of<kDim>(args, head, Part::q);
    for (int i = 0; i < Sizes::kGroups; ++i)
      load_tile<kDim>(shared.q[i], args.qkv, full, column, first_query + i * kTile, sample);
  };
  ring.start(num_tiles, copies, sizeof(shared.q), load_own, load);

  const int first_row = group_query + warp * KeptPatch::kQueries;
  const float scale_log2 = args.scale * kLog2E;
  SoftmaxRows softmax;
  float sums[kDim / 2] = {};  // [64, D]: weights times v so far
  float scores[32];           // [64, 64]
  std::uint32_t weights[4][4] = {};
  KeptHead kept;
  if constexpr (kDropping == Dropping::on) kept = KeptHead(args, sample, head);
  const auto draw = [&](int tile) -> std::uint32_t {
    if constexpr (kDropping == Dropping::off) return 0;
    return kept.group(args, first_row / KeptPatch::kQueries, tile, lane);
  };
  // Scores of a tile become weights. Returns the factors on earlier sums.
  const auto weigh = [&](int tile, float(&correction)[2]) {
    const int end = (tile + 1) * kTile;
    if (end > length || (args.is_causal && end > group_query))
      mask_scores(scores, first_row + lane / 4, tile * kTile + lane % 4 * 2, length, args.is_causal);
    add_to_softmax(scores, scale_log2, softmax, correction);
  };
  const auto round_weights = [&](std::uint32_t kept_bits) {
    round_sums<T>(weights, scores);
    if constexpr (kDropping == Dropping::on) drop(weights, kept_bits);
  };

  if (group_tiles > 0) {
    ring.begin(0, num_tiles, copies, load);
    hopper::begin_products();
    multiply_rows<T, kDim>(scores, shared.q[group], shared.stages[0][0]);
    hopper::commit_products();
    const std::uint32_t kept_bits = draw(0);
    hopper::wait_for_products<0>();
    hopper::hold(scores);
    float correction[2];
    weigh(0, correction);
    round_weights(kept_bits);
  }
  for (int tile = 1; tile < group_tiles; ++tile) {
    ring.begin(tile, num_tiles, copies, load);
    hopper::hold(sums);
    hopper::hold(weights);
    hopper::begin_products();
    multiply_rows<T, kDim>(scores, shared.q[group], shared.stages[tile % kStages][0]);
    hopper::commit_products();
    multiply_add<T, kDim>(sums, weights, shared.stages[(tile - 1) % kStages][1]);
    hopper::commit_products();
    const std::uint32_t kept_bits = draw(tile);
    hopper::wait_for_products<1>();
    hopper::hold(scores);
    float correction[2];
    weigh(tile, correction);
    hopper::wait_for_products<0>();
    hopper::hold(sums);
    hopper::hold(weights);
    ring.release(tile - 1, lane);
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) sums[i] *= correction[i / 2 % 2];
    round_weights(kept_bits);
  }
  if (group_tiles > 0) {
    hopper::hold(sums);
    hopper::hold(weights);
    hopper::begin_products();
    multiply_add<T, kDim>(sums, weights, shared.stages[(group_tiles - 1) % kStages][1]);
    hopper::commit_products();
    hopper::wait_for_products<0>();
    hopper::hold(sums);
    hopper::hold(weights);
    ring.release(group_tiles - 1, lane);
  }
  for (int tile = group_tiles; tile < num_tiles; ++tile) {  // those of other groups
    ring.begin(tile, num_tiles, copies, load);
    ring.release(tile, lane);
  }

  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = softmax.sum[half];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    factor[half] = args.kept_scale / sum;
    const int row = first_row + lane / 4 + 8 * half;
    if (lane % 4 == 0 && row < args.seq_len)
      args.log_sum_exp[static_cast<Index>(head_of_all) * args.seq_len + row] =
          row < length ? softmax.max[half] / kLog2E + logf(sum) : 0.0f;
  }
  sync_group(group);  // all of its products have read q
  store_sums<T, kDim>(args.result, shared.q[group], sums, factor, head * kDim, first_row, sample, length, warp, lane);
  if (lane == 0) hopper::wait_for_reads_of_stores<0>();  // shared memory is released with the block
#endif
}

}  // namespace
}  // namespace hopper_attention

bool is_for_hopper_attention(const AttentionShape& shape) {
  return is_hopper_attention_shape(shape) && HopperGpu().is_there;
}

void prepare_hopper_attention_forward(const AttentionShape& shape) {
  using namespace hopper_attention;
  dispatch(shape, [&]<class T, int kDim, Dropping kDropping>() {
    megalith::cuda::allow_shared_memory(hopper_attention_forward_kernel<T, kDim, kDropping>,
                                        sizeof(typename Forward<kDim>::Shared));
  });
}

void hopper_attention_forward(Stream stream, const AttentionForward& args) {
  using namespace hopper_attention;
  if (args.batch == 0) return;
  const AttentionShape shape = shape_of(args);
  zero_padding_of(stream, args.qkv, args.seq_len, args.lengths);
  Args call = args_of(args, static_cast<int>(shape.head_dim));
  call.result = map_of_results(args.out, args.batch, args.seq_len);
  call.log_sum_exp = pointer<float>(args.log_sum_exp);
  dispatch(shape, [&]<class T, int kDim, Dropping kDropping>() {
    launch_groups<Forward<kDim>::kGroups>(stream, hopper_attention_forward_kernel<T, kDim, kDropping>,
                                          sizeof(typename Forward<kDim>::Shared), call);
  });
}

}  // namespace megalith::ops::cuda
