#pragma once
#include <optional>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/elementwise.h"

namespace megalith::ops::cpu {

/// A dropout with its StepState read: which words, and where the tensor is in the global numbering.
struct ResolvedDropout {
  DropoutStream stream;
  std::uint64_t first_sample = 0, first_row = 0;  ///< the microbatch's first sample; the tensor's first row in it

  /// Global number of an element of a tensor with `columns` columns and seq_len rows per sample.
  std::uint64_t element_at(Index seq_len, Index columns, Index element) const {
    return (first_sample * static_cast<std::uint64_t>(seq_len) + first_row) * static_cast<std::uint64_t>(columns) +
           static_cast<std::uint64_t>(element);
  }
};
/// Empty when nothing is dropped.
std::optional<ResolvedDropout> resolve(const Dropout& dropout);

}  // namespace megalith::ops::cpu
