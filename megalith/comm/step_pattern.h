#pragma once
#include <cstdint>
#include <vector>

#include "megalith/comm/channel.h"

namespace megalith::comm {

/// The communication calls that one rank makes in a step, in order and over all groups. A step is static: it makes the
/// same calls every time, at the same places among its ops. So a rank that departs from its own first step is the
/// culprit. It is known at once and before anything of the wrong call is sent. A comparison of ranks with each other
/// would only show that two of them differ. Memory is planned once, so the same calls also have the same addresses. It
/// costs about 10 ns per call, and 64 bytes for each call of a step, allocated in the first one.
class StepPattern {
 public:
  /// Compares the calls until end() with those of the first step, which is recorded. A step that an error left without
  /// end() does not count. `ops_run` is Exec::ops_run() now.
  void begin(std::uint64_t ops_run);
  /// Throws CollectiveError unless the calls of this step are at the same places as in the first.
  void check(const Channel& channel, const Call& call);
  /// Throws CollectiveError when calls are missing.
  void end();

 private:
  struct Entry {
    std::uint64_t digest = 0;
    const Channel* channel = nullptr;
    Call call;
    std::uint64_t op = 0;  ///< number of ops in the step before it
  };

  std::vector<Entry> first_;
  std::size_t next_ = 0;
  std::uint64_t ops_run_ = 0;  ///< at the start of the step
  bool known_ = false;
};

}  // namespace megalith::comm
