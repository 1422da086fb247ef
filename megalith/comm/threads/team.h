#pragma once

namespace megalith::comm {

/// While it lives, the calling thread's parallel regions have `threads` threads. Without OpenMP they have one anyway.
class TeamSize {
 public:
  explicit TeamSize(int threads);
  ~TeamSize();
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_ = 1;
};

}  // namespace megalith::comm
