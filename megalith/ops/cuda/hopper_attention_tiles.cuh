#pragma once
#include <cmath>
#include <cstddef>

#include "megalith/ops/attention_kernels.h"
#include "megalith/ops/cuda/chunks.cuh"
#include "megalith/ops/cuda/hopper.cuh"
#include "megalith/ops/cuda/hopper_gpu.h"
#include "megalith/ops/cuda/padding.h"
#include "megalith/ops/cuda/ptx.h"
#include "megalith/ops/cuda/tensor_maps.h"
#include "megalith/ops/kept_patch.h"
#include "megalith/ops/qkv_order.h"
#include "megalith/tensor/cuda/shared_limit.h"

// Shared code of the kernels of attention for Hopper. A block is some warp groups. Each keeps 64 rows of one head
// (queries or keys) and its own sums, and tiles of 64 rows of the other side stream past all of them through a ring in
// shared memory. One thread starts the copies.

namespace megalith::ops::cuda::hopper_attention {

using hopper::Barrier;
using hopper::Major;
using KeysMajor = hopper::Operand<Major::sum>;     // rows of a tile are rows or columns of a product
using DepthMajor = hopper::Operand<Major::other>;  // rows of a tile are the product's sum

inline constexpr int kTile = 64;  // queries or keys
inline constexpr int kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarp;
inline constexpr int kBoxBytes = kTile * 128;  // 64 rows of 64 columns of 16 bits
inline constexpr int kStages = 4;
static_assert(kTile == KeptPatch::kKeys && kTile == kGroupWarps * KeptPatch::kQueries);

enum class Dropping : bool { off, on };

/// Bytes of a tile [64, D].
template <int kDim>
inline constexpr int kTileBytes = kDim / 64 * kBoxBytes;

/// What the kernels get, by value.
struct Args {
  CUtensorMap qkv;                // [columns, S, B], boxes of 64 columns x 64 tokens
  CUtensorMap dout;               // [A D, S, B], likewise; backward
  CUtensorMap result;             // out or dqkv, likewise, boxes of 64 columns x 16 tokens
  const std::int32_t* lengths;    // [B], or null
  float* log_sum_exp;             // [B, A, S]; forward
  const float2* statistics;       // [B, A, S rounded up to tiles]: see prepare_kernel; backward
  int seq_len, num_heads, heads;  // S, A, B*A or, for the kernel of dk and dv, B*G
  int row_blocks;                 // of one head
  int concurrent_heads;           // see work_of()
  int sharing;                    // A / G
  QkvOrder order;
  bool is_causal;
  float scale, kept_scale;      // 1 / sqrt(D), 1 / P(keep)
  const StepState* step_state;  // dropout; kernels without it read none of these
  KeptRounds rounds;
  std::uint32_t first_sample, first_head, num_global_heads;
};

struct Work {
  int head;  // sample * A + head, or sample * G + group
  int turn;  // a row block of the head: 0 has the largest number of tiles
};

/// The longest blocks start first, and the short ones fill the gaps at the end. Heads go in groups whose streamed
/// tensors fit in the L2 cache together.
__device__ inline Work work_of(const Args& args) {
  const int block = static_cast<int>(blockIdx.x);
  const int first = block / (args.concurrent_heads * args.row_blocks) * args.concurrent_heads;
  const int heads = min(args.concurrent_heads, args.heads - first), in_heads = block - first * args.row_blocks;
  return {.head = first + in_heads % heads, .turn = in_heads / heads};
}

/// Tokens of a sample that are not padding.
__device__ inline int length_of(const Args& args, int sample) {
  return args.lengths == nullptr ? args.seq_len : min(max(args.lengths[sample], 0), args.seq_len);
}

/// Tiles of 64 that hold `rows` rows.
__device__ inline int tiles_of(int rows) { return (rows + kTile - 1) / kTile; }

enum class Part { q, k, v };

/// The first column of qkv of q of a head of a sample, or of the k or v that it reads.
template <int kDim>
__device__ int column_of(const Args& args, int head, Part part) {
  const int group = head / args.sharing, groups = args.num_heads / args.sharing;
  if (args.order == QkvOrder::parts)
    return (part == Part::q ? head : args.num_heads + (part == Part::v ? groups : 0) + group) * kDim;
  const int in_group = part == Part::q ? head % args.sharing : args.sharing - 1 + static_cast<int>(part);
  return (group * (args.sharing + 2) + in_group) * kDim;
}

/// Starts the copy of a tile [64, D] from (column, row) of a sample.
template <int kDim>
__device__ void load_tile(std::byte* to, const CUtensorMap& map, Barrier& barrier, int column, int row, int sample) {
#pragma unroll
  for (int box = 0; box < kDim / 64; ++box)
    hopper::load_box(std::uint16_t{0}, to + box * kBoxBytes, map, barrier, column + 64 * box, row, sample);
}

/// What the threads of a block know of themselves.
struct Place {
  int group, warp, lane;
  __device__ Place()
      : group(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroupThreads, 0)),
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarp % kGroupWarps, 0)),
        lane(static_cast<int>(threadIdx.x) % kWarp) {}
};

/// The queries of a block and of one of its warp groups, and how many tiles of keys these see.
struct QueryTiles {
  int head_of_all;  ///< sample * A + head
  int sample, head, length, first_query, group_query;
  int num_tiles, group_tiles;

  /// `rows`: queries of a block.
  __device__ QueryTiles(const Args& args, int rows, int group) {
    const Work work = work_of(args);
    head_of_all = work.head;
    sample = head_of_all / args.num_heads;
    head = head_of_all % args.num_heads;
    length = length_of(args, sample);
    first_query = (args.row_blocks - 1 - work.turn) * rows;
    group_query = first_query + group * kTile;
    num_tiles = tiles_seen_by(args, first_query, first_query + rows);
    group_tiles = tiles_seen_by(args, group_query, group_query + kTile);
  }

 private:
  __device__ int tiles_seen_by(const Args& args, int first, int end) const {
    return first < length ? tiles_of(args.is_causal ? min(end, length) : length) : 0;
  }
};

/// The barriers of the tiles that stay with a block, and of a ring of stages for those that stream past its warp
/// groups, one each step.
template <int kGroups>
struct Ring {
  Barrier full[kStages], empty[kStages], own_full;

  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        hopper::init(full[stage], 1);
        hopper::init(empty[stage], kGroups * kGroupWarps);
      }
      hopper::init(own_full, 1);
      hopper::fence_init();
    }
    __syncthreads();
  }
  /// Starts the copies of the tiles that stay, `own_bytes` by load_own(barrier), and of the first steps, by load(step).
  /// When this returns, the tiles that stay have arrived. `copies`: of the thread that copies.
  template <class LoadOwn, class Load>
  __device__ __forceinline__ void start(int num_steps, bool copies, unsigned own_bytes, const LoadOwn& load_own,
                                        const Load& load) {
    if (copies && num_steps > 0) {
      hopper::arrive_and_expect(own_full, own_bytes);
      load_own(own_full);
      for (int step = 0; step < min(kStages, num_steps); ++step) load(step);
    }
    __syncwarp();
    if (num_steps > 0) hopper::wait(own_full, 0);
  }
  /// Begins a step. When this returns, its tiles have arrived. The stage of the step before the last is free in this
  /// warp's group, and once it is in the others the thread that copies fills it.
  template <class Load>
  __device__ __forceinline__ void begin(int step, int num_steps, bool copies, const Load& load) {
    const int next = step - 2 + kStages;
    if (copies && step >= 2 && next < num_steps) {
      hopper::wait(empty[next % kStages], static_cast<unsigned>(next / kStages - 1) & 1u);
      load(next);
    }
    __syncwarp();
    hopper::wait(full[step % kStages], static_cast<unsigned>(step / kStages) & 1u);
  }
  /// All lanes have seen that the tiles have arrived: otherwise a late one would wait for a phase that is over.
  __device__ __forceinline__ void release(int step, int lane) {
    __syncwarp();
    if (lane == 0) hopper::arrive(empty[step % kStages]);
  }
};

/// Starts the copies of tiles of k and v.
template <int kDim>
__device__ void load_keys(std::byte (&to)[2][kTileBytes<kDim>], const Args& args, Barrier& full, int column_k,
                          int column_v, int row, int sample) {
  load_tile<kDim>(to[0], args.qkv, full, column_k, row, sample);
  load_tile<kDim>(to[1], args.qkv, full, column_v, row, sample);
}

/// Group barriers: the first is that of warp group 0.
inline constexpr int kGroupBarrier = 1;
__device__ inline void sync_group(int group) { hopper::sync_named(kGroupBarrier + group, kGroupThreads); }

/// sums [64, 64] = a b^T for tiles a, b [64, D] in shared memory. Asynchronous, a group of products.
template <class T, int kDim>
__device__ __forceinline__ void multiply_rows(float (&sums)[32], const std::byte* a, const std::byte* b) {
  const std::uint64_t left = KeysMajor::descriptor(a), right = KeysMajor::descriptor(b);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const std::uint64_t at = step / 4 * (kBoxBytes / 16) + step % 4 * KeysMajor::kStep;
    hopper::multiply<T, Major::sum>(sums, left + at, right + at, step > 0);
  }
}
/// sums [64, D] += a b for a [64, 64] in registers and a tile b [64, D].
template <class T, int kDim>
__device__ __forceinline__ void multiply_add(float (&sums)[kDim / 2], const std::uint32_t (&a)[4][4],
                                             const std::byte* b) {
  const std::uint64_t right = DepthMajor::descriptor(b);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    hopper::multiply<T, Major::other>(sums, a[step], right + step * DepthMajor::kStep, 1);
}

/// Rounds sums [64, 64] to the left side of a product.
template <class T>
__device__ __forceinline__ void round_sums(std::uint32_t (&fragments)[4][4], const float (&sums)[32]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) fragments[step][i] = packed<T>(sums[8 * step + 2 * i], sums[8 * step + 2 * i + 1]);
  }
}

/// Sets what dropout drops of rounded sums of queries x keys to 0. A register has a pair of columns, whose bits in
/// `kept` are 16 apart: 2.5 instructions for two.
__device__ __forceinline__ void drop(std::uint32_t (&fragments)[4][4], std::uint32_t kept) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int bit = 4 * step + i % 2 * 2 + i / 2;  // kept_bit_of_queries(8 step + 2 i)
      fragments[step][i] &= spread_signs(kept << (7 - bit % 8), bit < 8 ? 0xaa88u : 0xbb99u);
    }
  }
}

/// Scores of keys that their query does not see become -inf. `query` and `key`: the lane's first.
__device__ inline void mask_scores(float (&scores)[32], int query, int key, int length, bool is_causal) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int of_score = key + i / 4 * 8 + i % 2;
    if (of_score >= length || (is_causal && of_score > query + i / 2 % 2 * 8)) scores[i] = -INFINITY;
  }
}

/// Stores the warp's 16 rows of sums [64, D] times their factors from `row` on, by way of its rows of a tile that
/// nobody reads any more. Rows from `length` on are 0. The caller waits for the reads of the store.
template <class T, int kDim>
__device__ __forceinline__ void store_sums(const CUtensorMap& map, std::byte* tile, const float (&sums)[kDim / 2],
                                           const float (&factor)[2], int column, int row, int sample, int length,
                                           int warp, int lane) {
  const bool inside[2] = {row + lane / 4 < length, row + lane / 4 + 8 < length};
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = sums + 8 * step + 2 * i;
      words[i] = inside[i % 2] ? packed<T>(pair[0] * factor[i % 2], pair[1] * factor[i % 2]) : 0u;
    }
    hopper::store_matrices(tile + step / 4 * kBoxBytes + warp * kChunkBytes + chunk_offset(step % 4, lane), words);
  }
  hopper::fence_writes();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (int box = 0; box < kDim / 64; ++box)
      hopper::store_box(map, tile + box * kBoxBytes + warp * kChunkBytes, column + 64 * box, row, sample);
    hopper::commit_stores();
  }
}

// ---- Dropout ----

/// The random words of one head.
struct KeptHead {
  std::uint32_t head = 0, step = 0;

  KeptHead() = default;
  __device__ KeptHead(const Args& args, int sample, int head_of_sample) {
    const StepState* state = args.step_state;
    const auto first = static_cast<std::uint32_t>(__ldg(&state->first_sample)) + args.first_sample;
    head = (first + static_cast<std::uint32_t>(sample)) * args.num_global_heads + args.first_head +
           static_cast<std::uint32_t>(head_of_sample);
    step = static_cast<std::uint32_t>(__ldg(&state->step));
  }
  /// The lane's group of a patch: `row` counts 16 queries, `column` 64 keys.
  __device__ __forceinline__ std::uint32_t group(const Args& args, int row, int column, int lane) const {
    return args.rounds.group(block_of(args, row, column, lane), head, step);
  }
  /// The same in two calls, for two times in which products are on the tensor cores.
  __device__ __forceinline__ std::uint32_t half_group(const Args& args, int row, int column, int lane) const {
    return args.rounds.group<0, 2>(block_of(args, row, column, lane), head, step);
  }
  __device__ __forceinline__ std::uint32_t whole_group(const Args& args, int row, int column, int lane,
                                                       std::uint32_t half) const {
    return args.rounds.group<2, 4>(block_of(args, row, column, lane), head, step, half);
  }

 private:
  static __device__ __forceinline__ std::uint32_t block_of(const Args& args, int row, int column, int lane) {
    const auto patch = static_cast<std::uint32_t>(row * tiles_of(args.seq_len) + column);
    return patch * KeptPatch::kBlocks + static_cast<unsigned>(lane * KeptPatch::kGroupBlocks);
  }
};

// ---- Launches ----

/// What a call's kernels get, without what only one of them needs. `rows`: of a block of a head.
template <class CallArgs>
Args args_of(const CallArgs& call, int head_dim) {
  // K and V, or Q and dO, of the heads in flight should stay in a part of the L2 cache of 50 MB.
  constexpr Index kCachedBytes = Index{16} << 20;
  const Index heads = call.batch * call.num_heads, width = call.qkv.dim(1);
  const Index head_bytes = 2 * call.seq_len * head_dim * size_of(call.qkv.dtype());
  Args args{};
  args.qkv = tensor_map<3>(call.qkv, {width, call.seq_len, call.batch}, {width, call.seq_len * width}, {64, kTile, 1});
  args.lengths = call.lengths ? static_cast<const std::int32_t*>(call.lengths.raw()) : nullptr;
  args.seq_len = static_cast<int>(call.seq_len);
  args.num_heads = static_cast<int>(call.num_heads);
  args.heads = static_cast<int>(heads);
  args.concurrent_heads = static_cast<int>(std::clamp(kCachedBytes / head_bytes, Index{1}, heads));
  args.sharing = static_cast<int>(call.num_heads / kv_heads_of(call));
  args.order = call.order;
  args.is_causal = call.mask == AttentionMask::causal;
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  args.kept_scale = 1;
  if (call.dropout.probability > 0) {
    args.kept_scale = static_cast<float>(attention_kept_scale(call.dropout.probability));
    args.step_state = static_cast<const StepState*>(call.dropout.step_state.raw());
    args.rounds = KeptRounds::of(call.dropout.seed, call.dropout.site, call.dropout.probability);
    args.first_sample = static_cast<std::uint32_t>(call.dropout.first_row / call.seq_len);
    args.first_head = static_cast<std::uint32_t>(call.first_head);
    args.num_global_heads = static_cast<std::uint32_t>(call.num_global_heads);
  }
  return args;
}

/// A map of [B*S, columns] by samples, in boxes of 64 columns x 16 tokens.
inline CUtensorMap map_of_results(const Tensor& tensor, Index batch, Index seq_len) {
  const Index width = tensor.dim(1);
  return tensor_map<3>(tensor, {width, seq_len, batch}, {width, seq_len * width}, {64, kChunkRows, 1});
}

inline void zero_padding_of(Stream stream, const Tensor& rows, Index seq_len, const Tensor& lengths) {
  if (!lengths) return;
  zero_padding(stream, {.data = rows.raw(), .row_bytes = rows.bytes() / rows.dim(0), .seq_len = seq_len}, lengths);
}

/// Calls f.template operator()<T, kDim, kDropping>() for a shape that is covered.
template <class F>
void dispatch(const AttentionShape& shape, const F& f) {
  const auto with_dropping = [&]<class T, int kDim>() {
    if (shape.dropout > 0)
      f.template operator()<T, kDim, Dropping::on>();
    else
      f.template operator()<T, kDim, Dropping::off>();
  };
  const auto with_dim = [&]<class T>() {
    if (shape.head_dim == 64)
      with_dropping.template operator()<T, 64>();
    else
      with_dropping.template operator()<T, 128>();
  };
  if (shape.dtype == DType::bf16)
    with_dim.template operator()<__nv_bfloat16>();
  else
    with_dim.template operator()<__half>();
}

/// Launches a kernel with a block for every kGroups tiles of rows of every head.
template <int kGroups, class Kernel>
void launch_groups(Stream stream, Kernel* kernel, int shared_bytes, Args args) {
  args.row_blocks = (args.seq_len + kGroups * kTile - 1) / (kGroups * kTile);
  args.concurrent_heads = std::min(args.concurrent_heads, args.heads);
  megalith::cuda::allow_shared_memory(kernel, shared_bytes);
  launch({stream, Index{args.row_blocks} * args.heads, dim3(kGroups * kGroupThreads), shared_bytes}, kernel, args);
}

}  // namespace megalith::ops::cuda::hopper_attention
