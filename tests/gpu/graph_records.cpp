#include "tests/gpu/graph_records.h"

#include <mutex>
#include <utility>

#include <cuda_runtime.h>

#include "megalith/base/error.h"
#include "megalith/tensor/cuda/check.h"

namespace megalith::support {
namespace {

using cuda::check;

/// What the calls of all threads leave.
struct RecordedGraphs {
  std::mutex mutex;
  bool is_recording = false;
  std::vector<GraphRecords::Kinds> graphs;
};
RecordedGraphs& recorded_graphs() {
  static RecordedGraphs recorded;
  return recorded;
}

const char* name_of_kind(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeMemcpy:
      return "copy";
    case cudaGraphNodeTypeMemset:
      return "fill";
    case cudaGraphNodeTypeHost:
      return "host";
    case cudaGraphNodeTypeGraph:
      return "graph";
    case cudaGraphNodeTypeEmpty:
      return "empty";
    case cudaGraphNodeTypeWaitEvent:
      return "event wait";
    case cudaGraphNodeTypeEventRecord:
      return "event record";
    case cudaGraphNodeTypeMemAlloc:
      return "memory allocation";
    case cudaGraphNodeTypeMemFree:
      return "memory free";
    default:
      return "other";
  }
}

void count_nodes(cudaGraph_t graph, GraphRecords::Kinds& kinds) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t const node : nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    if (cudaGraphNodeGetType(node, &type) !=
        cudaSuccess) {  // a kind of the driver: waits for words, and writes of them
      static_cast<void>(cudaGetLastError());
      ++kinds["words"];
      continue;
    }
    ++kinds[name_of_kind(type)];
    if (type != cudaGraphNodeTypeGraph) continue;
    cudaGraph_t child = nullptr;
    check(cudaGraphChildGraphNodeGetGraph(node, &child));
    count_nodes(child, kinds);
  }
}

}  // namespace

GraphRecords::GraphRecords() {
  RecordedGraphs& recorded = recorded_graphs();
  const std::lock_guard lock(recorded.mutex);
  if (std::exchange(recorded.is_recording, true)) throw InternalError("[GraphRecords] there is one already");
  recorded.graphs.clear();
}

GraphRecords::~GraphRecords() {
  RecordedGraphs& recorded = recorded_graphs();
  const std::lock_guard lock(recorded.mutex);
  recorded.is_recording = false;
}

std::vector<GraphRecords::Kinds> GraphRecords::graphs() const {
  RecordedGraphs& recorded = recorded_graphs();
  const std::lock_guard lock(recorded.mutex);
  return recorded.graphs;
}

extern "C" {
// The linker's names.
// NOLINTBEGIN(bugprone-reserved-identifier)
cudaError_t __real_cudaGraphInstantiate(cudaGraphExec_t* launchable, cudaGraph_t graph, unsigned long long flags);
cudaError_t __wrap_cudaGraphInstantiate(cudaGraphExec_t* launchable, cudaGraph_t graph, unsigned long long flags) {
  RecordedGraphs& recorded = recorded_graphs();
  {
    const std::lock_guard lock(recorded.mutex);
    if (recorded.is_recording) count_nodes(graph, recorded.graphs.emplace_back());
  }
  return __real_cudaGraphInstantiate(launchable, graph, flags);
}
// NOLINTEND(bugprone-reserved-identifier)
}

}  // namespace megalith::support
