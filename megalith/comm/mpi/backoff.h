#pragma once

namespace megalith::comm {

/// What a rank does between two looks at its requests: yields the core for a millisecond (on an idle machine that is as
/// quick as spinning, and on a busy one the awaited rank gets to run), then sleeps for 10 us growing to 100 us, so that
/// a long wait costs no core. all_reduce of 64 bytes, 2 ranks on 2 cores that other jobs use too: 1 to 7 us; with 50 us
/// of spinning first 106 us.
class Backoff {
 public:
  Backoff();
  void pause();
  double waited_s() const;

 private:
  double start_s_;
  int sleep_us_ = 10;
};

}  // namespace megalith::comm
