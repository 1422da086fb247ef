#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/comm/channel.h"

namespace megalith::comm {

/// What one rank does: its latest communication call, and what it has done since.
struct Position {
  enum class State : std::uint8_t {
    computes,  ///< or reads, writes: in no call. Before the first call, too
    calls,     ///< within the call
    waits,     ///< within the call, for other ranks
    ended,     ///< its work is done
  };
  static constexpr int kMaxAwaited = 8;

  std::array<char, 24> group{};  ///< the beginning of its name
  State state = State::computes;
  Op op = Op::barrier;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  Priority priority = Priority::awaited;
  std::uint8_t any_call = 0;     ///< 0 before the first call
  std::uint16_t unused = 0;      ///< every byte is one of a member, as all are copied
  std::int32_t num_awaited = 0;  ///< may exceed kMaxAwaited, of which the first are kept
  std::int32_t root = 0, lane = 0;
  std::int64_t count = 0;
  std::uint64_t sequence = 0;
  std::int64_t step = -1;  ///< from 1; -1: in none
  std::array<std::int32_t, kMaxAwaited> awaited{};
};
static_assert(std::is_trivially_copyable_v<Position> && sizeof(Position) % sizeof(std::uint64_t) == 0);

/// "all_reduce(sum, f32 x 128) #7 of group tp"
std::string call_text(const Position& position);

/// Where one rank's position is in memory that others read: two copies, of which the writer changes the one that is not
/// valid. So a rank that stands still in the middle of a change leaves a position. A reader that meets two changes
/// reads again.
struct alignas(64) PositionSlot {
  static constexpr std::size_t kWords = sizeof(Position) / sizeof(std::uint64_t);
  std::atomic<double> alive_s{0};         ///< monotonic_s() at the last sign of life; 0: none yet
  std::atomic<double> late_s{0};          ///< see RankPosition
  std::atomic<std::uint64_t> report{0};   ///< number of the report from another home that it is from
  std::atomic<std::uint64_t> version{0};  ///< of the valid copy, copies[version % 2]
  std::atomic<std::int32_t> process{0}, thread{0};
  std::atomic<std::uint64_t> process_space{0};  ///< which ranks see each other's process numbers
  std::array<std::array<std::atomic<std::uint64_t>, kWords>, 2> copies{};
};
static_assert(std::atomic<double>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

/// Writes the position of one rank. Only the rank's own thread may use it, except alive(). The two changes of a call
/// cost 35 ns (CallLog: 47 ns) on an AMD EPYC; no call waits for a reader.
class PositionWriter {
 public:
  explicit PositionWriter(PositionSlot& slot) : slot_(&slot) {}
  /// From here on in another memory.
  void move_to(PositionSlot& slot);
  /// This thread is the rank's.
  void introduce();

  void begin_step(Index step) { position_.step = step; }  ///< visible with the next change
  void enter(std::string_view group, const Call& call, double now_s);
  void leave(double now_s) { change(Position::State::computes, now_s); }
  /// The rank waits in a call, which may be an earlier one than the last entered.
  void wait_in(std::string_view group, const Call& call, double now_s);
  /// For which ranks it waits now: `ranks` are the first of `count`.
  void await(std::span<const int> ranks, int count);
  /// The wait of a call is over, and the call goes on.
  void resume(double now_s) { change(Position::State::calls, now_s); }
  void end(double now_s) { change(Position::State::ended, now_s); }
  /// The rank's thread runs, or waits for what another thread of the process sees to.
  void alive(double now_s) { slot_->alive_s.store(now_s, std::memory_order_relaxed); }

 private:
  void set_call(std::string_view group, const Call& call);
  void change(Position::State state, double now_s);
  void publish();

  PositionSlot* slot_;
  Position position_;
};

/// What a reader knows of a rank.
struct RankPosition {
  Position position;
  double alive_s = 0;   ///< the last sign of life, on this host's clock
  double late_s = 0;    ///< a sign of life may become known so much later
  std::string process;  ///< "process 4242 is stopped"; empty where it is not known
};

/// The error with which a rank failed.
struct RankFailure {
  int rank = 0;
  std::string reason;
};
/// "rank 2 failed first: its error"
std::string failure_text(const RankFailure& failure);

/// The positions of all ranks of a job, as far as this process can read them. Shared by the ranks of a process.
class Positions {
 public:
  explicit Positions(int size);
  int size() const { return static_cast<int>(writers_.size()); }
  PositionWriter& writer(int rank) { return writers_[static_cast<std::size_t>(rank)]; }
  /// Nothing where the rank's position cannot be read, or where it has not written one yet.
  std::optional<RankPosition> read(int rank) const;
  std::vector<std::optional<RankPosition>> read_all() const;

  /// Reports the failure of the job: true for one rank only of all that share this memory.
  bool claim_report();
  /// Whether a rank reports a failure. Any thread may call it.
  bool is_failure_reported() const;
  /// A rank's failure and its error, of which the first kMaxFailureText bytes are kept. The first call of all processes
  /// that share this memory counts.
  void write_failure(int rank, std::string_view reason);
  /// The failure that was written; nothing while there is none. Any thread may call it.
  std::optional<RankFailure> failure() const;
  static constexpr std::size_t kMaxFailureText = 500;

  /// From here on the ranks with the same home share `memory`, of shared_bytes(size), whose bytes were 0 at first;
  /// null: this rank keeps the memory that it has. `homes`: of each rank, the lowest that shares its memory. Only `own`
  /// has written into this memory so far, and continues.
  void share(std::shared_ptr<std::byte> memory, std::vector<int> homes, int own);
  static std::size_t shared_bytes(int size);
  /// The lowest rank that shares the memory of `rank`.
  int home(int rank) const { return homes_[static_cast<std::size_t>(rank)]; }

  /// A rank with another home, from a report of that home which may be `late_s` old. Reports have ascending numbers
  /// from 1. One that any process of this home has had before changes nothing: how old it is by now is not known.
  void write_remote(int rank, std::uint64_t report, const RankPosition& heard);
  /// True for one of the processes that share this memory, when `period_s` have passed since the last time.
  bool claim_turn(double now_s, double period_s);

 private:
  enum class Note : std::int32_t { none, in_writing, written };
  struct Head {
    std::atomic<std::int32_t> reports{0};
    std::atomic<double> last_turn_s{0};
    std::atomic<Note> failure{Note::none};  ///< `written`: the members below are valid, and stay
    std::int32_t failed_rank = 0, failure_bytes = 0;
    std::array<char, kMaxFailureText> failure_text{};
  };
  PositionSlot& slot(int rank) const;
  Head& head() const;

  std::shared_ptr<std::byte> memory_;  ///< the Head, then a slot per rank
  std::vector<PositionWriter> writers_;
  std::vector<int> homes_;
  int own_ = 0;
};

}  // namespace megalith::comm
