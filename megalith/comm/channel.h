#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/comm/row_lists.h"

namespace megalith::comm {

class CallLog;
class StepPattern;

enum class Reduce : std::uint8_t { sum, max, min };
enum class Op : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  barrier,
  send,
  recv,
  gather_rows,
  gather_sum_rows,
};
inline constexpr int kNumOps = 10;
std::string_view name_of(Op op);
/// Whether an op is between two ranks, not of the whole group.
constexpr bool is_message(Op op) { return op == Op::send || op == Op::recv; }
/// Whether an op reads rows of all members' matrices by lists.
constexpr bool is_of_rows(Op op) { return op == Op::gather_rows || op == Op::gather_sum_rows; }
std::string_view name_of(Reduce reduce);

/// How a collective should use a GPU, if the transport has a choice. Changes no bits.
enum class Priority : std::uint8_t {
  awaited,      ///< the caller soon waits for it, and computes meanwhile
  beside_work,  ///< the caller's compute takes longer than the call: the call should take few resources from it
  alone,        ///< little compute is left to overlap with it
};
std::string_view name_of(Priority priority);

/// The description of one call by one rank. It is sent with the data, and compared before any data is used.
struct Call {
  Op op = Op::barrier;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  Priority priority = Priority::awaited;
  std::int32_t root = 0;       ///< broadcast: root; send, recv: peer; of rows: elements of a row
  std::int32_t lane = 0;       ///< send, recv
  Index count = 0;             ///< input elements (all_to_all: 0, because the counts differ by design)
  std::uint64_t sequence = 0;  ///< number in this channel (collectives) or to this peer and lane (send, recv), from 0
  std::uint32_t site = 0;      ///< hash of the call site in the source
  const char* file = "";
  std::uint32_t line = 0;
  std::uint64_t entry = 0;  ///< number in this rank's call log; not compared
  // About this rank's own steps, and compared only with each other:
  const void* memory = nullptr;  ///< the memory that is sent, or else received into
  std::uint64_t ops_run = 0;     ///< Exec::ops_run() at the call
};
/// "all_reduce(sum, f32 x 128) #7 at mlp.cpp:42"
std::string describe(const Call& call);
/// The same without the call site, for a call of another process.
std::string describe_there(const Call& call);

/// Whether two members of a group made the same collective call.
bool agree(const Call& a, const Call& b);

/// Calls, elements and bytes of communication, per kind.
struct Counter {
  Index calls = 0, elements = 0, bytes = 0;
};
struct Counters {
  std::array<Counter, kNumOps> by_op{};
  const Counter& operator[](Op op) const { return by_op[static_cast<std::size_t>(op)]; }
  Counter& operator[](Op op) { return by_op[static_cast<std::size_t>(op)]; }
};

/// Identifies a call in flight until it is waited for.
struct Ticket {
  std::int64_t id = -1;     ///< -1: nothing is in flight, the call is complete
  std::uint64_t entry = 0;  ///< number in the rank's call log
};

/// The parts of one memory that go to the members or come from them: contiguous, in member order.
template <class Void>
struct Parts {
  Void* data = nullptr;
  std::span<const Index> bytes;  ///< one per member
};

/// Stands between a rank's calls and its channels. Tests use it to corrupt calls.
class CallHook {
 public:
  virtual ~CallHook() = default;
  /// Makes the call by make(call), or replaces it.
  virtual void apply(const Call& call, const std::function<void(const Call&)>& make) = 0;
};

/// State that all channels of one rank share.
struct RankCalls {
  RankCalls();
  ~RankCalls();
  std::unique_ptr<CallLog> log;    ///< where booked calls are logged
  StepPattern* pattern = nullptr;  ///< with which they are compared while a step is watched
  std::unique_ptr<CallHook> hook;  ///< through which all calls go, if there is one
  bool hosts_meet = false;         ///< before and after collectives (HostsMeet)
};

/// The lanes of a pair of ranks are numbered from 0 to below this.
inline constexpr int kMaxLanes = 1023;

/// One rank's end of a group: the interface that a transport implements. Only the functions of group.h call it. They
/// check shapes, book counters and the rolling hash, and skip groups of one rank. Not thread-safe: only the rank's own
/// thread uses it.
class Channel {
 public:
  Channel(std::string name, std::vector<int> world_ranks, int rank);
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  std::string_view name() const { return name_; }
  std::span<const int> world_ranks() const { return world_ranks_; }
  int world_rank(int member) const { return world_ranks_[static_cast<std::size_t>(member)]; }
  int world_rank() const { return world_rank(rank_); }
  /// A hash of name and members: the same on all members, different for different groups. Odd.
  std::uint64_t key() const { return key_; }
  const Counters& counters() const { return counters_; }
  /// The device on which the tensors must lie.
  virtual Device device() const { return Device::cpu; }
  /// The SM margin of GEMMs that run beside large collectives, so that these can start and keep pace.
  virtual int multiprocessors() const { return 0; }

  /// Whether every sum of a collective is taken in ascending group rank order. Otherwise the order may depend on the
  /// position of a number in the tensor, and on the ranks of the group.
  virtual bool sums_in_rank_order() const { return true; }

  /// Whether row collectives read memory of all members: no host waits for counts or lists of others, except between
  /// CPUs.
  virtual bool reads_rows() const { return false; }

  /// Compares `call` with the pattern of the step, sets its sequence number, counts it, logs it, and adds it to the
  /// rolling hash.
  Call book(Call call, Index bytes);
  /// Notes in the call log that a booked call is complete.
  void note_done(std::uint64_t entry);
  /// This rank's term of the agreement check. The terms of all ranks of the world must add up to 0 (mod 2^64). They do
  /// if all members of each group have made the same calls in the same order, and every send has met its receive.
  /// Otherwise the chance of 0 is 2^-63. The first member subtracts (size - 1) * key * hash, all others add key * hash.
  /// Senders add, receivers subtract.
  std::uint64_t agreement_term() const;
  /// None until this is called.
  void set_calls(std::shared_ptr<RankCalls> calls) { calls_ = std::move(calls); }
  CallHook* hook() const { return calls_ == nullptr ? nullptr : calls_->hook.get(); }
  bool hosts_meet() const { return calls_ != nullptr && calls_->hosts_meet; }

  /// Scratch for all_to_all: the bytes that go to each member and come from it.
  std::span<Index> send_bytes() { return {bytes_.data(), world_ranks_.size()}; }
  std::span<Index> recv_bytes() { return {bytes_.data() + world_ranks_.size(), world_ranks_.size()}; }

  /// The stream of the transport that runs the call of the ticket; null if there is none.
  virtual Stream stream_of(Ticket) const { return {}; }
  /// The transport of such a call if it is made now in `stream`, in words. If it is empty, it is that of
  /// World::transport().
  virtual std::string_view transport_of(const Call&, Stream) const { return {}; }

  // `stream` is the caller's: at its present point the data is ready and the memory is free. On a CPU there is one
  // stream, and collectives are complete when they return. On other devices the host continues, and wait() makes the
  // stream wait.
  virtual Ticket all_reduce(const Call& call, void* data, Stream stream) = 0;
  virtual Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) = 0;
  virtual Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) = 0;
  virtual Ticket all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) = 0;
  virtual Ticket broadcast(const Call& call, void* data, Stream stream) = 0;
  virtual void barrier(const Call& call, Stream stream) = 0;
  /// On a CPU the lists have been checked. Transports without these calls throw BackendError.
  virtual Ticket gather_rows(const Call& call, const GatherRows& args, Stream stream);
  virtual Ticket gather_sum_rows(const Call& call, const GatherSumRows& args, Stream stream);
  virtual Ticket post_send(const Call& call, const void* data, Stream stream) = 0;
  virtual Ticket post_recv(const Call& call, void* data, Stream stream) = 0;
  /// Later work of `stream` starts after the call of the ticket.
  virtual void wait(Ticket ticket, Stream stream) = 0;
  /// The host returns when the hosts of all members have called this. Nothing where collectives wait on the host
  /// anyway.
  virtual void meet_hosts() {}
  /// The host returns when the point of the caller's stream has passed. On a GPU a call that hangs or fails ends the
  /// wait. It then throws the call's error.
  virtual void host_wait(const Event& point) { point.wait(); }
  /// Gives up a message that nobody will wait for, for example when an error unwinds. Afterwards its memory may be
  /// freed.
  virtual void cancel(Ticket ticket) noexcept = 0;

  /// "[all_reduce] group tp of 4 ranks: ", the beginning of every error of a call.
  std::string where(Op op) const;
  /// Two ranks disagree. Ranks are world ranks. `theirs` describes the call of the other rank.
  [[noreturn]] void throw_mismatch(const Call& mine, int my_rank, const std::string& theirs, int their_rank) const;
  /// `call` has waited for `awaited` ("rank 1 (ended), rank 3") without success.
  [[noreturn]] void throw_hang(const Call& call, double waited_s, const std::string& awaited) const;

 private:
  /// One direction of a pair: the messages with one lane number.
  struct Lane {
    int peer = 0, lane = 0;
    Op op = Op::send;
    std::uint64_t key = 1;  ///< the same at both ends, odd
    std::uint64_t sequence = 0, hash = 0;
  };
  Lane& lane_of(const Call& call);
  [[noreturn]] void refuse_rows(Op op) const;

  std::string name_;
  std::vector<int> world_ranks_;
  int rank_;
  std::uint64_t key_;
  std::uint64_t sequence_ = 0, hash_ = 0;
  std::vector<Lane> lanes_;
  std::vector<Index> bytes_;
  Counters counters_;
  std::shared_ptr<RankCalls> calls_;
};

/// "2.1 s": the time that a rank has waited.
std::string waited_text(double seconds);

/// "rank 1 (ended), rank 3 and 9 more": at most eight are listed, to keep a message readable.
class RankList {
 public:
  void add(int world_rank, const std::string& remark = "");
  bool empty() const { return ranks_.empty(); }
  std::span<const int> ranks() const { return ranks_; }
  int count() const { return static_cast<int>(ranks_.size()); }
  std::string text() const;

 private:
  static constexpr std::size_t kListed = 8;
  std::vector<int> ranks_;
  std::string text_;
};

}  // namespace megalith::comm
