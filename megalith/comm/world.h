#pragma once
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/comm/step_pattern.h"

namespace megalith::comm {

class Positions;

/// Which members of a group may exchange messages on GPUs. There every channel of a pair needs a communicator and a
/// stream, which are made with the group. On a CPU all members may.
enum class Messages : std::uint8_t {
  none,
  neighbours,  ///< member i with i + 1, and the last with the first, both ways, on lanes 0 and 1
};

/// How many CTAs of a GPU a group's collective kernels may hold. These are as many as give their full rate, or
/// kCommunicationThreadBlocks (tensor/device.h) because GEMMs run beside them.
enum class CtaLimit : std::uint8_t { none, few };

/// The transport of large messages and collectives between GPUs. `copy_engines`: our own transport (comm/peer), where
/// ranks are threads, or processes of one host, whose GPUs can access each other's memory. It uses copy engines, and
/// symmetric-memory kernels for most collectives if the members' memory is accessible (device::use, PeerGroup).
/// Otherwise, and for all small calls: NCCL's kernels. The sums of the two differ by rounding. Memory of
/// `copy_engines`: a mailbox of 32 to 64 MiB on every member's GPU (MailboxLayout).
enum class Transport : std::uint8_t { copy_engines, kernels };
std::string_view name_of(Transport transport);

/// How a group is used. Only GPU transports need this; on a CPU all groups are alike.
struct GroupUse {
  Messages messages = Messages::none;
  CtaLimit cta_limit = CtaLimit::none;
  Transport transport = Transport::copy_engines;
};

/// One rank's view of all ranks. It makes groups. Every rank makes the groups of which it is a member, in an order that
/// is the same for all. On a CPU this does not communicate. On GPUs the members wait for each other.
class World {
 public:
  World();
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view transport() const = 0;  ///< "threads", "mpi", "nccl", "dry", "alone"
  /// Whether every rank exists. False in an alone_world(), where facts of other ranks are this rank's.
  virtual bool has_all_ranks() const { return true; }

  /// The group of these world ranks, in the given order (it need not be ascending). A later call with the same name and
  /// ranks returns the same group, for the use of the first call. Throws InternalError if this rank is not a member, or
  /// if a rank is out of range or listed twice.
  Group group(std::string name, std::vector<int> world_ranks, const GroupUse& use = {});
  /// All ranks, named "world", between their host memories. The same as group("world", all ranks) if ranks compute on a
  /// CPU.
  const Group& all() const { return *all_; }

  /// The sum of agreement_term() over all groups of this World; 0 where no other rank exists to agree.
  virtual std::uint64_t agreement_term() const;
  /// All groups of this World, in the order in which they were made: names and counters for tests, traces and `bench`.
  const std::vector<Group>& groups() const { return groups_; }

  /// Signals the other ranks that this rank fails. Their waits throw AbortedError within 10 s.
  virtual void abort(const std::string& reason) = 0;
  /// "rank 2 failed first: its error", as far as this rank can know it while its thread waits for something else. Empty
  /// if no rank has failed. Any thread may call this. Between processes: a failure on a host that shares memory, or one
  /// of which a thread of such a process has heard within its own calls.
  virtual std::string failure() const { return {}; }
  /// What all ranks do, as far as this rank can read it: what the verdict about a hang follows from. Null in a dry
  /// world.
  const std::shared_ptr<Positions>& positions() const { return positions_; }
  /// From here on the processes of one host share memory: they read each other's positions, and rows of matrices
  /// (Channel::reads_rows). Collective; ranks of one build only.
  virtual void share_memory() {}
  /// Whether this process and that of the rank, another one, share memory.
  virtual bool shares_memory_with(int /*rank*/) const { return false; }
  /// The calls from here on belong to this step, from 1. For reports of hangs.
  void begin_step(Index step);

  /// Throws the error that has occurred in communication since the last call. On GPUs neither a call nor a wait reports
  /// an error to the host; the wait then returns over undefined data. Call it before a step. wait_for() calls it after
  /// a wait. On a CPU the calls themselves throw.
  virtual void check_health() {}
  /// The host waits (HostWait) for all submitted work of the stream of `ex`, or for an event. Throws what
  /// check_health() throws.
  void wait_for(Exec& ex);
  void wait_for(const Event& event);

  /// Memory of this rank's GPU that the transport took for the groups so far, by the driver's count.
  virtual Index device_bytes() const { return 0; }

  /// From here on every call of this rank passes through `hook`. For tests and injected faults.
  void set_hook(std::unique_ptr<CallHook> hook) { calls_->hook = std::move(hook); }

  /// This rank's latest communication calls, one per line (CallLog::text), for a file beside the error message. Only
  /// the rank's own thread calls it, before its World ends.
  std::string call_log() const;

 protected:
  /// The channel of a group of two or more ranks, in which this rank is member `rank`.
  virtual std::shared_ptr<Channel> open(std::string name, std::vector<int> world_ranks, int rank,
                                        const GroupUse& use) = 0;
  // The constructor of the transport calls one of these once.
  void open_world();                   ///< all() is a group of this World
  void adopt_world(const Group& all);  ///< all() is another World's
  /// The positions of this rank's calls are written there, beginning with the next call.
  void use_positions(std::shared_ptr<Positions> positions);

 private:
  friend class WatchedStep;
  friend class WatchedReplays;
  friend class HostWait;
  friend class HostsMeet;
  template <class WrappingChannel>
  friend class WrappedWorld;  // in tests: forwards all of this to another World
  /// An error has left a step. Its memory may be freed, so everything in flight there must end.
  virtual void give_up() noexcept {}
  /// A stream replays captured calls that the transport has not submitted itself, or stops doing so.
  virtual void add(Stream) {}
  virtual void remove(Stream) noexcept {}
  virtual void begin_host_wait() {}
  virtual void end_host_wait() noexcept {}

  std::vector<Group> groups_;
  std::unique_ptr<Group> all_;
  std::shared_ptr<RankCalls> calls_;
  std::shared_ptr<Positions> positions_;
};

/// While it lives, the calls of this rank are those of one step. They must equal those of the steps before.
class WatchedStep {
 public:
  WatchedStep(World& world, StepPattern& pattern, const Exec& ex);
  ~WatchedStep();
  WatchedStep(const WatchedStep&) = delete;
  WatchedStep& operator=(const WatchedStep&) = delete;
  /// All calls were made. Throws CollectiveError if some are missing.
  void end();

 private:
  World& world_;
};

/// While it lives, check_health() throws only after an Exec's stream is idle, where graphs may replay calls of this
/// World. It must end before the Exec, and before all memory that these calls access. If an error ends it,
/// communication ends first.
class WatchedReplays {
 public:
  WatchedReplays(World& world, const Exec& ex);
  ~WatchedReplays();
  WatchedReplays(const WatchedReplays&) = delete;
  WatchedReplays& operator=(const WatchedReplays&) = delete;

 private:
  World& world_;
  Stream stream_;
  int errors_at_start_;
};

/// While it lives, the rank's thread waits for its GPU, or submits work and may wait for space in its queue. If the GPU
/// waits for another rank within a captured call, the thread waits, too, and the call cannot be observed by itself.
/// Communication ends with a HangError after the timeout. It is counted from the begin or the end of this wait or of
/// the last one within it, whichever is latest.
class HostWait {
 public:
  explicit HostWait(World& world) : world_(world) { world_.begin_host_wait(); }
  ~HostWait() { world_.end_host_wait(); }
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

 private:
  World& world_;
};

/// While it lives, the hosts of all members meet before each collective of this rank, and again when all have submitted
/// it: no GPU then waits for a rank whose host does something else. For warm-ups. CUDA puts a library that is loaded
/// later (cuDNN's kernels for an attention) into the contexts of all GPUs of the process, if CUDA_MODULE_LOADING is
/// EAGER, and waits for the work of each: also of one that waits, in a collective, for the rank that loads. Make it on
/// all ranks at the same point. Costs two barriers between hosts for each collective.
class HostsMeet {
 public:
  explicit HostsMeet(World& world) : world_(world) { world_.calls_->hosts_meet = true; }
  ~HostsMeet() { world_.calls_->hosts_meet = false; }
  HostsMeet(const HostsMeet&) = delete;
  HostsMeet& operator=(const HostsMeet&) = delete;

 private:
  World& world_;
};

struct WorldOptions {
  double timeout_s = 600;  ///< limit of every wait; a HangError names rank, group, operation and the awaited ranks
};

/// Rethrows the error as the same class, with "rank N: " before its text, unless a rank is already there. Errors that
/// are the verdict of all ranks (is_verdict_of_all), and errors of foreign classes, are thrown unchanged.
[[noreturn]] void rethrow_with_rank(const std::exception_ptr& error, int rank);

/// A world whose groups know their rank and size but cannot communicate. It records plans for any rank of any world.
std::unique_ptr<World> dry_world(int rank, int size);

}  // namespace megalith::comm
