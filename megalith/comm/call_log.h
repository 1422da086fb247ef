#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megalith/comm/channel.h"

namespace megalith::comm {

class Positions;
class PositionWriter;

/// The last kLength communication calls of one rank, which explain a hang or a disagreement. It costs about 50 ns per
/// call, and allocates only when it is made. Only the rank's own thread uses it.
class CallLog {
 public:
  static constexpr std::size_t kLength = 4096;

  CallLog() : entries_(kLength) {}
  /// From here on every call is the position of this rank, too (positions.h).
  void set_positions(std::shared_ptr<Positions> positions, int rank);
  Positions* positions() const { return positions_.get(); }
  /// Notes the start of a call; returns its number. `channel` must outlive the log's last reading.
  std::uint64_t begin(const Channel& channel, const Call& call);
  void done(std::uint64_t number);
  /// One line per call, the latest last: number, start in seconds before now, duration or "NOT DONE", group, call.
  std::string text() const;

 private:
  struct Entry {
    double start_s = 0, end_s = 0;  ///< end 0: not done
    const Channel* channel = nullptr;
    Call call;
  };
  Entry& at(std::uint64_t number) { return entries_[number % kLength]; }

  std::shared_ptr<Positions> positions_;
  PositionWriter* writer_ = nullptr;
  std::vector<Entry> entries_;
  std::uint64_t count_ = 0;
};

}  // namespace megalith::comm
