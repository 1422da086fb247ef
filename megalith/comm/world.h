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

/// Which members of a group may exchange messages on GPUs, where every channel of a pair costs a communicator and a
/// stream, made with the group. On a CPU all may in any case.
enum class Messages : std::uint8_t {
  none,
  neighbours,  ///< member i with i + 1, and the last with the first, both ways, on lanes 0 and 1
};

/// How much of a GPU a group's collective kernels may hold: what gives their full rate, or kCommunicationThreadBlocks
/// (tensor/device.h), because products run beside them.
enum class CtaLimit : std::uint8_t { none, few };

/// What carries large messages and collectives between GPUs: their copy engines where ranks are threads of one process
/// whose GPUs reach each other's memory (comm/peer), else and in any case for small ones kernels of NCCL. Sums of the
/// two differ by rounding. Copy engines take a mailbox of 32 to 64 MiB of every member's GPU (MailboxLayout). Where the
/// members' memory is in reach (device::use), kernels of ours carry most collectives in their stead (PeerGroup).
enum class Transport : std::uint8_t { copy_engines, kernels };
std::string_view name_of(Transport transport);

/// What a GPU transport makes a group for. On a CPU all groups are alike.
struct GroupUse {
  Messages messages = Messages::none;
  CtaLimit cta_limit = CtaLimit::none;
  Transport transport = Transport::copy_engines;
};

/// One rank's view of all ranks: makes groups. Every rank makes the groups of which it is a member, in an order that is
/// the same for all: creation does not communicate on a CPU, but on GPUs the members wait for each other.
class World {
 public:
  World();
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view transport() const = 0;  ///< "threads", "mpi", "nccl", "dry"

  /// The group of these world ranks (ascending order not required: the order given is the group's order). The same name
  /// and ranks give the same group again, for the use it was first made for. Throws InternalError when this rank
  /// is not a member, or a rank is out of range or listed twice.
  Group group(std::string name, std::vector<int> world_ranks, const GroupUse& use = {});
  /// All ranks, named "world", between their host memories: the same as group("world", all ranks) where ranks compute
  /// on a CPU.
  const Group& all() const { return *all_; }

  /// The sum of agreement_term() over all groups made by this World.
  std::uint64_t agreement_term() const;
  /// All groups made by this World, in order: names and counters for tests, traces and `bench`.
  const std::vector<Group>& groups() const { return groups_; }

  /// Tells the others that this rank fails: their waits throw AbortedError within 10 s.
  virtual void abort(const std::string& reason) = 0;
  /// "rank 2 failed first: its error", as far as this rank can know while its thread waits for something else; empty
  /// while none has. Any thread may ask.
  virtual std::string failure() const { return {}; }
  /// Throws what has gone wrong in communication since: on GPUs the host hears of it neither from a call nor from a
  /// wait, which then returns over undefined data. To be called before a step, and by wait_for() after a wait. On a CPU
  /// the calls themselves throw.
  virtual void check_health() {}
  /// The host waits (HostWait) for all that the stream of `ex` was given, or for an event, and is told what went wrong.
  void wait_for(Exec& ex);
  void wait_for(const Event& event);

  /// Memory of this rank's GPU that the transport took for the groups made so far, as the driver counts it.
  virtual Index device_bytes() const { return 0; }

  /// From here on every call of this rank passes through `hook`. For tests.
  void set_hook(std::unique_ptr<CallHook> hook) { calls_->hook = std::move(hook); }

  /// This rank's latest communication calls, one line each (CallLog::text): for a file beside the error message. Called
  /// by the rank's own thread, before its World ends.
  std::string call_log() const;

 protected:
  /// The channel of a group of two or more ranks, in which this one is member `rank`.
  virtual std::shared_ptr<Channel> open(std::string name, std::vector<int> world_ranks, int rank,
                                        const GroupUse& use) = 0;
  // One of these is called once by the transport's constructor.
  void open_world();                   ///< all() is a group of this World
  void adopt_world(const Group& all);  ///< all() is another World's

 private:
  friend class WatchedStep;
  friend class WatchedReplays;
  friend class HostWait;
  template <class WrappingChannel>
  friend class WrappedWorld;  // of tests: hands all of this on to another World
  /// An error left a step: its memory may go, so whatever is in flight there must end.
  virtual void give_up() noexcept {}
  /// A stream replays captured calls, which the transport has not submitted itself; it does so no more.
  virtual void add(Stream) {}
  virtual void remove(Stream) noexcept {}
  virtual void begin_host_wait() {}
  virtual void end_host_wait() noexcept {}

  std::vector<Group> groups_;
  std::unique_ptr<Group> all_;
  std::shared_ptr<RankCalls> calls_;
};

/// While it lives, the calls of this rank are those of one step and must be those of the steps before.
class WatchedStep {
 public:
  WatchedStep(World& world, StepPattern& pattern, const Exec& ex);
  ~WatchedStep();
  WatchedStep(const WatchedStep&) = delete;
  WatchedStep& operator=(const WatchedStep&) = delete;
  /// All calls were made. Throws CollectiveError when some are missing.
  void end();

 private:
  World& world_;
};

/// While it lives, check_health() throws no sooner than an Exec's stream is idle, where graphs may replay calls of this
/// World. To end before the Exec and all memory that these calls touch; when an error ends it, communication ends
/// first.
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

/// While it lives, the rank's thread waits for its GPU, or hands it work and may wait for room in its queue. A GPU that
/// waits for another rank within a captured call keeps it there, and no such call can be looked at by itself: when the
/// timeout has passed since the wait, or the last one within it, began or ended, communication ends with a HangError.
class HostWait {
 public:
  explicit HostWait(World& world) : world_(world) { world_.begin_host_wait(); }
  ~HostWait() { world_.end_host_wait(); }
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

 private:
  World& world_;
};

struct WorldOptions {
  double timeout_s = 600;  ///< of every wait; a HangError names rank, group, operation and what was awaited
};

/// Throws the error again, as the same class, with "rank N: " in front of its text unless a rank stands there already.
/// Verdicts of all ranks (is_verdict_of_all) and errors of foreign classes are thrown unchanged.
[[noreturn]] void rethrow_with_rank(const std::exception_ptr& error, int rank);

/// A world whose groups know their rank and size but cannot communicate: records plans for any rank of any world.
std::unique_ptr<World> dry_world(int rank, int size);

}  // namespace megalith::comm
