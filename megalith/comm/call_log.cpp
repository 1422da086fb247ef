#include "megalith/comm/call_log.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "megalith/base/clock.h"
#include "megalith/comm/positions.h"

namespace megalith::comm {

void CallLog::set_positions(std::shared_ptr<Positions> positions, int rank) {
  positions_ = std::move(positions);
  writer_ = &positions_->writer(rank);
}

std::uint64_t CallLog::begin(const Channel& channel, const Call& call) {
  const double now = monotonic_s();
  at(count_) = {now, 0, &channel, call};
  if (writer_ != nullptr) writer_->enter(channel.name(), call, now);
  return count_++;
}

void CallLog::done(std::uint64_t number) {
  const double now = monotonic_s();
  if (number + kLength >= count_) at(number).end_s = now;
  if (writer_ != nullptr) writer_->leave(now);
}

std::string CallLog::text() const {
  const double now = monotonic_s();
  const std::uint64_t listed = std::min<std::uint64_t>(count_, kLength);
  std::ostringstream out;
  out << "the last " << listed << " of " << count_ << " communication calls, the latest last\n"
      << "number, start (s before now), duration (us), group, call\n"
      << std::fixed;
  for (std::uint64_t number = count_ - listed; number < count_; ++number) {
    const Entry& entry = entries_[number % kLength];
    out << number << "  " << std::setprecision(6) << entry.start_s - now << "  ";
    if (entry.end_s == 0) {
      out << "NOT DONE";
    } else {
      out << std::setprecision(1) << (entry.end_s - entry.start_s) * 1e6;
    }
    out << "  " << entry.channel->name() << "  " << describe(entry.call) << '\n';
  }
  return out.str();
}

}  // namespace megalith::comm
