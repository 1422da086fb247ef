#pragma once
#include <memory>

#include "megalith/comm/world.h"
#include "megalith/io/fs.h"

namespace megalith::train {

/// The positions of ranks that share no memory, because they run on several hosts. Each host writes those of its ranks
/// into a file of OUT, 20 times within parallel.timeout_s, and reads those of the others. Any running process of a host
/// does it, in a thread of its own. So neither a rank that stands still nor a file system that does not answer stops
/// the others. The files hold no state: they are overwritten in place, not synced, and removed at the end. Where all
/// ranks share memory, nothing is done.
class PositionFiles {
 public:
  /// Collective.
  PositionFiles(comm::World& world, const io::Path& folder, double timeout_s);
  ~PositionFiles();
  PositionFiles(const PositionFiles&) = delete;
  PositionFiles& operator=(const PositionFiles&) = delete;

 private:
  class Exchange;
  std::shared_ptr<Exchange> exchange_;  ///< its thread may outlive this, in a read that does not end
};

}  // namespace megalith::train
