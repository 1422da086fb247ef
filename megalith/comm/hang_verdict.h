#pragma once
#include <optional>
#include <span>
#include <string>

#include "megalith/base/error.h"
#include "megalith/comm/positions.h"

namespace megalith::comm {

/// A wait that has passed its timeout, and which rank of the job is the reason, as far as the positions of all ranks
/// show it.
class HangVerdict : public HangError {
 public:
  HangVerdict(const std::string& text, std::string verdict) : HangError(text), verdict_(std::move(verdict)) {}
  /// "rank 3 stands still since 3.1 s (...)", or what else can be stated.
  const std::string& verdict() const { return verdict_; }

 private:
  std::string verdict_;
};

/// A rank that waits shows a sign of life 4 times a second and more. So one that has shown none for `silent_s`
/// computes, is in a system call, or does not run. The reason is the one of these that
/// has been silent for longest among those that a rank waits for, directly or through others, beginning with
/// `reporter`. If none of them is awaited, it is the one that has been silent for longest of all.
std::string verdict_of(std::span<const std::optional<RankPosition>> ranks, int reporter, double now_s, double silent_s);

/// The same with the positions of now, for a wait of `waited_s`.
std::string verdict_of(const Positions& positions, int reporter, double waited_s);

}  // namespace megalith::comm
