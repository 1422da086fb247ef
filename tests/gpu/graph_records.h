#pragma once
#include <map>
#include <string>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::support {

/// The CUDA graphs that this process makes launchable while the object lives, one at a time: the linker sends calls of
/// cudaGraphInstantiate() here (tests/gpu/CMakeLists.txt), but for those of shared libraries.
class GraphRecords {
 public:
  GraphRecords();
  ~GraphRecords();
  GraphRecords(const GraphRecords&) = delete;
  GraphRecords& operator=(const GraphRecords&) = delete;

  /// Nodes of a graph by kind, with those of graphs in it: "kernel", "host", "memory allocation", ...
  using Kinds = std::map<std::string, Index>;
  std::vector<Kinds> graphs() const;
};

}  // namespace megalith::support
