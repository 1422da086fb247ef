#pragma once
#include <cmath>

#include "megalith/ops/qkv_order.h"
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// Rotary position embedding. Source: Su et al. 2021, arXiv:2104.09864; the pairs are those of Hugging Face's
// LlamaForCausalLM (rotate_half): numbers i and i + D/2 of a head.

enum class RopeScaling : std::uint8_t { none, linear, llama3 };

/// The angular frequencies of the pairs of a head. Pair i turns by position * theta^(-2i/D). Scaling lowers that
/// frequency:
///   linear: divided by `factor`. Source: Chen et al. 2023, arXiv:2306.15595.
///   llama3: with the wave length w = 2 pi / frequency and P = original_max_position,
///     frequency / factor   where w > P / low_freq_factor
///     frequency            where w < P / high_freq_factor
///     (1 - s) frequency / factor + s frequency between them, s = (P / w - low_freq_factor) / (high_freq_factor -
///     low_freq_factor). Source: Llama 3.1, as in transformers (modeling_rope_utils.py, _compute_llama3_parameters).
struct RopeFrequencies {
  Index head_dim = 0;
  double theta = 10000;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_max_position = 8192;

  /// The frequency of pair i, in radians per position.
  constexpr double of(Index i) const {
    const double plain = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling == RopeScaling::none) return plain;
    if (scaling == RopeScaling::linear) return plain / factor;
    constexpr double kTwoPi = 6.283185307179586476925;
    const double length = kTwoPi / plain;
    if (length < original_max_position / high_freq_factor) return plain;
    if (length > original_max_position / low_freq_factor) return plain / factor;
    const double s = (original_max_position / length - low_freq_factor) / (high_freq_factor - low_freq_factor);
    return (1 - s) * plain / factor + s * plain;
  }
};

/// table [P, 2, D/2] = the cosines, then the sines, of the angles of positions 0 .. P - 1. They are computed in f64 and
/// rounded once to f32 (or kept in f64). A GPU's may differ in the last bit of f32. Throws ShapeError for an odd D and
/// for invalid scaling.
void rope_table(Exec& ex, const RopeFrequencies& frequencies, const Tensor& table);

/// Forward turns a pair (a, b) to (a cos - b sin, b cos + a sin). Backward is the inverse and turns gradients back.
enum class RopeDirection : std::uint8_t { forward, backward };

/// Turns q and k in place; v stays. qkv [T, G (A/G + 2) D] holds, for each of G kv heads, its A/G q heads, its k and
/// its v (attention.h). G and A are those that this rank holds. The position of a row is start_position + (first_row +
/// row) % seq_len: 0 at the start of each sample, and start_position where rows continue others. Where `positions` are
/// given, it is positions[row], which must be in the table. Others are an InputError on the CPU and undefined on a GPU.
/// Forward brings the heads of a row from groups to the order `attended`, in place; backward brings them back. A GPU
/// moves a row in one block, so can_reorder() must hold there.
struct Rope {
  Tensor qkv;    // in, out  [T, G (A/G + 2) D]
  Tensor table;  // in       [P, 2, D/2], f64 for f64 qkv, else f32
  Index num_heads = 0, num_kv_heads = 0;
  Index seq_len = 0;
  Index first_row = 0;  ///< the first row's number in its microbatch; not 0 where an op works on a part of it
  Index start_position = 0;
  RopeDirection direction = RopeDirection::forward;
  Tensor positions = {};  // in       [T] i32, replaces seq_len, first_row and start_position; may be undefined
  QkvOrder attended = QkvOrder::groups;  ///< the order in which attention reads rows
};
/// Whether a GPU can move the heads of rows of so many columns: a thread has 8 pairs of 16-bit numbers, a block a row.
constexpr bool can_reorder(DType dtype, Index columns, Index head_dim) {
  constexpr Index kMaxThreads = 1024;
  return size_of(dtype) == 2 && head_dim % 16 == 0 && columns <= kMaxThreads * 16;
}
void rope(Exec& ex, const Rope& args);

}  // namespace megalith::ops
