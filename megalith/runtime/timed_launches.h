#pragma once
#include "megalith/base/clock.h"
#include "megalith/runtime/graph.h"

namespace megalith {

/// Launches graphs, counts the launches and adds up their host time; on the CPU that of the ops.
class TimedLaunches {
 public:
  void launch(Exec& ex, const Graph& graph) {
    const double begin = monotonic_s();
    graph.launch(ex);
    host_s_ += monotonic_s() - begin;
    ++count_;
  }
  Index count() const { return count_; }
  double host_s() const { return host_s_; }

 private:
  Index count_ = 0;
  double host_s_ = 0;
};

}  // namespace megalith
