#include "megalith/pipeline/static_slots.h"

#include <cstdlib>
#include <deque>
#include <map>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::pipeline {

StaticSlots assign_static_slots(std::span<const int> order, std::span<const std::vector<int>> signatures) {
  StaticSlots result;
  std::map<int, std::deque<int>> free_buffers;           // by signature
  std::vector<std::deque<int>> live(signatures.size());  // by chunk: one entry a captured layer, oldest first
  for (const int entry : order) {
    if (entry == 0 || std::abs(entry) > static_cast<int>(signatures.size())) {
      throw InternalError(str("[static slots] order entry = ", entry, ": there are ", signatures.size(), " chunks"));
    }
    const auto chunk = static_cast<std::size_t>(std::abs(entry) - 1);
    if (entry > 0) {
      std::vector<int>& slots = result.slot.emplace_back();
      for (const int signature : signatures[chunk]) {
        std::deque<int>& candidates = free_buffers[signature];
        if (candidates.empty()) {
          candidates.push_back(static_cast<int>(result.signature.size()));
          result.signature.push_back(signature);
        }
        slots.push_back(candidates.front());
        live[chunk].push_back(candidates.front());
        candidates.pop_front();
      }
      continue;
    }
    if (live[chunk].size() < signatures[chunk].size()) {
      throw InternalError(str("[static slots] order entry = ", entry, ": a backward before its forward"));
    }
    for (const int signature : signatures[chunk]) {
      free_buffers[signature].push_back(live[chunk].front());
      live[chunk].pop_front();
    }
  }
  return result;
}

}  // namespace megalith::pipeline
