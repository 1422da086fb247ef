#pragma once
#include <memory>
#include <string>

#include "megalith/io/fs.h"

namespace megalith::io {

/// The right to write into a run's folder: a lock on FOLDER/run.lock (or another name), held until destroyed. The
/// kernel frees it when the process ends in whatever way, so it cannot go stale; the file stays, since removing it
/// would race with the next job. Take it in one process of a run (rank 0) and before anything else is written. It is
/// not inherited across exec, but a forked child keeps it alive.
class RunLock {
 public:
  /// Makes the folder when it is absent; "" is the working folder. Follows no link. Throws IoError that names host, pid
  /// and start time of the job that holds it.
  static RunLock take(const Path& folder, const std::string& name = "run.lock");
  RunLock(RunLock&&) noexcept;
  RunLock& operator=(RunLock&&) noexcept;
  ~RunLock();

  const Path& folder() const { return folder_; }
  /// Ends the lock and takes its file away. A job that has opened the file by then makes a new one.
  void remove() noexcept;
  /// Throws IoError unless FOLDER/run.lock is still the file that is locked: where it is not, the folder was removed
  /// under the job, and may be another's by now.
  void require_in_place() const;
  /// Whether `path` is the folder or lies in it.
  bool covers(const Path& path) const;

 private:
  RunLock(int fd, Path folder, std::string name) : fd_(fd), folder_(std::move(folder)), name_(std::move(name)) {}
  bool is_in_place() const noexcept;
  Path path() const { return folder_ / name_; }

  int fd_ = -1;
  Path folder_;
  std::string name_;
};

/// A RunLock whose file goes at the end: for folders in which only results stay.
class OutputLock {
 public:
  OutputLock(const Path& folder, const std::string& name) : lock_(RunLock::take(folder, name)) {}
  ~OutputLock() { lock_.remove(); }
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  RunLock lock_;
};

}  // namespace megalith::io
