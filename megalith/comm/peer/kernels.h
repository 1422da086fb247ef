#pragma once
#include <array>
#include <cstdint>

#include "megalith/tensor/tensor.h"

// What the copy engines cannot do.

namespace megalith::comm {

/// Most members of a group whose parts are summed by one kernel.
inline constexpr int kMostSummed = 8;
/// What sum_parts() takes.
constexpr bool is_summed(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// Loads all kernels of this file for groups of so many members, on the GPU that the calling thread uses: a kernel that
/// is loaded when it is first launched waits for what the GPU is doing, and that may be to wait for another rank.
void load_kernels(int members);

/// out[i] = parts[0][i] + parts[1][i] + ... in this order, in f32 (f64 for f64) and rounded once; also into `copy`
/// unless it is null. `out` and `copy` may be one of the parts. Moves `members` + 1 (or + 2) elements for each of
/// `count`.
struct PartsSum {
  std::array<const void*, kMostSummed> parts{};
  int members = 0;
  void* out = nullptr;
  void* copy = nullptr;
  Index count = 0;
  DType dtype = DType::f32;
};
void sum_parts(Stream stream, const PartsSum& args);

/// Copies within a GPU by its multiprocessors: unlike a copy engine's, a copy that waits in its stream then delays no
/// other stream's.
void copy_by_kernel(Stream stream, void* to, const void* from, Index bytes);

/// A write of a word, or a wait until it is at least `value`. The word may be another GPU's.
struct WordStep {
  enum class Kind : std::uint8_t { write, wait };
  Kind kind = Kind::write;
  std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
};
inline constexpr int kMostWordSteps = 32;
struct WordSteps {
  std::array<WordStep, kMostWordSteps> at{};
  int count = 0;
};
/// The steps in their order, by one thread.
void run_words(Stream stream, const WordSteps& steps);

}  // namespace megalith::comm
