#include "megalith/train/save_policy.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/clock.h"
#include "megalith/base/str.h"
#include "megalith/train/gather.h"

namespace megalith::train {

void SavePolicy::start() {
  saved_at_ = monotonic_s();
  warn_of_space();
}

bool SavePolicy::is_due(Index step) const {
  const Index interval = inputs_.plan.checkpoint.interval;
  return step == inputs_.plan.train.steps || (interval > 0 && step % interval == 0);
}

Requests SavePolicy::requests(Index next_vote) const {
  const double every_s = inputs_.plan.checkpoint.every_s;
  const bool is_stopped = inputs_.stop_asked(std::min(next_vote, inputs_.plan.train.steps));
  return {.stop = is_stopped ? Stop::asked : Stop::no,
          .save = world_.rank() == 0 && every_s > 0 && monotonic_s() - saved_at_ >= every_s};
}

/// If a folder was removed under the run, nobody holds the lock of one that a save would make.
void SavePolicy::require_folders() {
  std::string lost;
  try {
    if (world_.rank() == 0) inputs_.require_folders();
  } catch (const IoError& error) {
    lost = error.what();
  }
  lost = share_text(world_, std::move(lost));
  if (!lost.empty()) throw IoError(lost);
}

/// While there is time to make room.
void SavePolicy::warn_of_space() {
  if (const std::string lack = saver_.lack_of_space(); !lack.empty()) log_.warn("the next save will fail: " + lack);
}

void SavePolicy::save(const Progress& progress, Failure failure) {
  require_folders();
  try {
    const double begin = monotonic_s();
    log_.sync();
    // What a file system reports of its space may be wrong: the last save tries in any case.
    const checkpoint::Digest128 digest =
        saver_.save(progress, failure == Failure::ends_the_run ? Space::not_asked : Space::asked);
    log_.note(str("saved step ", progress.step, ", state digest ", digest.hex(), ", ",
                  std::round((monotonic_s() - begin) * 1e3), " ms"));
    if (failure == Failure::is_a_warning) warn_of_space();
  } catch (const IoError& error) {
    if (failure == Failure::ends_the_run) throw;
    ++missed_;
    log_.warn(str("checkpoint of step ", progress.step, " was not saved, training goes on: ", error.what()));
  }
  saved_at_ = monotonic_s();
}

}  // namespace megalith::train
