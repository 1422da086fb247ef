#pragma once
#include <cstddef>

namespace megalith::pipeline {

/// Stages, chunks, microbatches and buffers are ints, -1 meaning none; containers are indexed by std::size_t.
template <class IntOrEnum>
constexpr std::size_t at(IntOrEnum i) {
  return static_cast<std::size_t>(i);
}

}  // namespace megalith::pipeline
