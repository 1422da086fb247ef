#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <system_error>

#include "megalith/base/types.h"

namespace megalith::apps {

/// Printed if the system has no more memory or starts no more threads. Exit code 74.
inline constexpr const char* kNoMemory = "[memory] the system has no more memory";
inline constexpr const char* kNoThread =
    "[threads] the system starts no more threads: let the process have more memory and threads (ulimit -v, ulimit -u, "
    "control group)";
bool is_lack_of_threads(const std::system_error& error);

/// After this, an exception that nothing catches ends the process with one line and 74 (no memory, no threads) or 70,
/// not with SIGABRT.
void end_on_terminate();

/// Every command calls it first. A file that reaches the limit on its size (SIGXFSZ) then fails the write, as a full
/// disk does. If a mapped file is cut, or its disk fails, under its reader (SIGBUS), the process ends with exit code
/// 74 and the name of the file. A SIGSEGV or SIGABRT ends it with 74 if the system has no more memory, which some
/// libraries do not check. `process`: of a launcher, -1 without one.
void prepare_for_faults(int process);

/// Handles the signals that end a job: SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGPWR, SIGUSR1, SIGUSR2, SIGXCPU,
/// and SIGPIPE of a closed standard output or error. Signals that the program was started to ignore (nohup) stay
/// ignored.
///
/// `process`: of a launcher, -1 without one.
///
/// The first signal requests to finish the step, save and stop. The launcher's first process acknowledges it at once.
/// Another signal more than kSameRequest_s later ends the process at once with 128 + its number. Earlier ones belong
/// to the same request, as launchers and terminals often send two. SIGHUP, SIGXCPU and SIGPIPE never end the process
/// at once. Before the first call of stop_asked() there is nothing to save, so the first signal ends the process.
///
/// One thread takes these signals, and all others block them: a handler on the stack of a computing thread would
/// overwrite memory that GEMMs of libraries keep there. So call it before any thread starts, MPI's included.
void catch_stop_signals(int process);
inline constexpr double kSameRequest_s = 1;

/// What a signal before the first step interrupts. nothing_done: no work is lost (128 + its number, as above). nothing:
/// a checkpoint has all work (75). of_a_failed_job: another process reports the error, so nothing is printed.
enum class Unsaved : std::uint8_t { nothing_done, nothing, of_a_failed_job };
void set_unsaved(Unsaved unsaved);
/// Whether another process of the job reports its failure. A launcher then wakes stopped processes and sends SIGTERM.
void set_failure_probe(std::function<bool()> is_failure_reported);

/// For a process that trains several times, between two trainings, when the work so far is saved. A signal then ends
/// the process at once with 75, until a training asks for the next one. `how`: how to go on, for messages about
/// signals.
void expect_next_run(std::string how);

/// Whether a stop was requested. If not, `last` is the last step of the run should a request come from now on.
bool stop_asked(Index last);
/// The signal of the request; 0: none.
int stop_signal();
/// Its name for people ("Terminated"); empty: none.
std::string stop_reason();

}  // namespace megalith::apps
