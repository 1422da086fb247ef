#include "apps/program/signals.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/mapped_files.h"

namespace megalith::apps {
namespace {

// Signals belong to the process, and so does their state.

std::array<char, 32> who_lost = {};  ///< "rank 3: ", printed first by on_lost_mapping() and end_process()

/// For code that must not allocate. If the write fails, nobody reads the message.
void write_error(const char* text) { [[maybe_unused]] const auto ignored = ::write(2, text, std::strlen(text)); }

[[noreturn]] void end_process(ExitCode code, const char* what) {
  write_error(code == ExitCode::io ? "error: E74 " : "error: E70 ");
  write_error(who_lost.data());
  write_error(what);
  write_error("\n");
  ::_exit(static_cast<int>(code));
}

/// Called for an exception that nothing catches: at the beginning or end of a thread, or in a function that may not
/// throw. Most often the system has no more memory.
[[noreturn]] void on_terminate() {
  if (std::current_exception() == nullptr) end_process(ExitCode::internal, "ended by std::terminate()");
  try {
    throw;
  } catch (const std::bad_alloc&) {
    end_process(ExitCode::io, kNoMemory);
  } catch (const std::system_error& error) {
    if (is_lack_of_threads(error)) end_process(ExitCode::io, kNoThread);
    end_process(ExitCode::internal, error.what());
  } catch (const Error& error) {
    end_process(error.code() == ExitCode::io ? ExitCode::io : ExitCode::internal, error.what());
  } catch (const std::exception& error) {
    end_process(ExitCode::internal, error.what());
  } catch (...) {
    end_process(ExitCode::internal, "an exception of a foreign type");
  }
}

/// Whether the system has no more memory to give: under `ulimit -v`, or where it commits no more than it has.
bool is_out_of_memory() {
  constexpr std::size_t kProbe = std::size_t{32} << 20;
  void* const taken = ::mmap(nullptr, kProbe, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (taken != MAP_FAILED) ::munmap(taken, kProbe);
  return taken == MAP_FAILED;
}

struct sigaction segv_before {};  ///< usually of a sanitizer

/// Called if a library does not check the result of mmap() and writes there (oneDNN's generated code), or aborts
/// (SIGABRT). Also called if the stack of the first thread cannot grow.
extern "C" void on_failed_library(int signal, siginfo_t*, void*) {
  if (is_out_of_memory()) {
    static std::atomic_flag is_first = ATOMIC_FLAG_INIT;
    if (is_first.test_and_set()) ::pause();  // another thread prints and ends the process
    end_process(ExitCode::io, kNoMemory);
  }
  // The signal comes again with the previous handler; abort() does so by itself.
  if (signal == SIGSEGV) ::sigaction(SIGSEGV, &segv_before, nullptr);
}

/// On a stack of its own: that of the first thread may be full.
void take_signals_on_own_stack() {
  static std::array<char, 64 << 10> stack;
  const stack_t own{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  ::sigaltstack(&own, nullptr);
}

extern "C" void on_lost_mapping(int signal, siginfo_t* info, void*) {
  const char* const file =
      info->si_code > 0 ? io::mapped_file_at(info->si_addr) : nullptr;  // otherwise another process sent it
  if (file == nullptr) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  write_error("error: E74 ");
  write_error(who_lost.data());
  write_error("[");
  write_error(file);
  write_error("] was cut, or its disk failed, while it was being read\n");
  ::_exit(static_cast<int>(ExitCode::io));
}

bool takes_closed_pipes = false;  ///< set before any thread starts

/// Whether this thread wrote to a closed pipe. The SIGPIPE of a write is pending in the thread that wrote; no other
/// thread can take it.
bool met_closed_pipe() {
  sigset_t waiting;
  return takes_closed_pipes && ::sigpending(&waiting) == 0 && sigismember(&waiting, SIGPIPE) == 1;
}

/// The state of a request to stop.
class StopRequest {
 public:
  void be_process(int process) {
    speaks_ = process <= 0;
    is_of_a_launcher_ = process >= 0;
  }

  void take(int signal) {
    const bool insists = signal != SIGHUP && signal != SIGXCPU && signal != SIGPIPE;
    std::unique_lock lock(mutex_);
    if (unsaved_ == Unsaved::of_a_failed_job || is_failure_reported_()) ::_exit(128 + signal);
    if (last_ == 0) end_before_the_first_step(signal);
    if (signal_ != 0) {
      if (insists && monotonic_s() - asked_at_ > kSameRequest_s)
        end_with(signal, "at once: steps after the last save are lost");
      return;
    }
    note(signal);
    const Index last = last_;
    lock.unlock();  // a slow terminal must not block other threads
    print(str("finishing step ", last, ", saving; again to stop now"));
  }

  bool is_asked(Index last) {
    const bool output_is_closed = met_closed_pipe();
    const std::lock_guard lock(mutex_);
    if (signal_ == 0 && output_is_closed) note(SIGPIPE);  // prints nothing: nobody reads it
    if (signal_ == 0) last_ = last;
    return signal_ != 0;
  }
  int signal() {
    const std::lock_guard lock(mutex_);
    return signal_;
  }
  void set_unsaved(Unsaved unsaved) {
    const std::lock_guard lock(mutex_);
    unsaved_ = unsaved;
  }
  void expect_next_run(std::string how) {
    const std::lock_guard lock(mutex_);
    last_ = 0;
    unsaved_ = Unsaved::nothing;
    how_to_go_on_ = std::move(how);
  }
  void set_failure_probe(std::function<bool()> is_failure_reported) {
    const std::lock_guard lock(mutex_);
    is_failure_reported_ = std::move(is_failure_reported);
  }

 private:
  void note(int signal) {
    signal_ = signal;
    asked_at_ = monotonic_s();
  }
  void print(const std::string& text) const {
    if (!speaks_) return;
    const char* const begin = ::isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "";  // replaces the progress line
    std::fprintf(stderr, "%s%s\n", begin, text.c_str());
  }
  [[noreturn]] void end_with(int signal, const char* what) const {
    print(str("megalith: stopped by a signal (", ::strsignal(signal), ") ", what));
    ::_exit(128 + signal);
  }

  /// The message for a process that ends before its first step. In a job, the signal may have been for another rank.
  std::string end_of_a_start(int signal) const {
    const bool may_be_of_another = is_of_a_launcher_ && signal == SIGTERM;
    return str(may_be_of_another ? "ended" : "stopped", " by a signal (", ::strsignal(signal), ")",
               may_be_of_another ? ", as a launcher sends when another rank has failed," : "",
               " before the first step: ");
  }

  /// Does not wait for other threads: files are safe at any time, as at a kill.
  [[noreturn]] void end_before_the_first_step(int signal) const {
    const bool is_fresh = unsaved_ == Unsaved::nothing_done;
    print(str(is_fresh ? "megalith: " : "error: E75 ", end_of_a_start(signal),
              is_fresh ? "nothing was trained" : "the checkpoint has all that was done; " + how_to_go_on_));
    ::_exit(is_fresh ? 128 + signal : static_cast<int>(ExitCode::requeue));
  }

  std::mutex mutex_;
  Unsaved unsaved_ = Unsaved::nothing_done;
  std::string how_to_go_on_ = "start again with --resume";
  std::function<bool()> is_failure_reported_ = [] { return false; };
  int signal_ = 0;
  double asked_at_ = 0;
  Index last_ = 0;
  bool speaks_ = true, is_of_a_launcher_ = false;
};

StopRequest stop_request;

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

bool is_lack_of_threads(const std::system_error& error) {
  return error.code() == std::errc::resource_unavailable_try_again || error.code() == std::errc::not_enough_memory;
}

void end_on_terminate() { std::set_terminate(on_terminate); }

void prepare_for_faults(int process) {
  std::signal(SIGXFSZ, SIG_IGN);
  if (process >= 0) std::snprintf(who_lost.data(), who_lost.size(), "rank %d: ", process);
  struct sigaction action {};
  action.sa_sigaction = on_lost_mapping;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
  take_signals_on_own_stack();
  action.sa_sigaction = on_failed_library;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, &segv_before);
  ::sigaction(SIGABRT, &action, nullptr);
}

void catch_stop_signals(int process) {
  stop_request.be_process(process);
  sigset_t stops;
  sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGPWR, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE}) {
    if (is_ignored(signal)) continue;
    sigaddset(&stops, signal);
    if (signal == SIGPIPE) takes_closed_pipes = true;
  }
  ::pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  std::thread([stops] {
    while (true) {
      if (const int signal = ::sigwaitinfo(&stops, nullptr); signal > 0) stop_request.take(signal);
    }
  }).detach();
}

bool stop_asked(Index last) { return stop_request.is_asked(last); }

void set_unsaved(Unsaved unsaved) { stop_request.set_unsaved(unsaved); }

void expect_next_run(std::string how) { stop_request.expect_next_run(std::move(how)); }

void set_failure_probe(std::function<bool()> is_failure_reported) {
  stop_request.set_failure_probe(std::move(is_failure_reported));
}

int stop_signal() { return stop_request.signal(); }

std::string stop_reason() {
  const int signal = stop_signal();
  return signal == 0 ? "" : ::strsignal(signal);
}

}  // namespace megalith::apps
