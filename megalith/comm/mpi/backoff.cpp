#include "megalith/comm/mpi/backoff.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <sched.h>

#include "megalith/base/clock.h"

namespace megalith::comm {

namespace {
constexpr double kYield_s = 1e-3;
constexpr int kLongestSleep_us = 100;
}  // namespace

Backoff::Backoff() : start_s_(monotonic_s()) {}

void Backoff::pause() {
  if (waited_s() < kYield_s) {
    ::sched_yield();
    return;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(sleep_us_));
  sleep_us_ = std::min(kLongestSleep_us, sleep_us_ * 2);
}

double Backoff::waited_s() const { return monotonic_s() - start_s_; }

}  // namespace megalith::comm
