#pragma once

namespace megalith::comm {

/// A rank's pause between two checks of its requests. It yields the core for a millisecond. On an idle machine that is
/// as quick as spinning, and on a busy one the awaited rank gets to run. Then it sleeps for 10 us, growing to 100 us,
/// so that a long wait costs no core. all_reduce of 64 bytes by 2 ranks on 2 cores that other jobs use too takes 1 to 7
/// us. With 50 us of spinning first it takes 106 us.
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
