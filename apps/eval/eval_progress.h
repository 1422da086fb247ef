#pragma once
#include "megalith/base/clock.h"
#include "megalith/base/types.h"

namespace megalith::apps {

/// The progress of an evaluation, on standard error: one line that is rewritten on a terminal, elsewhere a line at
/// intervals.
class EvalProgress {
 public:
  EvalProgress(Index passages, Index tokens) : passages_(passages), tokens_(tokens) {}
  /// One more passage of so many tokens is done.
  void add(Index tokens);
  double seconds() const { return monotonic_s() - begun_; }

 private:
  Index passages_, tokens_, done_ = 0, done_tokens_ = 0;
  double begun_ = monotonic_s(), shown_at_ = begun_;
};

}  // namespace megalith::apps
