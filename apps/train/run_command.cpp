#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/io/retrying_fs.h"
#include "megalith/io/run_lock.h"
#include "megalith/train/restart_policy.h"
#include "megalith/train/run_history.h"

#include "apps/program/child_process.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/train/train_options.h"

namespace megalith::apps {
namespace {

using train::RestartPolicy;

struct RunRequest {
  TrainOptions train;
  std::vector<std::string> launcher;
  RestartPolicy::Limits limits;
};

/// "90s", "15m", "1.5h", "2d" in seconds; a number alone is seconds.
double parse_seconds(const char* option, const std::string& text) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  const double seconds = unit.empty() || unit == "s" ? 1
                         : unit == "m"               ? 60
                         : unit == "h"               ? 3600
                         : unit == "d"               ? 86400
                                                     : 0;
  constexpr double kMax_s = 366 * 86400.0;
  if (error != std::errc() || seconds == 0 || !std::isfinite(number) || number < 0 || number * seconds > kMax_s) {
    throw ConfigError(str(option, " = ", text,
                          ": must be a time of at most 366d: a number with s, m, h or d behind it, such as 90s or 1h"));
  }
  return number * seconds;
}

/// Starts `train` again and again.
class Supervisor {
 public:
  explicit Supervisor(const RunRequest& request)
      : request_(request),
        fs_(io::retrying_fs(io::posix_fs())),
        first_(request.train.request()),
        out_(out_of(first_)),
        policy_(request.limits) {}

  /// Returns when a training has completed all steps. Throws the Error with the exit code of the last one otherwise.
  void run() {
    for (train::Resume resume = first_.resume;; resume = train::Resume::automatic) {
      wait_for_folder();
      const int code = train_once(resume);
      const train::Attempt attempt = read_end();
      const RestartPolicy::Decision decision =
          asked_signal_ != 0 ? RestartPolicy::Decision{RestartPolicy::Next::give_up, 0, "a stop was requested"}
                             : decide(code, attempt);
      const std::string what = describe(code, attempt), next = describe(decision);
      note_exit(code, attempt, str(what, next.empty() ? "" : "; ", next));
      if (decision.next == RestartPolicy::Next::done) return;
      if (decision.next == RestartPolicy::Next::give_up) end(code, what, decision.reason);
      log::warning(str(what, "; ", next));
      if (!wait(decision.wait_s)) end(static_cast<int>(ExitCode::requeue), what, "a stop was requested");
    }
  }

 private:
  bool has_launcher() const { return !request_.launcher.empty(); }

  std::vector<std::string> command(train::Resume resume) const {
    std::vector<std::string> words = request_.launcher;
    words.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
    words.emplace_back("train");
    const std::vector<std::string> options = request_.train.words();
    words.insert(words.end(), options.begin(), options.end());
    if (resume == train::Resume::required) words.emplace_back("--resume");
    if (resume == train::Resume::automatic) words.emplace_back("--resume=auto");
    return words;
  }

  /// A process that was killed may leave ranks behind, which hold the folder until they notice. Returns after kMax_s
  /// in any case: the training then reports who holds it.
  void wait_for_folder() {
    constexpr double kMax_s = 60, kPause_s = 0.1;
    const double begin = monotonic_s();
    while (is_locked() && monotonic_s() - begin < kMax_s && wait(kPause_s)) {
    }
  }
  bool is_locked() const {
    if (!fs_->exists(out_ / "run.lock")) return false;
    try {
      io::RunLock::take(out_);
      return false;
    } catch (const IoError&) {
      return true;
    }
  }

  int train_once(train::Resume resume) {
    if (asked_signal_ != 0)
      end(static_cast<int>(ExitCode::requeue), "no training is in flight", "a stop was requested");
    history_begin_ = train::history_bytes(*fs_, out_);
    const std::vector<std::string> words = command(resume);
    // mpirun kills its processes two seconds after SIGTERM; it passes SIGUSR1 on.
    ChildProcess child(words, signals_, has_launcher() ? SIGUSR1 : SIGTERM);
    ++attempts_;
    launch_line_ = train::history_line("launch", std::max<Index>(0, last_step_), launch_text(words),
                                       str(",\"attempt\":", attempts_, ",\"pid\":", child.pid()));
    constexpr double kPoll_s = 0.2, kPollForFolder_s = 0.01;
    while (!child.has_ended()) {
      note_launch();
      const SignalQueue::Signal signal = signals_.next(launch_line_.empty() ? kPoll_s : kPollForFolder_s);
      if (signal.number == 0 || signal.number == SIGCHLD) continue;
      const bool is_first = asked_signal_ == 0;
      if (is_first) asked_signal_ = signal.number;
      if (!signal.is_of_group) child.send(is_first && has_launcher() ? SIGUSR1 : signal.number);
    }
    note_launch();
    return child.code();
  }

  static std::string launch_text(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += str(text.empty() ? "" : " ", word);
    return text;
  }

  /// The line of the launch, as soon as the training has made OUT: one that is refused leaves nothing.
  void note_launch() {
    if (!launch_line_.empty() && fs_->is_dir(out_) && add_line(launch_line_)) launch_line_.clear();
  }

  /// Like metrics, the history is a log: a disk that refuses a line ends nothing.
  bool add_line(const std::string& line) {
    try {
      train::add_history_line(*fs_, out_, line);
      return true;
    } catch (const IoError& error) {
      if (!is_late_) log::warning(str(train::kHistoryName, " is not complete: ", error.what()));
      is_late_ = true;
      return false;
    }
  }

  train::Attempt read_end() const {
    try {
      return train::read_attempt(*fs_, out_, history_begin_);
    } catch (const IoError& error) {
      log::warning(str("what the training has done is not known: ", error.what()));
      return {};
    }
  }

  RestartPolicy::Decision decide(int code, const train::Attempt& attempt) {
    if (attempt.last_step) last_step_ = *attempt.last_step;
    if (code == static_cast<int>(ExitCode::requeue) && is_output_closed())
      return {RestartPolicy::Next::give_up, 0, "nobody reads the output any more"};
    return policy_.after({code, attempt.last_step}, monotonic_s());
  }

  static std::string describe(int code, const train::Attempt& attempt) {
    const std::string how = code == 0 ? "all steps are done" : train::end_text(code);
    if (!attempt.first_step) return str(how, code == 0 ? "" : " before the first step");
    const Index first = *attempt.first_step, last = *attempt.last_step;
    if (last < first) return code == 0 ? how : str(how, " in step ", first);
    return str(how, ", after steps ", first, " to ", last);
  }

  std::string describe(const RestartPolicy::Decision& decision) const {
    switch (decision.next) {
      case RestartPolicy::Next::done:
        return "";
      case RestartPolicy::Next::give_up:
        return str("not restarted: ", decision.reason);
      case RestartPolicy::Next::restart:
        break;
    }
    return str("restart ", policy_.restarts(), " of ", request_.limits.max_restarts, " in ",
               std::round(decision.wait_s * 10) / 10, " s");
  }

  void note_exit(int code, const train::Attempt& attempt, const std::string& text) {
    if (!fs_->is_dir(out_)) return;
    std::string members = str(",\"attempt\":", attempts_, ",\"exit_code\":", code);
    if (const char* const name = code > 128 ? ::sigabbrev_np(code - 128) : nullptr; name != nullptr)
      members += str(",\"signal\":\"SIG", name, '"');
    if (attempt.first_step)
      members += str(",\"first_step\":", *attempt.first_step, ",\"last_step\":", *attempt.last_step);
    if (!attempt.reason.empty()) members += str(",\"reason\":", train::json_text(attempt.reason));
    add_line(train::history_line("exit", attempt.last_step.value_or(last_step_), text, members));
  }

  /// Whether the time has passed without a request to stop.
  bool wait(double seconds) {
    for (const double end = monotonic_s() + seconds; asked_signal_ == 0;) {
      const double left = end - monotonic_s();
      if (left <= 0) break;
      if (const int signal = signals_.next(left).number; signal != 0 && signal != SIGCHLD) asked_signal_ = signal;
    }
    return asked_signal_ == 0;
  }

  [[noreturn]] static void end(int code, const std::string& what, const std::string& reason) {
    throw Error(static_cast<ExitCode>(code),
                str("[run] ", what, "; not restarted: ", reason,
                    code == static_cast<int>(ExitCode::requeue) ? ". Start again with --resume=auto" : ""));
  }

  const RunRequest& request_;
  std::shared_ptr<io::Fs> fs_;
  TrainRequest first_;
  io::Path out_;
  RestartPolicy policy_;
  SignalQueue signals_;
  int asked_signal_ = 0;  ///< the first that requested a stop; 0: none
  Index attempts_ = 0, last_step_ = 0;
  std::uint64_t history_begin_ = 0;
  std::string launch_line_;  ///< that is not written yet
  bool is_late_ = false;
};

void run_supervised(const RunRequest& request) {
  const Launcher launcher = detect_launcher();
  if (launcher.processes > 0) {
    throw ConfigError(
        str("run: a launcher started ", launcher.processes, launcher.processes == 1 ? " process" : " processes",
            ": start one `run`, with the launcher behind --: megalith run RECIPE -- mpirun -np ", launcher.processes));
  }
  Supervisor(request).run();
}

/// Prints what a training that has ended with this exit code is followed by. Throws Differs unless that is a restart.
void print_what_follows(int code) {
  const bool is_mended = train::is_mended_by_restart(code);
  std::puts(str(code == 0 ? "all steps are done" : train::end_text(code), ": a restart ",
                is_mended ? "may succeed" : "would end alike")
                .c_str());
  if (!is_mended) throw Differs();
}

}  // namespace

void add_run(CLI::App& program) {
  const auto request = std::make_shared<RunRequest>();
  const auto window = std::make_shared<std::string>(), backoff = std::make_shared<std::string>("1s");
  CLI::App* command = program.add_subcommand(
      "run",
      "Train, and start again from the last checkpoint after a failure that a restart can mend: exit codes 71, 72, 74, "
      "75 and SIGKILL (docs/reliability.md). OUT/history.jsonl has a line per start and per end");
  request->train.add_to(*command);
  command
      ->add_option("launcher", request->launcher,
                   "After --: a launcher and its options, as mpirun -np 4; `train` is started by it")
      ->type_name("-- LAUNCHER");
  command
      ->add_option("--max-restarts", request->limits.max_restarts,
                   "Restarts before it gives up (in the time of --window)")
      ->check(between(0, 1'000'000))
      ->capture_default_str();
  command->add_option("--window", *window,
                      "Count only the restarts of this last time: 90s, 15m, 1h, 2d (default: all)");
  command
      ->add_option("--backoff", *backoff, "Wait before a restart; doubled by each one without progress, up to a minute")
      ->capture_default_str();
  const auto ended = std::make_shared<int>(0);
  CLI::Option* const recipe = command->get_option("recipe")->required(false);
  CLI::Option* const mends =
      command
          ->add_option("--mends", *ended,
                       "Train nothing: print whether a restart may succeed after this exit code of a training, and end "
                       "with 0 if so, else with 1. For scripts that restart trainings themselves")
          ->check(between(0, 255))
          ->excludes(recipe);
  command->callback([request, window, backoff, recipe, mends, ended] {
    if (mends->count() > 0) return print_what_follows(*ended);
    if (recipe->count() == 0) throw ConfigError("recipe is not set: name a recipe to train");
    if (!window->empty()) request->limits.window_s = parse_seconds("--window", *window);
    request->limits.backoff_s = parse_seconds("--backoff", *backoff);
    run_supervised(*request);
  });
}

}  // namespace megalith::apps
