#include "apps/program/child_process.h"

#include <array>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::apps {
namespace {

std::string reason_of(int number) { return std::generic_category().message(number); }

/// In the child: becomes the program. Returns only if that fails.
void become(char* const* words, const sigset_t& mask, pid_t parent, int signal_of_orphan) {
  ::prctl(PR_SET_PDEATHSIG, signal_of_orphan);
  if (::getppid() != parent) ::_exit(128 + signal_of_orphan);  // it ended before the call
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::execvp(words[0], words);
}

}  // namespace

SignalQueue::SignalQueue() {
  sigemptyset(&taken_);
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGPWR, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE, SIGCHLD})
    sigaddset(&taken_, signal);
  ::pthread_sigmask(SIG_BLOCK, &taken_, &before_);
}

SignalQueue::Signal SignalQueue::next(double timeout_s) {
  const double whole = std::floor(timeout_s);
  const timespec time{.tv_sec = static_cast<std::time_t>(whole),
                      .tv_nsec = static_cast<long>((timeout_s - whole) * 1e9)};
  siginfo_t info{};
  const int signal = ::sigtimedwait(&taken_, &info, &time);
  if (signal <= 0 || signal == SIGPIPE) return {};  // a closed output: is_output_closed()
  return {.number = signal, .is_of_group = info.si_code == SI_KERNEL};
}

ChildProcess::ChildProcess(const std::vector<std::string>& words, const SignalQueue& signals, int signal_of_orphan) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  std::array<int, 2> failure{};  // the child writes the reason if it cannot become the program
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) throw IoError(str("[run] pipe: ", reason_of(errno)));
  const pid_t self = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    become(pointers.data(), signals.mask_before(), self, signal_of_orphan);
    const int number = errno;
    [[maybe_unused]] const auto ignored = ::write(failure[1], &number, sizeof number);
    ::_exit(127);
  }
  const int fork_errno = errno;
  ::close(failure[1]);
  int number = 0;
  const bool failed = pid_ > 0 && ::read(failure[0], &number, sizeof number) == sizeof number;
  ::close(failure[0]);
  if (pid_ < 0) throw IoError(str("[run] fork: ", reason_of(fork_errno)));
  if (!failed) return;
  ::waitpid(pid_, nullptr, 0);
  throw ConfigError(str(words.front(), ": cannot be started: ", reason_of(number)));
}

bool ChildProcess::has_ended() {
  if (code_ >= 0) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return true;
}

void ChildProcess::send(int signal) const {
  if (code_ < 0) ::kill(pid_, signal);
}

bool is_output_closed() {
  std::array<pollfd, 2> outputs{
      {{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0}, {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0}}};
  if (::poll(outputs.data(), outputs.size(), 0) < 0) return false;
  return ((outputs[0].revents | outputs[1].revents) & POLLERR) != 0;
}

}  // namespace megalith::apps
