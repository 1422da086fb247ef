#pragma once
#include <cstddef>

#include "megalith/ops/cuda/grouped_ends.cuh"
#include "megalith/ops/cuda/grouped_walk.cuh"
#include "megalith/ops/cuda/hopper.cuh"

// A thread block stays on its SM and computes tiles of kTileRows x kTileColumns. A cluster takes the next two tiles
// when it has none left, so all clusters end at about the same time. One warp finds tiles and copies operands. Two warp
// groups ("consumers") share a tile: each has 64 of its rows. One is some stages ahead of the other. So one has the
// tensor cores while the other rounds and stores.

namespace megalith::ops::cuda::grouped_tiles {

using hopper::Barrier;
using hopper::Major;
using hopper::RingPlace;

inline constexpr int kStages = 4;
inline constexpr int kBoxBytes = 64 * kDepth * 2;  // 8192, of operands: 64 rows of 128 bytes

inline constexpr int kConsumers = 2, kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarp;
inline constexpr int kBlockThreads = (kConsumers + 1) * kGroupThreads;
/// Registers of a thread, in the group that copies and in the others. Each has 168 at the start, 64512 of 65536 in all.
inline constexpr int kCopyRegisters = 40;
inline constexpr int kConsumerRegisters = 232;
static_assert(kCopyRegisters + kConsumers * kConsumerRegisters == (kConsumers + 1) * 168);

inline constexpr int kLeadBarrier = 1;  // a named barrier: consumer 1 may begin
inline constexpr int kLead = 2;         // stages of the first tile that consumer 0 is ahead

template <Kind kKind>
inline constexpr Major kMajorOfA = is_weight_grad(kKind) ? Major::other : Major::sum;
template <Kind kKind>
inline constexpr Major kMajorOfB = is_forward(kKind) ? Major::sum : Major::other;

struct Stage {
  std::byte a[kTileRows * kDepth * 2];     // two boxes: 64 rows each
  std::byte b[kTileColumns * kDepth * 2];  // [columns, 64], or four boxes [64, 64 columns]
};

/// A KiB of a block's maximum stays free, as in gelu_tiles.cuh.
struct alignas(1024) SharedMemory {
  static constexpr int kTileSlots = 2;
  /// The block that asks for items is ahead of the other by the tiles of a ring of stages, one, and the next.
  static constexpr int kItemSlots = 8;
  static_assert(kItemSlots >= kStages + 2);
  Stage stages[kStages];
  Chunks chunks[kConsumers * kGroupWarps];
  Tile tiles[kTileSlots];
  Barrier full[kStages], empty[kStages];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
  std::uint32_t items[kItemSlots], word_of_other_block;
  Barrier item_full[kItemSlots];
};
static_assert(sizeof(SharedMemory) <= 226 * 1024);

/// Copies the operands of one stage. Two blocks of a cluster whose tiles lie below each other each copy half of b for
/// both, and two whose tiles lie side by side half of a.
template <Kind kKind>
__device__ void copy_stage(const GroupedArgs& args, Stage& stage, Barrier& full, const Tile& tile, int depth,
                           int rank) {
  constexpr std::uint16_t kBoth = (1u << kClusterBlocks) - 1;
  const auto copy_half_of_a = [&](std::uint16_t ranks, int half) {
    std::byte* const to = stage.a + half * kBoxBytes;
    if constexpr (is_weight_grad(kKind)) {
      hopper::load_box(ranks, to, args.a, full, tile.row + half * 64, tile.first + depth, 0);
    } else {
      hopper::load_box(ranks, to, args.a, full, depth, tile.row + half * 64, 0);
    }
  };
  const auto copy_half_of_b = [&](std::uint16_t ranks, int half) {
    std::byte* const to = stage.b + half * 2 * kBoxBytes;
    const int column = tile.column + half * (kTileColumns / 2);
    if constexpr (kKind == Kind::up_gated) {
      hopper::load_box_of_five(ranks, to, args.b, full, depth, column / 16, tile.group);
    } else if constexpr (is_forward(kKind)) {
      hopper::load_box(ranks, to, args.b, full, depth, column, tile.group);
    } else {
      const int y = is_weight_grad(kKind) ? tile.first + depth : depth, z = is_weight_grad(kKind) ? 0 : tile.group;
      for (int side = 0; side < 2; ++side)
        hopper::load_box(ranks, to + side * kBoxBytes, args.b, full, column + side * 64, y, z);
    }
  };
  if (tile.lies_beside) {
    copy_half_of_a(kBoth, rank);
    copy_half_of_b(0, 0);
    copy_half_of_b(0, 1);
  } else {
    copy_half_of_b(kBoth, rank);
    copy_half_of_a(0, 0);
    copy_half_of_a(0, 1);
  }
}

/// Items of the cluster. Its first block asks for the next one and sends it to both.
class Items {
 public:
  __device__ Items(const GroupedArgs& args, SharedMemory& shared, int count)
      : args_(args),
        shared_(shared),
        count_(count),
        clusters_(static_cast<int>(gridDim.x) / kClusterBlocks),
        next_(static_cast<int>(blockIdx.x) / kClusterBlocks) {}

  /// Every item that is below the count must be followed by ask(), answer() and receive().
  __device__ int next() const { return next_; }
  /// One thread.
  __device__ void ask() {
    if (blockIdx.x % kClusterBlocks == 0) given_ = atomicAdd(args_.items, 1u);
  }
  /// The same thread, later: the first item was not asked for, so as many are asked for as there are.
  __device__ void answer() {
    if (blockIdx.x % kClusterBlocks != 0) return;
    if (static_cast<int>(given_) == count_ - 1) *args_.items = 0;
    for (unsigned rank = 0; rank < kClusterBlocks; ++rank)
      hopper::send_word(rank, shared_.items[slot_.place], given_ + static_cast<unsigned>(clusters_),
                        shared_.item_full[slot_.place]);
  }
  /// All lanes of the warp.
  __device__ void receive(int lane) {
    Barrier& full = shared_.item_full[slot_.place];
    if (lane == 0) hopper::arrive_and_expect(full, sizeof(std::uint32_t));
    hopper::wait(full, slot_.parity);
    next_ = static_cast<int>(shared_.items[slot_.place]);
    slot_.next();
  }

 private:
  const GroupedArgs& args_;
  SharedMemory& shared_;
  int count_, clusters_, next_;
  std::uint32_t given_ = 0;
  RingPlace<SharedMemory::kItemSlots> slot_;
};

/// Copies a part of z as a stage: 128 columns of the tile's rows, in two boxes. The other block of the cluster sends a
/// word when the stage is free for it too, as it copies into stages of operands only then. So no block is ahead of the
/// other by a stage, whose release would be counted with that of the stage before.
template <Kind kKind>
__device__ void copy_z(const GroupedArgs& args, SharedMemory& shared, int place, const Tile& tile, int part, int rank) {
  Stage& stage = shared.stages[place];
  Barrier& full = shared.full[place];
  hopper::arrive_and_expect(full, 2 * kZBoxBytes + sizeof(std::uint32_t));
  hopper::send_word(static_cast<unsigned>(rank ^ 1), shared.word_of_other_block, 0, full);
  const int column = tile.column * kZPerUnit<kKind> + part * 2 * kSide;
  for (int side = 0; side < 2; ++side)
    hopper::load_box(0, reinterpret_cast<std::byte*>(&stage) + side * kZBoxBytes, args.z, full, column + side * kSide,
                     tile.row, 0);
}

/// Run by one warp. It finds the block's tiles, hands them to the consumers, and copies their operands stage by stage,
/// as the consumers free them.
template <Kind kKind>
__device__ void copy_operands(const GroupedArgs& args, SharedMemory& shared, int lane) {
  const int rank = static_cast<int>(blockIdx.x) % kClusterBlocks;
  Walk<kKind> walk(args, rank, lane);
  Items items(args, shared, walk.count());
  RingPlace<kStages> at;
  RingPlace<SharedMemory::kTileSlots> slot;
  for (;; slot.next()) {
    const bool is_last = items.next() >= walk.count();
    const Tile tile = is_last ? Tile{} : walk.find(items.next());
    // One lane alone waits. It goes on before the others do, and the barrier could be two phases on when they look.
    if (lane == 0) {
      hopper::wait(shared.tile_empty[slot.place], slot.parity ^ 1u);
      shared.tiles[slot.place] = tile;
      hopper::arrive(shared.tile_full[slot.place]);
    }
    if (is_last) break;
    if (lane == 0) {
      items.ask();
      for (int i = 0; i < tile.steps; ++i, at.next()) {
        hopper::wait(shared.empty[at.place], at.parity ^ 1u);
        hopper::arrive_and_expect(shared.full[at.place], sizeof(Stage));
        copy_stage<kKind>(args, shared.stages[at.place], shared.full[at.place], tile, i * kDepth, rank);
        if (i == 0) items.answer();
      }
      for (int i = 0; is_down(kKind) && i < kZParts<kKind>; ++i, at.next()) {
        hopper::wait(shared.empty[at.place], at.parity ^ 1u);
        copy_z<kKind>(args, shared, at.place, tile, i, rank);
      }
    }
    __syncwarp();
    items.receive(lane);
  }
}

/// A warp of a consumer has read a stage. This notifies both blocks of the cluster, which copy into it.
__device__ inline void release(Barrier& empty, int lane) {
  if (lane < kClusterBlocks) hopper::arrive_at(empty, static_cast<unsigned>(lane));
}

/// sums = a b of a consumer's half of a tile. `each` is called with the number of every step whose products are issued.
template <class T, Kind kKind, class Each>
__device__ __forceinline__ void multiply_tile(Sums& sums, SharedMemory& shared, RingPlace<kStages>& at, int steps,
                                              int consumer, int lane, const Each& each) {
  using A = hopper::Operand<kMajorOfA<kKind>>;
  using B = hopper::Operand<kMajorOfB<kKind>>;
  int last_stage = 0;
  for (int i = 0; i < steps; ++i) {
    hopper::wait(shared.full[at.place], at.parity);
    const std::uint64_t a = A::descriptor(shared.stages[at.place].a + consumer * kBoxBytes),
                        b = B::descriptor(shared.stages[at.place].b);
    hopper::begin_products();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step)
      hopper::multiply<T, kMajorOfA<kKind>, kMajorOfB<kKind>>(sums, a + step * A::kStep, b + step * B::kStep,
                                                              i + step > 0);
    hopper::commit_products();
    if (i > 0) {
      hopper::wait_for_products<1>();
      release(shared.empty[last_stage], lane);
    }
    each(i);
    last_stage = at.place;
    at.next();
  }
  hopper::wait_for_products<0>();
  release(shared.empty[last_stage], lane);
  hopper::hold(sums);
}

/// The same in all lanes of a warp, which the compiler cannot know.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
__device__ inline Tile uniform(Tile tile) {
  for (int* x : {&tile.group, &tile.row, &tile.column, &tile.end, &tile.steps}) *x = uniform(*x);
  return tile;
}

template <class T, Kind kKind>
__device__ __forceinline__ void consume(const GroupedArgs& args, SharedMemory& shared, int consumer) {
  const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp) % kGroupWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Chunks& chunks = shared.chunks[consumer * kGroupWarps + warp];
  RingPlace<kStages> at;
  RingPlace<SharedMemory::kTileSlots> slot;
  for (bool is_first = true;; is_first = false, slot.next()) {
    hopper::wait(shared.tile_full[slot.place], slot.parity);
    const Tile tile = uniform(shared.tiles[slot.place]);
    __syncwarp();  // all lanes have read it
    if (lane == 0) hopper::arrive(shared.tile_empty[slot.place]);
    if (tile.group < 0) break;
    if (is_first && consumer == 1) hopper::sync_named(kLeadBarrier, kConsumers * kGroupThreads);
    const int lead = is_first && consumer == 0 ? min(kLead, tile.steps) : -1;
    Sums sums;
    multiply_tile<T, kKind>(sums, shared, at, tile.steps, consumer, lane, [&](int step) {
      if (step + 1 == lead) hopper::arrive_named(kLeadBarrier, kConsumers * kGroupThreads);
    });
    const int row = consumer * 64 + warp * kChunkRows;
    if constexpr (is_down(kKind)) {
      RingPlace<kStages> read = at;
      const auto take = [&] {
        hopper::wait(shared.full[at.place], at.parity);
        __syncwarp();
        std::byte* const stage = reinterpret_cast<std::byte*>(&shared.stages[at.place]);
        at.next();
        return stage + row * kChunkRowBytes;
      };
      const auto give_back = [&] {
        release(shared.empty[read.place], lane);
        read.next();
      };
      finish_down<T, kKind>(args, chunks, sums, tile, tile.row + row, lane, take, give_back);
    } else {
      finish<T, kKind>(args, chunks, sums, tile, tile.row + row, lane);
    }
  }
  if (hopper::is_elected()) hopper::wait_for_reads_of_stores<0>();  // shared memory is released with the block
}

template <class T, Kind kKind>
__device__ __forceinline__ void run_block(const GroupedArgs& args, SharedMemory& shared) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::init(shared.full[stage], 1);
      hopper::init(shared.empty[stage], kConsumers * kGroupWarps * kClusterBlocks);
    }
    for (int slot = 0; slot < SharedMemory::kTileSlots; ++slot) {
      hopper::init(shared.tile_full[slot], 1);
      hopper::init(shared.tile_empty[slot], kConsumers * kGroupWarps);
    }
    for (Barrier& full : shared.item_full) hopper::init(full, 1);
    hopper::fence_init();
  }
  hopper::sync_cluster();
  const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp);
  if (warp < kGroupWarps) {
    hopper::shrink_registers<kCopyRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) {
        for (const CUtensorMap* map : {&args.a, &args.b, &args.out}) hopper::prefetch_map(*map);
      }
      copy_operands<kKind>(args, shared, static_cast<int>(threadIdx.x));
    }
  } else {
    hopper::grow_registers<kConsumerRegisters>();
    consume<T, kKind>(args, shared, warp / kGroupWarps - 1);
  }
  // A block may not end while another of its cluster can copy into it or arrive at its barriers.
  hopper::sync_cluster();
}

/// See the top. Reads a and b, 2 bytes per element, and writes the result, 2 bytes, or 4 for weight_grad_f32, which
/// also reads as many where it adds. up: z and h are written. down: z is read, dz and ph are written.
///
/// Measured on an H200, bf16, normal data, 131072 rows, 64 groups, weights 2048 x 2048 and 2048 x 1024, in % of the
/// rate of the same product with its sums rounded and stored. After some ms the GPU's power is the bound of all.
///   up_gated 96 and 93, up_gelu 89 and 81, down_gated 81 and 80, down_gelu 75 and 77, weight_grad_f32 90 and 91.
/// The tensor cores work for 87 % of the time of `forward` with a depth of 1024, and 72 % of that of down_gated. The
/// rest is the end of a tile, which the consumers' distance hides in part. That distance is not critical, nor are the
/// stores. Also tried for weight_grad_f32: stores and additions from registers, 5 to 8 % slower. For down: loads of z
/// from registers, 30 % slower, and z fetched to the L2 before, 3 %.
template <class T, Kind kKind>
__global__ void __launch_bounds__(kBlockThreads, 1) grouped_product_kernel(const __grid_constant__ GroupedArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte grouped_product_shared[];
  run_block<T, kKind>(args, *reinterpret_cast<SharedMemory*>(grouped_product_shared));
#endif
}

}  // namespace megalith::ops::cuda::grouped_tiles
