#include "megalith/comm/positions.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <new>
#include <utility>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "megalith/base/clock.h"
#include "megalith/base/str.h"

namespace megalith::comm {
namespace {

constexpr std::size_t kHeadBytes = 9 * alignof(PositionSlot);

std::uint64_t own_process_space() {
  struct stat space {};
  return ::stat("/proc/self/ns/pid", &space) == 0 ? static_cast<std::uint64_t>(space.st_ino) : 0;
}

/// What /proc shows of a thread of this host.
std::string process_text(int process, int thread) {
  std::ifstream file(str("/proc/", process, "/task/", thread, "/stat"));
  std::string stat;
  std::getline(file, stat);
  const std::size_t name_end = stat.rfind(')');  // the name may hold anything
  const char state = name_end == std::string::npos || name_end + 2 >= stat.size() ? 'X' : stat[name_end + 2];
  const auto is = [&] {
    switch (state) {
      case 'R':
        return "computes";
      case 'S':
        return "sleeps in a system call";
      case 'D':
        return "is in a system call that cannot be interrupted";
      case 'T':
      case 't':
        return "is stopped";
      default:
        return "has ended";
    }
  };
  return thread == process ? str("process ", process, ' ', is())
                           : str("thread ", thread, " of process ", process, ' ', is());
}

/// Every word is stored with release, so that whoever reads a new one finds `version` changed.
void write_words(PositionSlot& slot, const Position& position) {
  const auto words = std::bit_cast<std::array<std::uint64_t, PositionSlot::kWords>>(position);
  const std::uint64_t next = slot.version.load(std::memory_order_relaxed) + 1;
  auto& copy = slot.copies[next % 2];
  for (std::size_t i = 0; i < words.size(); ++i) copy[i].store(words[i], std::memory_order_release);
  slot.version.store(next, std::memory_order_release);
}

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{alignof(PositionSlot)}); }
};

}  // namespace

std::string call_text(const Position& position) {
  Call call;
  call.op = position.op;
  call.dtype = position.dtype;
  call.reduce = position.reduce;
  call.priority = position.priority;
  call.root = position.root;
  call.lane = position.lane;
  call.count = position.count;
  call.sequence = position.sequence;
  const std::size_t length = ::strnlen(position.group.data(), position.group.size());
  return str(describe_there(call), " of group ", std::string_view(position.group.data(), length));
}

void PositionWriter::move_to(PositionSlot& slot) {
  const PositionSlot& old = *slot_;
  slot.process = old.process.load();
  slot.thread = old.thread.load();
  slot.process_space = old.process_space.load();
  slot_ = &slot;
  publish();
  alive(monotonic_s());
}

void PositionWriter::introduce() {
  slot_->process = ::getpid();
  slot_->thread = static_cast<std::int32_t>(::syscall(SYS_gettid));
  slot_->process_space = own_process_space();
  change(Position::State::computes, monotonic_s());
}

void PositionWriter::publish() { write_words(*slot_, position_); }

void PositionWriter::change(Position::State state, double now_s) {
  position_.state = state;
  position_.num_awaited = 0;
  publish();
  alive(now_s);
}

void PositionWriter::set_call(std::string_view group, const Call& call) {
  position_.group.fill('\0');
  std::copy_n(group.begin(), std::min(group.size(), position_.group.size()), position_.group.begin());
  position_.op = call.op;
  position_.dtype = call.dtype;
  position_.reduce = call.reduce;
  position_.priority = call.priority;
  position_.any_call = 1;
  position_.root = call.root;
  position_.lane = call.lane;
  position_.count = call.count;
  position_.sequence = call.sequence;
}

/// A message is posted, and its rank computes on.
void PositionWriter::enter(std::string_view group, const Call& call, double now_s) {
  set_call(group, call);
  change(is_message(call.op) ? Position::State::computes : Position::State::calls, now_s);
}

void PositionWriter::wait_in(std::string_view group, const Call& call, double now_s) {
  set_call(group, call);
  change(Position::State::waits, now_s);
}

void PositionWriter::await(std::span<const int> ranks, int count) {
  position_.num_awaited = count;
  std::copy_n(ranks.begin(), std::min(ranks.size(), position_.awaited.size()), position_.awaited.begin());
  publish();
}

std::size_t Positions::shared_bytes(int size) {
  return kHeadBytes + static_cast<std::size_t>(size) * sizeof(PositionSlot);
}

Positions::Positions(int size)
    : memory_(static_cast<std::byte*>(::operator new (shared_bytes(size), std::align_val_t{alignof(PositionSlot)})),
              FreeAligned()),
      homes_(static_cast<std::size_t>(size), 0) {
  static_assert(sizeof(Head) <= kHeadBytes);
  new (memory_.get()) Head();
  for (int rank = 0; rank < size; ++rank) {
    new (memory_.get() + kHeadBytes + static_cast<std::size_t>(rank) * sizeof(PositionSlot)) PositionSlot();
    writers_.emplace_back(slot(rank));
  }
}

PositionSlot& Positions::slot(int rank) const {
  std::byte* const at = memory_.get() + kHeadBytes + static_cast<std::size_t>(rank) * sizeof(PositionSlot);
  return *std::launder(reinterpret_cast<PositionSlot*>(at));
}

Positions::Head& Positions::head() const { return *std::launder(reinterpret_cast<Head*>(memory_.get())); }

std::optional<RankPosition> Positions::read(int rank) const {
  const PositionSlot& from = slot(rank);
  RankPosition result;
  result.alive_s = from.alive_s.load(std::memory_order_relaxed);
  if (result.alive_s == 0) return std::nullopt;
  result.late_s = from.late_s.load(std::memory_order_relaxed);
  if (home(rank) == home(own_) && from.process_space.load(std::memory_order_relaxed) == own_process_space()) {
    result.process =
        process_text(from.process.load(std::memory_order_relaxed), from.thread.load(std::memory_order_relaxed));
  }
  std::array<std::uint64_t, PositionSlot::kWords> words{};
  for (std::uint64_t before = ~std::uint64_t{0}; from.version.load(std::memory_order_relaxed) != before;) {
    before = from.version.load(std::memory_order_acquire);
    const auto& copy = from.copies[before % 2];
    for (std::size_t word = 0; word < words.size(); ++word) words[word] = copy[word].load(std::memory_order_acquire);
  }
  result.position = std::bit_cast<Position>(words);
  return result;
}

std::vector<std::optional<RankPosition>> Positions::read_all() const {
  std::vector<std::optional<RankPosition>> all;
  for (int rank = 0; rank < size(); ++rank) all.push_back(read(rank));
  return all;
}

std::string failure_text(const RankFailure& failure) {
  return str("rank ", failure.rank, " failed first: ", failure.reason);
}

bool Positions::claim_report() { return head().reports.fetch_add(1) == 0; }

bool Positions::is_failure_reported() const { return head().reports.load() > 0; }

void Positions::write_failure(int rank, std::string_view reason) {
  Head& to = head();
  auto none = Note::none;
  if (!to.failure.compare_exchange_strong(none, Note::in_writing)) return;
  to.failed_rank = rank;
  to.failure_bytes = static_cast<std::int32_t>(reason.copy(to.failure_text.data(), to.failure_text.size()));
  to.failure.store(Note::written, std::memory_order_release);
}

std::optional<RankFailure> Positions::failure() const {
  const Head& from = head();
  if (from.failure.load(std::memory_order_acquire) != Note::written) return std::nullopt;
  const std::string_view text(from.failure_text.data(), static_cast<std::size_t>(from.failure_bytes));
  return RankFailure{from.failed_rank, std::string(text)};
}

void Positions::share(std::shared_ptr<std::byte> memory, std::vector<int> homes, int own) {
  homes_ = std::move(homes);
  own_ = own;
  if (memory == nullptr) return;
  const std::shared_ptr<std::byte> old = std::exchange(memory_, std::move(memory));
  writer(own).move_to(slot(own));
}

void Positions::write_remote(int rank, std::uint64_t report, const RankPosition& heard) {
  PositionSlot& to = slot(rank);
  if (report <= to.report.load()) return;
  to.report.store(report);
  write_words(to, heard.position);
  to.late_s.store(heard.late_s, std::memory_order_relaxed);
  to.alive_s.store(heard.alive_s, std::memory_order_relaxed);
}

bool Positions::claim_turn(double now_s, double period_s) {
  double last = head().last_turn_s.load();
  return now_s - last >= period_s && head().last_turn_s.compare_exchange_strong(last, now_s);
}

}  // namespace megalith::comm
