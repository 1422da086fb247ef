#include "megalith/comm/call_log.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "megalith/base/clock.h"

namespace megalith::comm {

std::uint64_t CallLog::begin(const Channel& channel, const Call& call) {
  at(count_) = {monotonic_s(), 0, &channel, call};
  return count_++;
}

void CallLog::done(std::uint64_t number) {
  if (number + kLength >= count_) at(number).end_s = monotonic_s();
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
