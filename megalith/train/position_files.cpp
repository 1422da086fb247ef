#include "megalith/train/position_files.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "megalith/base/clock.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/comm/positions.h"

namespace megalith::train {
namespace {

struct Record {
  std::int64_t rank = 0;
  double silent_s = 0;  ///< when the file was written
  comm::Position position;
};

struct FileHead {
  std::uint64_t checksum = 0;  ///< of all that follows: a reader may meet a write
  std::uint64_t number = 0;    ///< of the write
  std::uint64_t records = 0;
};

constexpr std::string_view kPrefix = "positions.host_of_rank_";

io::Path file_of(const io::Path& folder, int home) { return folder / str(kPrefix, home); }

std::uint64_t checksum_of(const std::vector<char>& bytes) {
  constexpr std::size_t kStart = sizeof(FileHead::checksum);
  return fnv1a({bytes.data() + kStart, bytes.size() - kStart});
}

/// What a file holds; empty where it cannot be read or is of no use.
std::vector<char> read_file(const io::Path& file, std::size_t max_bytes) {
  std::vector<char> bytes(max_bytes + 1);
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return {};
  const ::ssize_t count = ::read(fd, bytes.data(), bytes.size());
  ::close(fd);
  if (count < static_cast<::ssize_t>(sizeof(FileHead)) || count > static_cast<::ssize_t>(max_bytes)) return {};
  bytes.resize(static_cast<std::size_t>(count));
  return bytes;
}

}  // namespace

class PositionFiles::Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<comm::Positions> positions, io::Path folder, int rank, double timeout_s)
      : positions_(std::move(positions)),
        folder_(std::move(folder)),
        home_(positions_->home(rank)),
        period_s_(std::clamp(timeout_s / kPerTimeout, kMinPeriod_s, kMaxPeriod_s)) {
    for (int other = 0; other < positions_->size(); ++other) {
      if (positions_->home(other) != home_) other_homes_.insert(positions_->home(other));
    }
  }

  bool is_needed() const { return !other_homes_.empty(); }

  /// Makes the file of this host, which later writes do not: so it stays removed.
  void create_file() const {
    const int fd = ::open(file_of(folder_, home_).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd >= 0) ::close(fd);
  }
  void remove_file() const noexcept { ::unlink(file_of(folder_, home_).c_str()); }

  void start() {
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  /// Waits for the thread, but not for a file system that does not answer.
  void stop() {
    constexpr auto kWrites = std::chrono::seconds(2);
    std::unique_lock lock(mutex_);
    stops_ = true;
    wake_.notify_all();
    wake_.wait_for(lock, kWrites, [&] { return has_ended_; });
  }

 private:
  static constexpr double kPerTimeout = 20, kMinPeriod_s = 0.1, kMaxPeriod_s = 30;

  void run() {
    const auto look_every = std::chrono::duration<double>(period_s_ / 4);
    for (std::unique_lock lock(mutex_); !stops_; wake_.wait_for(lock, look_every, [&] { return stops_; })) {
      if (!positions_->claim_turn(monotonic_s(), period_s_)) continue;
      lock.unlock();
      write();
      for (const int home : other_homes_) read(home);
      lock.lock();
    }
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    wake_.notify_all();
  }

  void write() {
    std::vector<Record> records;
    const double now = monotonic_s();
    for (int rank = 0; rank < positions_->size(); ++rank) {
      if (positions_->home(rank) != home_) continue;
      if (const auto at = positions_->read(rank)) records.push_back({rank, now - at->alive_s, at->position});
    }
    // Another process of this host may have had the turn before: numbers of several must not meet.
    FileHead head{.number = static_cast<std::uint64_t>(now * 1e6), .records = records.size()};
    std::vector<char> bytes(sizeof(head) + records.size() * sizeof(Record));
    std::memcpy(bytes.data(), &head, sizeof(head));
    if (!records.empty()) std::memcpy(bytes.data() + sizeof(head), records.data(), records.size() * sizeof(Record));
    head.checksum = checksum_of(bytes);
    std::memcpy(bytes.data(), &head.checksum, sizeof(head.checksum));
    const int fd = ::open(file_of(folder_, home_).c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    // What cannot be written makes this host look silent; the rank's own writes report the disk.
    [[maybe_unused]] const ::ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), 0);
    ::close(fd);
  }

  void read(int home) {
    const std::size_t max_bytes = sizeof(FileHead) + static_cast<std::size_t>(positions_->size()) * sizeof(Record);
    const std::vector<char> bytes = read_file(file_of(folder_, home), max_bytes);
    if (bytes.empty()) return;
    FileHead head;
    std::memcpy(&head, bytes.data(), sizeof(head));
    const bool is_whole = head.records <= static_cast<std::uint64_t>(positions_->size()) &&
                          bytes.size() == sizeof(head) + head.records * sizeof(Record) &&
                          head.checksum == checksum_of(bytes);
    if (!is_whole) return;
    const double now = monotonic_s();
    for (std::size_t i = 0; i < head.records; ++i) {
      Record record;
      std::memcpy(static_cast<void*>(&record), bytes.data() + sizeof(head) + i * sizeof(Record), sizeof(Record));
      if (record.rank < 0 || record.rank >= positions_->size()) continue;
      const int rank = static_cast<int>(record.rank);
      if (positions_->home(rank) == home)
        positions_->write_remote(
            rank, head.number,
            {.position = record.position, .alive_s = now - record.silent_s, .late_s = 2 * period_s_, .process = {}});
    }
  }

  std::shared_ptr<comm::Positions> positions_;
  io::Path folder_;
  int home_;
  double period_s_;
  std::set<int> other_homes_;
  std::mutex mutex_;  ///< of what follows
  std::condition_variable wake_;
  bool stops_ = false, has_ended_ = false;
};

PositionFiles::PositionFiles(comm::World& world, const io::Path& folder, double timeout_s) {
  if (world.positions() == nullptr) return;
  const auto exchange = std::make_shared<Exchange>(world.positions(), folder, world.rank(), timeout_s);
  if (!exchange->is_needed()) return;
  if (world.rank() == 0) {  // what a killed job of other hosts left
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().filename().string().starts_with(kPrefix)) ::unlink(entry->path().c_str());
    }
  }
  Exec host;
  comm::barrier(host, world.all());
  if (world.positions()->home(world.rank()) == world.rank()) exchange->create_file();
  exchange->start();
  exchange_ = exchange;
}

PositionFiles::~PositionFiles() {
  if (exchange_ == nullptr) return;
  exchange_->stop();
  exchange_->remove_file();
}

}  // namespace megalith::train
