#pragma once
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace megalith {

/// What the process exits with: one code per class of failure (docs/errors.md). 0 is success and nothing else.
enum class ExitCode : int {
  done = 0,
  usage = 64,               ///< command line or recipe
  bad_input = 65,           ///< an input file that cannot be used
  checkpoint_refused = 66,  ///< a checkpoint that does not fit the recipe
  no_checkpoint = 67,       ///< asked to resume, nothing valid to resume from
  internal = 70,
  collective = 71,  ///< ranks disagree about a collective
  hang = 72,        ///< a wait passed its timeout
  non_finite = 73,  ///< NaN or Inf in loss or gradients, or in the last held-out loss
  io = 74,          ///< disk full, write error
  requeue = 75,     ///< stopped on a signal, state saved: please start again
};

/// The root of all errors that megalith throws. Text: "[where] what = value: the rule it breaks", then the fix.
class Error : public std::exception {
 public:
  Error(ExitCode code, std::string text) : code_(code), text_(std::move(text)) {}
  ExitCode code() const { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }
  /// Puts `where` ("rank 3: ") in front of the text. Catch by reference, add, and `throw;`: the class stays.
  void put_in_front(std::string_view where) { text_.insert(0, where); }

 private:
  ExitCode code_;
  std::string text_;
};

/// One class per exit code; `ErrorOf` keeps them one line each.
template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& text) : Error(kCode, text) {}
};

using ConfigError = ErrorOf<ExitCode::usage>;
using InputError = ErrorOf<ExitCode::bad_input>;
using CollectiveError = ErrorOf<ExitCode::collective>;
using HangError = ErrorOf<ExitCode::hang>;
using NonFiniteError = ErrorOf<ExitCode::non_finite>;
using IoError = ErrorOf<ExitCode::io>;
/// Not a failure: a signal asked the run to stop and its state is saved.
using StoppedError = ErrorOf<ExitCode::requeue>;

/// 66 when a checkpoint is refused, 67 when there is none to use.
class CheckpointError : public Error {
 public:
  enum class Kind { refused, none_valid };
  CheckpointError(Kind kind, const std::string& text)
      : Error(kind == Kind::refused ? ExitCode::checkpoint_refused : ExitCode::no_checkpoint, text) {}
};

/// CUDA, NCCL, MPI or a backend that is not built in.
class BackendError : public Error {
 public:
  explicit BackendError(const std::string& text) : Error(ExitCode::internal, text) {}
};

/// A caller passed tensors that do not fit together.
class ShapeError : public Error {
 public:
  explicit ShapeError(const std::string& text) : Error(ExitCode::internal, text) {}
};

/// megalith broke a promise of its own.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& text) : Error(ExitCode::internal, text) {}
};

/// Another rank failed first and this one was freed from its wait. Never the error to report: the other's is.
class AbortedError : public Error {
 public:
  explicit AbortedError(const std::string& text) : Error(ExitCode::internal, text) {}
};

/// Whether a failure is of the job and not of one rank: every rank comes to it by itself from the same recipe and the
/// same checkpoint. Such an error is reported without a rank.
constexpr bool is_verdict_of_all(ExitCode code) {
  return code == ExitCode::usage || code == ExitCode::checkpoint_refused || code == ExitCode::no_checkpoint ||
         code == ExitCode::requeue;
}

/// "E72" for a hang: how the first line of a run-time failure names its class.
std::string code_name(ExitCode code);

}  // namespace megalith
