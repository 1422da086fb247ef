#pragma once
#include "megalith/ops/attention.h"

// Helpers for a kernel that multiplies padding by weights of 0, where a NaN would come through.

namespace megalith::ops::cuda {

/// Equal parts of samples, one after the other: `per_sample` parts of each, of seq_len rows.
struct SampleRows {
  void* data = nullptr;
  Index row_bytes = 0, seq_len = 0, per_sample = 1;
};

/// Writes 0 to the rows of every part from the length of its sample on. lengths [B] i32. Reads nothing else, and writes
/// only the padding.
void zero_padding(Stream stream, const SampleRows& rows, const Tensor& lengths);

/// to [B, width] = each sample's length, clamped to 0..seq_len, `width` times.
void repeat_lengths(Stream stream, const Tensor& lengths, Index seq_len, Index width, std::int32_t* to);

}  // namespace megalith::ops::cuda
