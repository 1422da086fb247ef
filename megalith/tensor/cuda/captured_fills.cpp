#include "megalith/tensor/cuda/captured_fills.h"

#include <optional>
#include <vector>

#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/fill.h"
#include "megalith/tensor/cuda/graph_nodes.h"

namespace megalith::cuda {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 10;

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count));
  return nodes;
}

/// The fill of a node, if it is a small memset of one row.
std::optional<Fill> small_fill_of(cudaGraphNode_t node) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  if (cudaGraphNodeGetType(node, &type) != cudaSuccess) {  // a kind that the runtime does not know
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }
  if (type != cudaGraphNodeTypeMemset) return std::nullopt;
  cudaMemsetParams params{};
  check(cudaGraphMemsetNodeGetParams(node, &params));
  if (params.height > 1 || params.width * params.elementSize > kMaxBytes) return std::nullopt;
  return Fill{params.dst, params.value, params.elementSize, params.width};
}

}  // namespace

void replace_small_fills(cudaGraph_t graph) {
  for (cudaGraphNode_t node : nodes_of(graph)) {
    const std::optional<Fill> fill = small_fill_of(node);
    if (!fill) continue;
    const std::vector<cudaGraphNode_t> before = nodes_before(node), after = nodes_after(node);
    cudaGraphNode_t const kernel = add_fill_kernel(graph, *fill, before.data(), before.size());
    check(cudaGraphDestroyNode(node));
    add_edges(graph, kernel, after);
  }
}

}  // namespace megalith::cuda
