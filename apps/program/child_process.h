#pragma once
#include <csignal>
#include <string>
#include <vector>

#include <sys/types.h>

namespace megalith::apps {

/// Takes the signals that request a stop (those of catch_stop_signals()), and those of children that end, one after
/// another. From its construction on they do nothing else, also when it is gone: a message about the end may go to a
/// closed output. For a process with one thread.
class SignalQueue {
 public:
  SignalQueue();

  struct Signal {
    int number = 0;            ///< 0: none came
    bool is_of_group = false;  ///< of the terminal: the children have it, too
  };
  /// The next signal, which may take up to `timeout_s`.
  Signal next(double timeout_s);
  /// The mask of signals before, for children.
  const sigset_t& mask_before() const { return before_; }

 private:
  sigset_t taken_{}, before_{};
};

/// A program that this process has started and must wait for.
class ChildProcess {
 public:
  /// Starts `words`, of which the first is looked for in PATH. If this process ends without waiting, the child gets
  /// `signal_of_orphan`. Throws ConfigError if there is no such program, IoError if no process can start.
  ChildProcess(const std::vector<std::string>& words, const SignalQueue& signals, int signal_of_orphan);

  pid_t pid() const { return pid_; }
  /// Whether it has ended.
  bool has_ended();
  /// After its end: its exit code, 128 + the signal that killed it.
  int code() const { return code_; }
  void send(int signal) const;

 private:
  pid_t pid_ = -1;
  int code_ = -1;
};

/// Whether nobody reads what this process prints any more: standard output or error is a pipe without a reader.
bool is_output_closed();

}  // namespace megalith::apps
