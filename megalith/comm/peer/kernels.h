#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "megalith/comm/peer/device_barrier.h"
#include "megalith/tensor/tensor.h"

// What the copy engines cannot do, and what they would do late.

namespace megalith::comm {

/// What sum_parts() takes.
constexpr bool is_summed(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// cuda::load_kernels() of all of this file's, for groups of so many members.
void load_kernels(int members);

/// What a kernel needs that reaches into other GPUs' memory.
struct Reach {
  int max_ctas = 0;  ///< thread blocks; 0: as many as suit the own GPU's memory
  /// A word of the own GPU; the kernel does nothing once it is not 0. Null: it always does.
  const std::uint32_t* unless = nullptr;
};

/// out[i] = parts[0][i] + parts[1][i] + ... in this order, in f32 (f64 for f64) and rounded once, for every `out` of
/// `outs`; they may be parts. Moves `members` + `num_outs` elements for each of `count`.
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

/// What a member's kernel does with what all members' bring along: each works on another part of it,
/// [offset, offset + count * element). Its thread blocks have a multiprocessor each: a product that leaves so many has
/// all others, whichever of the two is there first. Moves (members - 1) parts in for a sum, and as much out for an
/// all-reduce and a gather.
struct SymmetricPart {
  DeviceBarrier barrier = {};
  Index offset = 0;  ///< bytes
  Index count = 0;
  DType dtype = DType::f32;
  int blocks = 1;
};
/// The sum of the parts, as sum_parts() takes it, into all of them.
void all_reduce_symmetric(Stream stream, const SymmetricPart& part);
/// The same sum to `out` alone.
void reduce_scatter_symmetric(Stream stream, const SymmetricPart& part, void* out);
/// `in` into all of the parts; it may be the own one.
void all_gather_symmetric(Stream stream, const SymmetricPart& part, const void* in);

/// Copies by multiprocessors, to one place or several: unlike a copy engine's, a copy that waits in its stream then
/// delays no other stream's.
void copy_by_kernel(Stream stream, void* to, const void* from, Index bytes);
void copy_by_kernel(Stream stream, std::span<void* const> to, const void* from, Index bytes, const Reach& reach);

/// A write of a word, or a wait until it is at least `value`. The word may be another GPU's.
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
/// The steps in their order, by one thread.
void run_signals(Stream stream, const SignalSteps& steps);

}  // namespace megalith::comm
