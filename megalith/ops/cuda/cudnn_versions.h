#pragma once
#include <string_view>

#include "megalith/ops/attention.h"

// Known faults of cuDNN's versions, as cudnnGetVersion() numbers them: 91501 is 9.15.1.

namespace megalith::ops::cuda {

/// The reason why a version's kernels for a pass of attention must not run on a GPU of a compute capability. It is
/// empty where no fault is known. Versions are those of cuDNN's own notes and of its frontend; an older frontend checks
/// less.
inline std::string_view fault_of_cudnn(std::size_t version, int capability_major, AttentionPass pass,
                                       Determinism determinism) {
  if (version < 90000) return "needs cuDNN 9";
  if (version == 91000 || version == 91001) return "this version has faults that 9.10.2 mends";
  if (pass == AttentionPass::backward && determinism == Determinism::required && capability_major >= 10 &&
      version < 91800)
    return "the same bits every time need 9.18 on Blackwell";
  return "";
}

/// Whether a version's backward pass needs the length of every sample; without it, it reads past the end. Its frontend
/// would pass lengths by copies from pageable memory, which become nodes of every graph.
constexpr bool needs_lengths(std::size_t version, AttentionPass pass, Index seq_len) {
  return pass == AttentionPass::backward && seq_len % 128 != 0 && version < 91501;
}

}  // namespace megalith::ops::cuda
