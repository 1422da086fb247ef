#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "megalith/comm/peer/device_barrier.h"
#include "megalith/tensor/tensor.h"

// Kernels for work that copy engines cannot do, or would start late.

namespace megalith::comm {

/// The dtypes of sum_parts().
constexpr bool is_summed(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// cuda::load_kernels() for all kernels of this file, for groups of `members` members.
void load_kernels(int members);

/// Limits of a kernel that accesses the memory of other GPUs.
struct Reach {
  int max_ctas = 0;  ///< CTAs; 0: as many as suit the memory of the own GPU
  /// A word of the own GPU. The kernel does nothing if it is not 0. Null: it always runs.
  const std::uint32_t* unless = nullptr;
};

/// out[i] = parts[0][i] + parts[1][i] + ... in this order, in f32 (f64 for f64) and rounded once, for every `out` of
/// `outs`. An output may be one of the parts. Moves `members` + `num_outs` elements for each of `count`.
struct PartsSum {
  std::array<const void*, kMaxSummed> parts{};
  int members = 0;
  std::array<void*, kMaxSummed> outs{};
  int num_outs = 0;
  Index count = 0;
  DType dtype = DType::f32;

  void add_out(void* out) { outs.at(static_cast<std::size_t>(num_outs++)) = out; }
};
void sum_parts(Stream stream, const PartsSum& args);

/// The part of one member's kernel in the symmetric memory of all members: bytes [offset, offset + count * element).
/// Each member's kernel works on another part. Each CTA has an SM for itself. A GEMM that leaves an SM margin of this
/// many SMs keeps all others, whichever of the two kernels starts first. For a sum, (members - 1) parts are moved in.
/// An all-reduce and a gather move as much out.
struct SymmetricPart {
  DeviceBarrier barrier = {};
  Index offset = 0;  ///< bytes
  Index count = 0;
  DType dtype = DType::f32;
  int blocks = 1;
};
/// Writes the sum of the parts, in the order of sum_parts(), into all of them.
void all_reduce_symmetric(Stream stream, const SymmetricPart& part);
/// Writes the same sum to `out` alone.
void reduce_scatter_symmetric(Stream stream, const SymmetricPart& part, void* out);
/// Writes `in` into all of the parts. It may be the own one.
void all_gather_symmetric(Stream stream, const SymmetricPart& part, const void* in);

/// Copies by SMs, to one destination or several. While such a copy waits in its stream, copies of other streams can
/// run. A waiting copy of a copy engine would delay them.
void copy_by_kernel(Stream stream, void* to, const void* from, Index bytes);
void copy_by_kernel(Stream stream, std::span<void* const> to, const void* from, Index bytes, const Reach& reach);

/// A write of a word, or a wait until the word is at least `value`. The word may be on another GPU.
struct SignalStep {
  enum class Kind : std::uint8_t { write, wait };
  Kind kind = Kind::write;
  std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
};
inline constexpr int kMaxSignalSteps = 32;
struct SignalSteps {
  std::array<SignalStep, kMaxSignalSteps> at{};
  int count = 0;
};
/// One thread runs the steps in their order.
void run_signals(Stream stream, const SignalSteps& steps);

}  // namespace megalith::comm
