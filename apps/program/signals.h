#pragma once
#include <cstdint>
#include <functional>
#include <system_error>

#include "megalith/base/types.h"

namespace megalith::apps {

/// What is printed where the system gives no more memory, or starts no more threads: exit code 74.
inline constexpr const char* kNoMemory = "[memory] the system has no more memory";
inline constexpr const char* kNoThread =
    "[threads] the system starts no more threads: let the process have more memory and threads (ulimit -v, ulimit -u, "
    "control group)";
bool is_lack_of_threads(const std::system_error& error);

/// An exception that nothing catches ends the process with one line and 74 (no memory, no threads) or 70, not with
/// SIGABRT.
void end_on_terminate();

/// For every command, before it does anything: a file that reaches the limit on its size (SIGXFSZ) fails the write, as
/// a full disk does, and a mapped file that was cut, or whose disk fails, under its reader (SIGBUS) ends the process
/// with exit code 74 and the file's name. A SIGSEGV or SIGABRT ends it with 74 where the
/// system has no more memory, which not every library looks at. `process`: of a launcher, -1 without one.
void prepare_for_faults(int process);

/// Takes the signals that ask a job to end: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGPWR, SIGUSR1, SIGUSR2,
/// SIGXCPU, and the SIGPIPE of a standard output or error that was closed. Those that the program was started to ignore
/// (nohup) stay ignored.
///
/// `process`: of a launcher, -1 without one.
///
/// The first asks to finish the step, save and stop, and is acknowledged at once, by the launcher's first process.
/// Another one more than kSameRequest_s later ends the process at once with 128 + its number; what comes earlier
/// belongs to the same request: launchers and terminals often send two. SIGHUP, SIGXCPU and SIGPIPE never do so. Before
/// stop_asked() was called for the first time there is nothing to save, and the first signal ends the process.
///
/// All threads block these signals, but one that does nothing else: a handler on the stack of a thread that computes
/// would write over what products of libraries keep there. So this comes before any thread is started, MPI's included.
void catch_stop_signals(int process);
inline constexpr double kSameRequest_s = 1;

/// What a signal before the first step ends: nothing was done (128 + its number, as above), a checkpoint holds all that
/// was done (75), or the process has failed and its error is reported by another (no word).
enum class Unsaved : std::uint8_t { nothing_done, nothing, of_a_failed_job };
void set_unsaved(Unsaved unsaved);
/// Whether another process of the job reports its failure. A launcher then wakes stopped processes and sends SIGTERM.
void set_failure_probe(std::function<bool()> is_failure_reported);

/// Whether a stop was asked for. Where it was not, `last` is the step that a request from now on ends the run with.
bool stop_asked(Index last);
/// The signal that asked, 0 for none.
int stop_signal();

}  // namespace megalith::apps
