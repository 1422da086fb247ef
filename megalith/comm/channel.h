#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tensor/tensor.h"

namespace megalith::comm {

class CallLog;
class StepPattern;

enum class Reduce : std::uint8_t { sum, max, min };
enum class Op : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, barrier, send, recv };
inline constexpr int kNumOps = 8;
std::string_view name_of(Op op);
/// Between two ranks, not of the whole group.
constexpr bool is_message(Op op) { return op == Op::send || op == Op::recv; }
std::string_view name_of(Reduce reduce);

/// What a collective may take of a GPU, where a transport has the choice. Changes no bits.
enum class Priority : std::uint8_t {
  awaited,      ///< the caller waits for it before long, and computes meanwhile
  beside_work,  ///< the caller has work for longer than it takes: it should take little from that
  alone,        ///< little is left to compute beside it
};
std::string_view name_of(Priority priority);

/// What one rank says about one call: sent along with the data and compared before any of it is used.
struct Call {
  Op op = Op::barrier;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  Priority priority = Priority::awaited;
  std::int32_t root = 0;       ///< broadcast: root; send, recv: peer
  std::int32_t lane = 0;       ///< send, recv
  Index count = 0;             ///< elements entering (all_to_all: 0, the counts differ by design)
  std::uint64_t sequence = 0;  ///< of this channel (collectives) or of this peer and lane (send, recv), from 0
  std::uint32_t site = 0;      ///< hash of the call's place in the source
  const char* file = "";
  std::uint32_t line = 0;
  std::uint64_t entry = 0;  ///< number in this rank's call log; not compared
  // Of this rank's own steps, compared with each other only:
  const void* memory = nullptr;  ///< what is sent, or else received into
  std::uint64_t ops_run = 0;     ///< Exec::ops_run() when it is made
};
/// "all_reduce(sum, f32 x 128) #7 at mlp.cpp:42"
std::string describe(const Call& call);
/// The same without the place, for a call that another process made.
std::string describe_there(const Call& call);

/// Whether two members of a group made the same collective call.
bool agree(const Call& a, const Call& b);

/// Calls, elements and bytes that entered communication, per kind.
struct Counter {
  Index calls = 0, elements = 0, bytes = 0;
};
struct Counters {
  std::array<Counter, kNumOps> by_op{};
  const Counter& operator[](Op op) const { return by_op[static_cast<std::size_t>(op)]; }
  Counter& operator[](Op op) { return by_op[static_cast<std::size_t>(op)]; }
};

/// Names what is in flight until it is waited for.
struct Ticket {
  std::int64_t id = -1;     ///< -1: nothing is: the call is complete
  std::uint64_t entry = 0;  ///< number in the rank's call log
};

/// The parts of one memory that go to the members or come from them: in member order, one behind the other.
template <class Void>
struct Parts {
  Void* data = nullptr;
  std::span<const Index> bytes;  ///< one per member
};

/// Stands between a rank's calls and its channels: tests make calls go wrong by it.
class CallHook {
 public:
  virtual ~CallHook() = default;
  /// Makes the call by make(call), or whatever becomes of it.
  virtual void apply(const Call& call, const std::function<void(const Call&)>& make) = 0;
};

/// What all channels of one rank share.
struct RankCalls {
  RankCalls();
  ~RankCalls();
  std::unique_ptr<CallLog> log;    ///< where booked calls are written down
  StepPattern* pattern = nullptr;  ///< what they are compared with while a step is watched
  std::unique_ptr<CallHook> hook;  ///< through which all calls go, if there is one
};

/// Lanes of a pair of ranks are numbered from 0 to below this.
inline constexpr int kMaxLanes = 1023;

/// One rank's end of a group: what a transport implements. Calls come through the functions of group.h only, which
/// check shapes, book counters and the rolling hash, and skip groups of one rank. Not thread-safe: a rank's own thread
/// uses it.
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
  /// The same on all members, different for different groups: a hash of name and members. Odd.
  std::uint64_t key() const { return key_; }
  const Counters& counters() const { return counters_; }
  /// Where the tensors must lie.
  virtual Device device() const { return Device::cpu; }
  /// Multiprocessors that products beside its large collectives leave free, for these to start and keep pace.
  virtual int multiprocessors() const { return 0; }

  /// Whether every sum of a collective is taken in ascending group rank. Otherwise its order may depend on where in the
  /// tensor the number lies, and on which ranks the group has.
  virtual bool sums_in_rank_order() const { return true; }

  /// Compares `call` with the step's pattern, completes it with its sequence number, counts and logs it and folds it
  /// into the rolling hash.
  Call book(Call call, Index bytes);
  /// Notes in the call log that a booked call is complete.
  void note_done(std::uint64_t entry);
  /// This rank's term of the agreement check: summed over all ranks of the world (mod 2^64) the terms give 0 exactly
  /// when every member has made the same calls in the same order and every send has met its receive (up to a chance of
  /// 2^-63). Members but the first add key * hash, the first subtracts (size - 1) * key * hash; senders add, receivers
  /// subtract.
  std::uint64_t agreement_term() const;
  /// None until set.
  void set_calls(std::shared_ptr<RankCalls> calls) { calls_ = std::move(calls); }
  CallHook* hook() const { return calls_ == nullptr ? nullptr : calls_->hook.get(); }

  /// Scratch for all_to_all: what each member is sent and sends, in bytes.
  std::span<Index> send_bytes() { return {bytes_.data(), world_ranks_.size()}; }
  std::span<Index> recv_bytes() { return {bytes_.data() + world_ranks_.size(), world_ranks_.size()}; }

  /// Where the transport runs the call that the ticket names; null where it has no stream for it.
  virtual Stream stream_of(Ticket) const { return {}; }
  /// What would carry such a call if it were made now in `stream`, in words; empty: the transport itself, which
  /// World::transport() names.
  virtual std::string_view transport_of(const Call&, Stream) const { return {}; }

  // `stream` is the caller's: its present point is where the data is ready and the memory free. On a CPU there is one,
  // and collectives are complete when they return; elsewhere the host goes on and wait() holds the stream.
  virtual Ticket all_reduce(const Call& call, void* data, Stream stream) = 0;
  virtual Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) = 0;
  virtual Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) = 0;
  virtual Ticket all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) = 0;
  virtual Ticket broadcast(const Call& call, void* data, Stream stream) = 0;
  virtual void barrier(const Call& call, Stream stream) = 0;
  virtual Ticket post_send(const Call& call, const void* data, Stream stream) = 0;
  virtual Ticket post_recv(const Call& call, void* data, Stream stream) = 0;
  /// What `stream` does from here on comes after the call that the ticket names.
  virtual void wait(Ticket ticket, Stream stream) = 0;
  /// Gives up a message that nobody will wait for, as when an error unwinds: afterwards its memory may go.
  virtual void cancel(Ticket ticket) noexcept = 0;

  /// "[all_reduce] group tp of 4 ranks: ", how every error of a call begins.
  std::string where(Op op) const;
  /// Two ranks disagree. Ranks are world ranks; `theirs` describes the other's call.
  [[noreturn]] void throw_mismatch(const Call& mine, int my_rank, const std::string& theirs, int their_rank) const;
  /// `call` has waited for `awaited` ("rank 1 (ended), rank 3") in vain.
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

/// "2.1 s": how long a rank has waited.
std::string waited_text(double seconds);

/// "rank 1 (ended), rank 3 and 9 more": at most eight are listed, so that a message stays readable.
class RankList {
 public:
  void add(int world_rank, const std::string& remark = "");
  bool empty() const { return count_ == 0; }
  std::string text() const;

 private:
  static constexpr int kListed = 8;
  int count_ = 0;
  std::string text_;
};

}  // namespace megalith::comm
