#include "megalith/comm/step_pattern.h"

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"

namespace megalith::comm {
namespace {

std::uint64_t digest(const Channel& channel, const Call& call, std::uint64_t op) {
  const std::uint64_t kind = static_cast<std::uint64_t>(call.op) | static_cast<std::uint64_t>(call.dtype) << 8 |
                             static_cast<std::uint64_t>(call.reduce) << 16 |
                             static_cast<std::uint64_t>(call.root) << 32;
  const std::uint64_t site = call.site | static_cast<std::uint64_t>(call.lane) << 32;
  std::uint64_t hash = hash_combine(hash_combine(channel.key(), kind), static_cast<std::uint64_t>(call.count));
  hash = hash_combine(hash, site);
  hash = hash_combine(hash, op);
  return hash_combine(hash, reinterpret_cast<std::uintptr_t>(call.memory));
}

constexpr const char* kRule = ": a step must make the same calls every time";

/// Describes everything that is compared: two calls may differ in nothing but the buffer, or in when they are made.
std::string describe_fully(const Call& call, std::uint64_t op) {
  return str(describe(call), " (op ", op, " of the step, memory ", call.memory, ")");
}

}  // namespace

void StepPattern::begin(std::uint64_t ops_run) {
  ops_run_ = ops_run;
  next_ = 0;
  if (!known_) first_.clear();
}

void StepPattern::check(const Channel& channel, const Call& call) {
  const std::uint64_t found = digest(channel, call, call.ops_run - ops_run_);
  if (!known_) {
    first_.push_back({found, &channel, call, call.ops_run - ops_run_});
    return;
  }
  const std::size_t number = next_++;
  if (number >= first_.size()) {
    throw CollectiveError(str(channel.where(call.op), "call ", number + 1, " of this step, ", describe(call),
                              ": the steps before made ", first_.size(), kRule));
  }
  const Entry& entry = first_[number];
  if (entry.digest == found) return;
  throw CollectiveError(str(channel.where(call.op), "call ", number + 1, " of this step is ",
                            describe_fully(call, call.ops_run - ops_run_), ", in the steps before it was ",
                            describe_fully(entry.call, entry.op), " of group ", entry.channel->name(), kRule));
}

void StepPattern::end() {
  if (known_ && next_ < first_.size()) {
    const Entry& missing = first_[next_];
    throw CollectiveError(str("[step] call ", next_ + 1, " is missing: in the steps before it was ",
                              describe(missing.call), " of group ", missing.channel->name(), kRule));
  }
  known_ = true;
}

}  // namespace megalith::comm
