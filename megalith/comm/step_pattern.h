#pragma once
#include <cstdint>
#include <vector>

#include "megalith/comm/channel.h"

namespace megalith::comm {

/// The communication calls that one rank makes in a step, in order and over all groups. A step is static: it makes the
/// same calls every time, at the same places among its ops. So a rank that departs from its own first step is the
/// culprit, known at once and before anything of the wrong call is sent, where comparing ranks with each other would
/// find only that two of them differ. Memory is planned once, so the same calls have the same addresses too. About 10
/// ns a call; 64 bytes for each call of a step, taken in the first one.
class StepPattern {
 public:
  /// The calls until end() are compared with those of the first such stretch, which is learnt. A stretch that an error
  /// left without end() does not count. `ops_run` is Exec::ops_run() now.
  void begin(std::uint64_t ops_run);
  /// Throws CollectiveError unless the calls of this step stand as they did in the first.
  void check(const Channel& channel, const Call& call);
  /// Throws CollectiveError when calls are missing.
  void end();

 private:
  struct Entry {
    std::uint64_t digest = 0;
    const Channel* channel = nullptr;
    Call call;
    std::uint64_t op = 0;  ///< ops of the step before it
  };

  std::vector<Entry> first_;
  std::size_t next_ = 0;
  std::uint64_t ops_run_ = 0;  ///< when the step began
  bool known_ = false;
};

}  // namespace megalith::comm
