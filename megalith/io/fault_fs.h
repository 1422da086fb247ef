#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::io {

/// The operations of an Fs and of its files, and `call`, a communication call of a rank; each call of one is a point
/// where a fault can be injected.
enum class Operation : std::uint8_t {
  create,
  append,
  write,
  sync,
  close,
  map,
  rename,
  sync_dir,
  make_dir,
  unlink,
  remove_dir,
  list,
  exists,
  is_dir,
  is_link,
  file_size,
  free_bytes,
  call
};
inline constexpr int kNumOperations = 18;
/// "create", "append", ...: stable, since recorded sweeps name their points by them.
std::string_view operation_name(Operation operation);

/// What goes wrong at which call.
struct Fault {
  enum class Action : std::uint8_t {
    error,        ///< the call fails with `error_number` and does nothing
    short_write,  ///< half of a write happens, then it fails with `error_number`; other operations just fail
    kill,         ///< SIGKILL before the call
    torn,         ///< half of a write happens, then SIGKILL; for other operations SIGKILL right after the call
    delay,        ///< the call happens `delay_s` later, in which the thread sleeps
    spin,         ///< the call happens `delay_s` later, in which the thread computes
    skip,         ///< the call claims success and does nothing: sync and sync_dir only, to see that a sweep misses them
  };
  std::optional<int> rank;             ///< empty: every rank
  std::optional<Operation> operation;  ///< empty: every operation of files, counted together
  std::uint64_t first = 1, last = 1;   ///< calls it hits, counted from 1, both included
  Action action = Action::error;
  int error_number = 0;
  double delay_s = 0;
  bool operator==(const Fault&) const = default;
};

/// Reads "RANK:OPERATION:N:ACTION", several separated by commas:
///   RANK       a number or * (every rank)
///   OPERATION  a name from operation_name() or * (all of files, counted together)
///   N          the call, from 1; N+ for that one and all later ones; * for all
///   ACTION     EIO ENOSPC EDQUOT EROFS EACCES ENOENT EMFILE ESTALE | short | kill | torn | sleep=20ms (us, ms or s) |
///   spin=20ms | skip; of `call` kill, sleep and spin only
/// as "0:sync:2:EIO" or "*:write:5+:ENOSPC". Empty text has no faults. Throws ConfigError.
std::vector<Fault> parse_faults(std::string_view text);

/// Where a rank makes a communication call: what faults of the operation `call` ask for happens there.
class CallFaults {
 public:
  /// Keeps the faults of `rank` only.
  CallFaults(const std::vector<Fault>& faults, int rank);
  bool any() const { return !faults_.empty(); }
  /// Before every call.
  void pass();

 private:
  std::vector<Fault> faults_;
  std::uint64_t count_ = 0;
};

/// An Fs that does what another does, except where a fault is set, and counts the calls, so that a sweep knows
/// how many points there are. Without a fault a call costs a count and one branch; a run without MEGALITH_FAULT does
/// not use it at all. Calls may come from several threads.
class FaultFs final : public Fs {
 public:
  /// Keeps the faults of `rank` only.
  FaultFs(std::shared_ptr<Fs> inner, const std::vector<Fault>& faults, int rank);

  std::uint64_t count(Operation operation) const;
  std::uint64_t count() const;  ///< of all operations
  /// The operations so far with their paths, when record() was called before: "sync /a/b". Not for several threads.
  void record() { state_->recording = true; }
  const std::vector<std::string>& recorded() const { return state_->recorded; }

  std::unique_ptr<OutputFile> create(const Path& path) override;
  std::unique_ptr<OutputFile> append(const Path& path) override;
  MappedFile map(const Path& path) override;
  void rename(const Path& from, const Path& to) override;
  void sync_dir(const Path& directory) override;
  void make_dir(const Path& directory) override;
  void unlink(const Path& file) override;
  void remove_dir(const Path& directory) override;
  std::vector<std::string> list(const Path& directory) override;
  bool exists(const Path& path) override;
  bool is_dir(const Path& path) override;
  bool is_link(const Path& path) override;
  std::uint64_t file_size(const Path& path) override;
  std::uint64_t free_bytes(const Path& directory) override;

  /// Shared with the files it made, which may outlive it.
  struct State {
    std::vector<Fault> faults;
    std::array<std::atomic<std::uint64_t>, kNumOperations> counts{};
    std::atomic<std::uint64_t> total{0};
    bool recording = false;
    std::vector<std::string> recorded;
  };

 private:
  std::shared_ptr<Fs> inner_;
  std::shared_ptr<State> state_;
};

}  // namespace megalith::io
