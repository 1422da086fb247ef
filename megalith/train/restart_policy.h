#pragma once
#include <deque>
#include <optional>
#include <set>
#include <string>

#include "megalith/base/types.h"

namespace megalith::train {

/// How a process that trained has ended.
struct TrainingEnd {
  int code = 0;                    ///< exit code; 128 + the signal that killed it
  std::optional<Index> last_step;  ///< the last complete step; none if it ended before training began
};

/// When a training that failed is started again.
class RestartPolicy {
 public:
  struct Limits {
    Index max_restarts = 5;
    double window_s = 0;   ///< only restarts of so many last seconds count; 0: all
    double backoff_s = 1;  ///< before the first restart; doubled by each restart without progress, up to kMaxWait_s
  };
  static constexpr double kMaxWait_s = 60;

  enum class Next : std::uint8_t { done, restart, give_up };
  struct Decision {
    Next next = Next::done;
    double wait_s = 0;        ///< before the restart
    std::string reason = {};  ///< why it gives up
  };

  explicit RestartPolicy(const Limits& limits) : limits_(limits) {}

  /// After an end at `now_s` of any clock that only rises. Gives up if no restart mends the exit code, if the step that
  /// failed has failed before and was not completed since, if two trainings in a row ended before they began, and after
  /// max_restarts restarts within window_s.
  Decision after(const TrainingEnd& end, double now_s);
  /// How many restarts were decided.
  Index restarts() const { return restarts_; }

 private:
  std::string reason_to_give_up(const TrainingEnd& end);
  bool is_progress(const TrainingEnd& end);

  Limits limits_;
  std::set<Index> failed_steps_;  ///< not completed since
  bool failed_at_start_ = false;  ///< the last training ended before it began
  std::optional<Index> furthest_;
  std::deque<double> restarted_at_;  ///< within the window
  Index restarts_ = 0;
  double wait_s_ = 0;
};

/// Whether a restart may succeed after this exit code: ranks that disagreed or hung, a disk or memory that was full, a
/// signal to stop, SIGKILL.
bool is_mended_by_restart(int code);

/// "exit code 72 (a wait passed its timeout)", "killed by SIGKILL".
std::string end_text(int code);

}  // namespace megalith::train
