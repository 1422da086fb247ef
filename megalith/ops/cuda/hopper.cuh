#pragma once
#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "megalith/tensor/cuda/shared_barrier.cuh"

/// Instructions of Hopper (compute capability 9.0, compiled for sm_90a) that CUDA C++ has no function for. They are
/// barriers in shared memory, bulk copies, and matrix products of warp groups. Call them in code for that architecture
/// only (barriers and plain bulk copies: from 9.0 on). Elsewhere they must not be instantiated. Source: PTX ISA 8.0 and
/// later, "mbarrier", "cp.async.bulk", "cp.async.bulk.tensor", "Asynchronous Warpgroup Level Matrix Instructions".
namespace megalith::ops::cuda::hopper {

using megalith::cuda::arrive_and_expect;
using megalith::cuda::Barrier;
using megalith::cuda::fence_init;
using megalith::cuda::init;
using megalith::cuda::shared_address;
using megalith::cuda::wait;

// ---- Barriers in shared memory, of a cluster ----

__device__ inline void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
/// Arrives at the same barrier of the cluster's block `rank`. The thread's writes need not be visible there: a release
/// at the cluster's scope waits for all of its accesses to memory.
__device__ inline void arrive_at(Barrier& barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}
/// Writes a word to the same place in the cluster's block `rank`, and counts its 4 bytes at the same barrier there.
__device__ inline void send_word(unsigned rank, std::uint32_t& to, std::uint32_t word, Barrier& barrier) {
  asm volatile(
      "{\n"
      ".reg .b32 place, arrival;\n"
      "mapa.shared::cluster.u32 place, %0, %3;\n"
      "mapa.shared::cluster.u32 arrival, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [place], %1, [arrival];\n"
      "}" ::"r"(shared_address(&to)),
      "r"(word), "r"(shared_address(&barrier)), "r"(rank)
      : "memory");
}
/// A place in a ring. The parity is that of the phase of the place's barrier.
template <int kPlaces>
struct RingPlace {
  int place = 0;
  unsigned parity = 0;
  __device__ void skip(int count) {
    place += count;
    parity ^= static_cast<unsigned>(place / kPlaces) & 1u;
    place %= kPlaces;
  }
  __device__ void next() {
    if (++place < kPlaces) return;
    place = 0;
    parity ^= 1u;
  }
};

// ---- Barriers of threads ----

/// Named barriers of a block, 1 to 15 (0 is __syncthreads). A barrier opens when `threads` threads have called sync()
/// or arrive(). Only sync() waits.
__device__ inline void sync_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void arrive_named(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Waits for all threads of all blocks of the cluster. Their earlier writes are then visible.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// Sets the registers of each thread of the calling warp group: a multiple of 8, fewer or more than before.
template <int kRegisters>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- Bulk tensor copies: one thread starts one ----

/// True for one lane of the warp, the same every time. All lanes call it together. The compiler knows that one thread
/// goes on, which `lane == 0` does not tell it; it then needs no loop around a copy.
__device__ inline bool is_elected() {
  unsigned elected = 0;
  asm volatile(
      "{\n"
      ".reg .pred is_it;\n"
      "elect.sync _|is_it, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, is_it;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&map)) : "memory");
}
/// Copies the map's box at (column, row) to shared memory and counts its bytes at the barrier. Elements outside the
/// tensor become zeros, and count too.
__device__ inline void load_box(void* to, const CUtensorMap& map, Barrier& barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(column), "r"(row)
      : "memory");
}
/// The same, to the same place in every block of the cluster whose bit is set in `ranks`, each at its own barrier.
__device__ inline void load_box_to(std::uint16_t ranks, void* to, const CUtensorMap& map, Barrier& barrier, int column,
                                   int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&barrier)), "h"(ranks), "r"(column), "r"(row)
      : "memory");
}
/// load_box() of a map with three dimensions, to the blocks in `ranks`, or to this block's place alone where it is 0.
__device__ inline void load_box(std::uint16_t ranks, void* to, const CUtensorMap& map, Barrier& barrier, int x, int y,
                                int z) {
  if (ranks == 0) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&barrier)), "h"(ranks), "r"(x), "r"(y), "r"(z)
        : "memory");
  }
}
/// The same with five dimensions, of which the second and the third begin at 0.
__device__ inline void load_box_of_five(std::uint16_t ranks, void* to, const CUtensorMap& map, Barrier& barrier, int x,
                                        int y, int z) {
  if (ranks == 0) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %6, %6, %4, %5}], [%2];" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z), "r"(0)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%4, %7, %7, %5, %6}], [%2], %3;" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&barrier)), "h"(ranks), "r"(x), "r"(y), "r"(z),
        "r"(0)
        : "memory");
  }
}
/// Copies `bytes`, a multiple of 16, between addresses that are multiples of 16. Counts them at the barrier.
__device__ inline void load_bytes(void* to, const void* from, unsigned bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}
/// Copies 8 bytes, or writes zeros where `is_there` is false, in the background. A thread's copies count as one arrival
/// at the barrier of its next arrive_after_copies(), when they are done.
__device__ inline void copy_pair(float* to, const float* from, bool is_there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(is_there ? 8 : 0)
               : "memory");
}
__device__ inline void arrive_after_copies(Barrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
/// Copies a box of shared memory to (column, row). Nothing is written outside the tensor. The writers of the box must
/// have called fence_writes(), and then passed a barrier with the calling thread.
__device__ inline void store_box(const CUtensorMap& map, const void* from, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   reinterpret_cast<std::uint64_t>(&map)),
               "r"(shared_address(from)), "r"(column), "r"(row)
               : "memory");
}
__device__ inline void store_box(const CUtensorMap& map, const void* from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
                   reinterpret_cast<std::uint64_t>(&map)),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
               : "memory");
}
/// Adds a box to what is there. One copy alone may add to an element: those of several come in any order.
__device__ inline void add_box(const CUtensorMap& map, const void* from, int x, int y, int z) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
                   reinterpret_cast<std::uint64_t>(&map)),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
               : "memory");
}
/// Makes the thread's stores since the last call a group.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Returns when all but the thread's last kGroups groups have read their shared memory.
template <int kGroups>
__device__ inline void wait_for_reads_of_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}
/// Makes the thread's writes to shared memory visible to copies and matrix products that start later.
__device__ inline void fence_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Matrices of 8 x 8 16-bit elements, between a warp's registers and shared memory ----

/// Stores four matrices: the counterpart of load_matrices (ptx.h). Lane l gives the address (16 bytes, aligned) of row
/// l % 8 of matrix l / 8. It also gives the elements [l / 4][2 (l % 4)] and the next of each matrix.
__device__ inline void store_matrices(void* row, const std::uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

// ---- Matrix products of a warp group (four warps) ----

/// How an operand lies in shared memory: its rows along the sum's index, or across it. Rows have 64 elements (128
/// bytes) in either case. A map with CU_TENSOR_MAP_SWIZZLE_128B copies them there, so 8 rows are a unit of 1024 bytes.
enum class Major { sum, other };

/// The descriptor of an operand for the tensor cores: address, distances, swizzle; all in units of 16 bytes. Source:
/// PTX ISA, "Matrix Descriptor Format" and "Strides".
///   Major::sum    [rows, 64]: the next 8 rows lie 1024 bytes on (bits 32-45); bits 16-29 mean nothing. The next 16
///                 of the sum's indices are 32 bytes on, in the same rows.
///   Major::other  [64, columns] as consecutive boxes of 64 columns, each of 64 rows. The next 8 of the sum's indices
///                 lie 1024 bytes on (bits 32-45), the next 64 columns a box of 8192 bytes (bits 16-29). The next 16
///                 of the sum's indices are 16 rows or 2048 bytes on.
template <Major kMajor>
struct Operand {
  static constexpr std::uint64_t kStep = (kMajor == Major::sum ? 32 : 2048) / 16;  ///< to the next 16 indices

  /// The descriptor of a tile at a multiple of 1024 bytes.
  static __device__ std::uint64_t descriptor(const void* tile) {
    constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kEightRows = std::uint64_t{1024 / 16} << 32;
    constexpr std::uint64_t kBox = std::uint64_t{kMajor == Major::sum ? 1 : 8192 / 16} << 16;
    // Bits 24 and up of an address are the block's rank in its cluster. The tensor cores read the memory of their own
    // block.
    return kSwizzle128 | kEightRows | kBox | (shared_address(tile) & 0x3ffffu) / 16;
  }
};

/// The warp group's later products see its registers and the shared memory that it has waited for.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Makes the products since the last call a group.
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Returns when all but the last kGroups groups are done.
template <int kGroups>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
/// Keeps the compiler from moving uses of the sums across it.
template <int kSums>
__device__ void hold(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
/// The same for operands in registers, which stay where they are until the products that read them are done.
template <int kSteps>
__device__ void hold(std::uint32_t (&fragments)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(fragments[step][i])::"memory");
  }
}
template <int kBlocks, int kSums>
__device__ void hold(float (&sums)[kBlocks][kSums]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[block][i])::"memory");
  }
}

/// Eight sums as operands of an instruction.
#define MEGALITH_SUMS(i)                                                                                        \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define MEGALITH_32_SUMS(i) MEGALITH_SUMS(i), MEGALITH_SUMS(i + 8), MEGALITH_SUMS(i + 16), MEGALITH_SUMS(i + 24)
#define MEGALITH_64_SUMS(i) MEGALITH_32_SUMS(i), MEGALITH_32_SUMS(i + 32)
#define MEGALITH_96_SUMS(i) MEGALITH_64_SUMS(i), MEGALITH_32_SUMS(i + 64)
#define MEGALITH_128_SUMS(i) MEGALITH_64_SUMS(i), MEGALITH_64_SUMS(i + 64)
/// The names of the first 32, 64, 96, 128 operands.
#define MEGALITH_32_NAMES                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MEGALITH_64_NAMES                                                              \
  MEGALITH_32_NAMES                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MEGALITH_96_NAMES                                                              \
  MEGALITH_64_NAMES                                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MEGALITH_128_NAMES                                                                         \
  MEGALITH_96_NAMES                                                                                \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/// One product: its shape and the types of its operands, how many sums a lane has, the names of the operands, of what
/// tells whether it adds, what follows it; then its inputs.
// clang-format off
#define MEGALITH_MULTIPLY(shape, types, count, operands, adds, rest, ...)                                          \
  asm volatile(                                                                                                    \
      "{\n"                                                                                                        \
      ".reg .pred adds;\n"                                                                                         \
      "setp.ne.b32 adds, " adds ", 0;\n"                                                                           \
      "wgmma.mma_async.sync.aligned." shape ".f32." types                                                          \
      " {" MEGALITH_##count##_NAMES "}, " operands ", adds, 1, 1" rest ";\n"                                       \
      "}"                                                                                                          \
      : MEGALITH_##count##_SUMS(0)                                                                                 \
      : __VA_ARGS__)
// clang-format on
/// The same of T = __nv_bfloat16 or __half.
#define MEGALITH_MULTIPLY_16_BITS(shape, ...)           \
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {     \
    MEGALITH_MULTIPLY(shape, "bf16.bf16", __VA_ARGS__); \
  } else {                                              \
    static_assert(std::is_same_v<T, __half>);           \
    MEGALITH_MULTIPLY(shape, "f16.f16", __VA_ARGS__);   \
  }

/// sums = a b for add = 0, else sums += a b: a [64, 16] (Major::sum), b [16, 128], by their descriptors; T =
/// __nv_bfloat16 or __half. Asynchronous. Warp w of the group has rows 16 w to 16 w + 15 of the sums [64, 128]. Its
/// lane l has
///   sums[4 t + 0..1]: row l / 4,     columns 8 t + 2 (l % 4) + 0..1
///   sums[4 t + 2..3]: row l / 4 + 8, the same columns.
template <class T, Major kMajorOfB>
__device__ inline void multiply(float (&sums)[64], std::uint64_t a, std::uint64_t b, int add) {
  MEGALITH_MULTIPLY_16_BITS("m64n128k16", 64, "%64, %65", "%66", ", 0, %67", "l"(a), "l"(b), "r"(add),
                            "n"(kMajorOfB == Major::other ? 1 : 0));
}
/// multiply() with b [16, 64].
template <class T, Major kMajorOfB>
__device__ inline void multiply(float (&sums)[32], std::uint64_t a, std::uint64_t b, int add) {
  MEGALITH_MULTIPLY_16_BITS("m64n64k16", 32, "%32, %33", "%34", ", 0, %35", "l"(a), "l"(b), "r"(add),
                            "n"(kMajorOfB == Major::other ? 1 : 0));
}

/// multiply() with a in registers, and b [16, 64] or [16, 128]. Lane l of a warp has, of the warp's 16 rows,
///   a[0]: row l / 4, columns 2 (l % 4) + 0..1;  a[1]: row l / 4 + 8;  a[2], a[3]: the same rows, 8 columns on.
/// They must not change until the product is done.
template <class T, Major kMajorOfB>
__device__ inline void multiply(float (&sums)[32], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  MEGALITH_MULTIPLY_16_BITS("m64n64k16", 32, "{%32, %33, %34, %35}, %36", "%37", ", %38", "r"(a[0]), "r"(a[1]),
                            "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kMajorOfB == Major::other ? 1 : 0));
}
template <class T, Major kMajorOfB>
__device__ inline void multiply(float (&sums)[64], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  MEGALITH_MULTIPLY_16_BITS("m64n128k16", 64, "{%64, %65, %66, %67}, %68", "%69", ", %70", "r"(a[0]), "r"(a[1]),
                            "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kMajorOfB == Major::other ? 1 : 0));
}

/// multiply() with b [16, 256], and a as kMajorOfA tells. Columns 8 t + 2 (l % 4) of the sums [64, 256] are at 4 t.
template <class T, Major kMajorOfA, Major kMajorOfB>
__device__ inline void multiply(float (&sums)[128], std::uint64_t a, std::uint64_t b, int add) {
  MEGALITH_MULTIPLY_16_BITS("m64n256k16", 128, "%128, %129", "%130", ", %131, %132", "l"(a), "l"(b), "r"(add),
                            "n"(kMajorOfA == Major::other ? 1 : 0), "n"(kMajorOfB == Major::other ? 1 : 0));
}

/// multiply() of E4M3: a [64, 32], b [32, 128] or [32, 192], both Major::sum, whose next 32 of the sum's indices are
/// 32 bytes on.
__device__ inline void multiply_e4m3(float (&sums)[64], std::uint64_t a, std::uint64_t b, int add) {
  MEGALITH_MULTIPLY("m64n128k32", "e4m3.e4m3", 64, "%64, %65", "%66", "", "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_e4m3(float (&sums)[96], std::uint64_t a, std::uint64_t b, int add) {
  MEGALITH_MULTIPLY("m64n192k32", "e4m3.e4m3", 96, "%96, %97", "%98", "", "l"(a), "l"(b), "r"(add));
}

#undef MEGALITH_MULTIPLY_16_BITS
#undef MEGALITH_MULTIPLY
#undef MEGALITH_128_NAMES
#undef MEGALITH_96_NAMES
#undef MEGALITH_64_NAMES
#undef MEGALITH_32_NAMES
#undef MEGALITH_128_SUMS
#undef MEGALITH_96_SUMS
#undef MEGALITH_64_SUMS
#undef MEGALITH_32_SUMS
#undef MEGALITH_SUMS

}  // namespace megalith::ops::cuda::hopper
