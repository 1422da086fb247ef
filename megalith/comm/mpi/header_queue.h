#pragma once
#include <vector>

namespace megalith::comm {

class Link;
class Transfer;

/// The receives of a rank whose headers have not been compared yet, oldest first. Every wait advances all of them. The
/// sender of a large payload is done only when its receive is posted, which happens after the header was compared.
class HeaderQueue {
 public:
  /// `receive` must stay valid until its header has arrived, or clear().
  void add(Transfer& receive) { waiting_.push_back(&receive); }
  /// Takes the headers that have arrived, in the order of each lane: MPI would give a payload to the oldest receive of
  /// its tag. Throws CollectiveError when a header is not the expected one.
  void advance(Link& link);
  void clear() { waiting_.clear(); }

 private:
  std::vector<Transfer*> waiting_;
};

}  // namespace megalith::comm
