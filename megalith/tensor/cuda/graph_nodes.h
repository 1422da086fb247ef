#pragma once
#include <vector>

#include <cuda_runtime.h>

#include "megalith/tensor/cuda/check.h"

namespace megalith::cuda {

// Edges of a CUDA graph, by functions whose signatures changed in CUDA 13. There the plain names take the edges' data,
// which we leave at its default. CUDA 12 has the same functions as `..._v2`.
#if CUDART_VERSION >= 13000
#define MEGALITH_GRAPH_FUNCTION(name) name
#else
#define MEGALITH_GRAPH_FUNCTION(name) name##_v2
#endif

/// The nodes on one side of a node.
template <class Get>
std::vector<cudaGraphNode_t> neighbours_of(cudaGraphNode_t node, Get get) {
  std::size_t count = 0;
  check(get(node, nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) check(get(node, nodes.data(), nullptr, &count));
  return nodes;
}
inline std::vector<cudaGraphNode_t> nodes_before(cudaGraphNode_t node) {
  return neighbours_of(node, MEGALITH_GRAPH_FUNCTION(cudaGraphNodeGetDependencies));
}
inline std::vector<cudaGraphNode_t> nodes_after(cudaGraphNode_t node) {
  return neighbours_of(node, MEGALITH_GRAPH_FUNCTION(cudaGraphNodeGetDependentNodes));
}

/// From here on each node of `after` comes after `before`.
inline void add_edges(cudaGraph_t graph, cudaGraphNode_t before, const std::vector<cudaGraphNode_t>& after) {
  if (after.empty()) return;
  const std::vector<cudaGraphNode_t> from(after.size(), before);
  check(MEGALITH_GRAPH_FUNCTION(cudaGraphAddDependencies)(graph, from.data(), after.data(), nullptr, after.size()));
}

#undef MEGALITH_GRAPH_FUNCTION

}  // namespace megalith::cuda
