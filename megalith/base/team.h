#pragma once
#include <optional>

#include "megalith/base/types.h"

namespace megalith {

/// Cores that this process may use: of its affinity mask and, where control groups grant less processor time, as many
/// as that time could keep busy (1.5 cores' worth: 2).
int usable_cores();
/// The same of so many cores and so many cores' worth of time.
int cores_within(int allowed, std::optional<double> quota);

/// While it lives, loops that the calling thread shares have `threads` threads, itself among them. Without one they
/// have usable_cores().
class TeamSize {
 public:
  explicit TeamSize(int threads);
  ~TeamSize();
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_ = 0;
};
/// The number of threads of the calling thread's team.
int team_size();

using CallTask = void (*)(const void* task, Index i);
/// share() without its template.
void share_tasks(Index tasks, CallTask call, const void* task);

/// Calls task(i) for i in [0, tasks), some by the calling thread and some by others of its team, and returns when all
/// have ended. Within a task loops are not shared again. If tasks throw, the first exception is rethrown at
/// the end.
///
/// Every thread has a team of its own, whose other threads start at its first shared loop and end with it. Between
/// loops they spin for a few microseconds and then sleep, so that a machine whose cores others want is given to these.
/// Any free thread takes the next task. None waits for a thread that has not begun one: if others hold its core, the
/// loop continues without it. A loop costs about 1 us while the team spins and some 10 us when it must be
/// woken.
template <class Task>
void share(Index tasks, const Task& task) {
  share_tasks(
      tasks, [](const void* of, Index i) { (*static_cast<const Task*>(of))(i); }, &task);
}

}  // namespace megalith
