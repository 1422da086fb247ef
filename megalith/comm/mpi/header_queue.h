#pragma once
#include <vector>

namespace megalith::comm {

class Link;
class Transfer;

/// The receives of a rank whose headers have not been compared yet, oldest first. Whoever waits advances all of them,
/// whatever it waits for: the sender of a large payload is done only when its receive is posted, which the header
/// allows.
class HeaderQueue {
 public:
  /// `receive` stays where it is until its header has come, or clear().
  void add(Transfer& receive) { waiting_.push_back(&receive); }
  /// Takes the headers that have come, in the order of each lane: MPI would give a payload to the oldest receive of its
  /// tag. Throws CollectiveError when one is not the expected one.
  void advance(Link& link);
  void clear() { waiting_.clear(); }

 private:
  std::vector<Transfer*> waiting_;
};

}  // namespace megalith::comm
