#include "megalith/train/restart_policy.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::train {
namespace {

constexpr int kSignalBase = 128;

const char* class_text(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::done:
      return "done";
    case ExitCode::usage:
      return "command line or recipe";
    case ExitCode::bad_input:
      return "an input file";
    case ExitCode::checkpoint_refused:
      return "a checkpoint that does not fit";
    case ExitCode::no_checkpoint:
      return "no checkpoint";
    case ExitCode::internal:
      return "an internal error";
    case ExitCode::collective:
      return "ranks disagreed";
    case ExitCode::hang:
      return "a wait passed its timeout";
    case ExitCode::non_finite:
      return "numbers that are not finite";
    case ExitCode::io:
      return "disk or memory";
    case ExitCode::requeue:
      return "stopped by a signal, state saved";
  }
  return "";
}

}  // namespace

bool is_mended_by_restart(int code) {
  return code == static_cast<int>(ExitCode::collective) || code == static_cast<int>(ExitCode::hang) ||
         code == static_cast<int>(ExitCode::io) || code == static_cast<int>(ExitCode::requeue) ||
         code == kSignalBase + SIGKILL;
}

std::string end_text(int code) {
  if (code > kSignalBase) {
    const char* const name = ::sigabbrev_np(code - kSignalBase);
    if (name != nullptr) return str("killed by SIG", name);
  }
  const std::string meaning = class_text(code);
  return str("exit code ", code, meaning.empty() ? "" : str(" (", meaning, ')'));
}

std::string RestartPolicy::reason_to_give_up(const TrainingEnd& end) {
  if (!is_mended_by_restart(end.code)) return str(end_text(end.code), ": a restart would end alike");
  if (!end.last_step) {
    if (failed_at_start_) return "two starts in a row ended before the first step";
    failed_at_start_ = true;
    return "";
  }
  failed_at_start_ = false;
  std::erase_if(failed_steps_, [&](Index step) { return step <= *end.last_step; });
  const bool is_new = failed_steps_.insert(*end.last_step + 1).second;
  return is_new ? "" : str("step ", *end.last_step + 1, " has failed twice");
}

bool RestartPolicy::is_progress(const TrainingEnd& end) {
  if (!end.last_step || (furthest_ && *end.last_step <= *furthest_)) return false;
  furthest_ = end.last_step;
  return true;
}

RestartPolicy::Decision RestartPolicy::after(const TrainingEnd& end, double now_s) {
  if (end.code == 0) return {Next::done};
  if (std::string reason = reason_to_give_up(end); !reason.empty()) return {Next::give_up, 0, std::move(reason)};
  while (limits_.window_s > 0 && !restarted_at_.empty() && now_s - restarted_at_.front() > limits_.window_s)
    restarted_at_.pop_front();
  if (static_cast<Index>(restarted_at_.size()) >= limits_.max_restarts)
    return {Next::give_up, 0,
            str(restarted_at_.size(), restarted_at_.size() == 1 ? " restart" : " restarts",
                limits_.window_s > 0 ? " within the window" : "", ": no more are allowed")};
  wait_s_ = is_progress(end) ? limits_.backoff_s : std::min(2 * std::max(wait_s_, limits_.backoff_s / 2), kMaxWait_s);
  restarted_at_.push_back(now_s);
  ++restarts_;
  return {Next::restart, wait_s_};
}

}  // namespace megalith::train
