#pragma once
#include <algorithm>

#include "megalith/base/clock.h"

namespace megalith::comm {

/// The time of a wait that counts for its timeout. A long gap between two looks means that this rank did not run
/// itself: it was stopped, or the machine is busy. Then it could not see that the others continued, so at most
/// kMaxGap_s of a gap counts.
class Patience {
 public:
  explicit Patience(double timeout_s) : timeout_s_(timeout_s), start_s_(monotonic_s()), last_look_s_(start_s_) {}
  /// Looks at the time, which is `now_s`.
  bool is_over(double now_s) {
    counted_s_ += std::min(now_s - last_look_s_, kMaxGap_s);
    last_look_s_ = now_s;
    return counted_s_ >= timeout_s_;
  }
  double left_s() const { return std::max(0.0, timeout_s_ - counted_s_); }
  double waited_s(double now_s) const { return now_s - start_s_; }

 private:
  static constexpr double kMaxGap_s = 1;

  double timeout_s_;
  double start_s_, last_look_s_, counted_s_ = 0;
};

}  // namespace megalith::comm
