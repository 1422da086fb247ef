#pragma once
#include <memory>
#include <vector>

#include "megalith/comm/group.h"

namespace megalith::apps {

/// Times of the transfers of clones: those of a group, in which nothing else moves.
class CloneTimes {
 public:
  explicit CloneTimes(Device device) : device_(device) {}

  /// The same members and transport; calls are timed here. This must live as long.
  comm::Group timed(const comm::Group& group);

  void clear();
  /// Of all calls so far.
  struct Sum {
    std::size_t calls = 0;
    double moving_s = 0;   ///< from when a call's data is ready until it is done; calls may overlap
    double exposed_s = 0;  ///< for which the caller's stream stands still: in calls, and in waits for them
  };
  /// Of the calls from number `first` up to `end`. Waits for them.
  Sum sum(std::size_t first, std::size_t end) const;
  std::size_t calls() const { return calls_.size(); }

 private:
  class TimedChannel;
  struct Call {
    TimePoint posted, returned, done, wait_begin, wait_end;
    std::int64_t ticket = -1;
    bool is_waited_for = false;
  };

  Device device_;
  std::vector<Call> calls_;
};

}  // namespace megalith::apps
