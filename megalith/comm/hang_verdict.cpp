#include "megalith/comm/hang_verdict.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "megalith/base/clock.h"
#include "megalith/base/str.h"

namespace megalith::comm {
namespace {

using RankPositions = std::span<const std::optional<RankPosition>>;
using State = Position::State;

/// The ranks that `rank` waits for.
std::span<const std::int32_t> awaited_by(RankPositions ranks, int rank) {
  const auto& at = ranks[static_cast<std::size_t>(rank)];
  if (!at || at->position.state != State::waits) return {};
  const auto count = static_cast<std::size_t>(std::clamp(at->position.num_awaited, 0, Position::kMaxAwaited));
  return std::span(at->position.awaited).first(count);
}

/// All that `from` waits for, directly or through others, nearest first; without `from`.
std::vector<int> awaited_through(RankPositions ranks, int from) {
  std::vector<bool> seen(ranks.size());
  std::vector<int> found;
  std::deque<int> next = {from};
  seen[static_cast<std::size_t>(from)] = true;
  while (!next.empty()) {
    const int rank = next.front();
    next.pop_front();
    for (const int other : awaited_by(ranks, rank)) {
      if (other < 0 || static_cast<std::size_t>(other) >= ranks.size() || seen[static_cast<std::size_t>(other)])
        continue;
      seen[static_cast<std::size_t>(other)] = true;
      found.push_back(other);
      next.push_back(other);
    }
  }
  return found;
}

std::string position_text(const Position& position) {
  const std::string step = position.step < 0 ? "" : str("step ", position.step, ", ");
  if (position.any_call == 0) return step + "before its first call";
  return str(step, position.state == State::computes ? "after " : "in ", call_text(position));
}

/// Who waits for `rank`: "; rank 1 waits for it, through others rank 0, rank 2".
std::string waiters_text(RankPositions ranks, int rank) {
  RankList direct, through;
  for (int other = 0; static_cast<std::size_t>(other) < ranks.size(); ++other) {
    if (other == rank) continue;
    if (std::ranges::count(awaited_by(ranks, other), rank) > 0) {
      direct.add(other);
    } else if (std::ranges::count(awaited_through(ranks, other), rank) > 0) {
      through.add(other);
    }
  }
  if (direct.empty()) return "";
  return str("; awaited by ", direct.text(), through.empty() ? "" : str(", through others by ", through.text()));
}

/// All waits are alive: "rank 0 waits for rank 1 in all_reduce(...) #7 of group tp; rank 1 waits for ...".
std::string waits_text(RankPositions ranks, int reporter) {
  constexpr std::size_t kListed = 4;
  std::vector<int> chain = awaited_through(ranks, reporter);
  chain.insert(chain.begin(), reporter);
  if (chain.size() > kListed) chain.resize(kListed);
  std::string text;
  for (const int rank : chain) {
    RankList awaited;
    for (const int other : awaited_by(ranks, rank)) awaited.add(other);
    if (awaited.empty()) continue;
    text += str(text.empty() ? "" : "; ", "rank ", rank, " waits for ", awaited.text(), " in ",
                call_text(ranks[static_cast<std::size_t>(rank)]->position));
  }
  return text;
}

}  // namespace

std::string verdict_of(RankPositions ranks, int reporter, double now_s, double silent_s) {
  const auto silent_for = [&](int rank) {
    const auto& at = ranks[static_cast<std::size_t>(rank)];
    return at && at->position.state != State::ended ? now_s - at->alive_s - at->late_s : 0;
  };
  std::vector<int> all(ranks.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
  const std::vector<int> awaited = awaited_through(ranks, reporter);
  for (const std::vector<int>& candidates : {awaited, all}) {
    if (candidates.empty()) continue;
    const int silent = *std::ranges::max_element(candidates, {}, silent_for);
    if (silent_for(silent) < silent_s) continue;
    const RankPosition& at = *ranks[static_cast<std::size_t>(silent)];
    return str("rank ", silent, " stands still since ", waited_text(now_s - at.alive_s), " (",
               position_text(at.position), at.process.empty() ? "" : "; " + at.process, waiters_text(ranks, silent),
               ")");
  }
  for (const int rank : awaited) {
    const auto& at = ranks[static_cast<std::size_t>(rank)];
    if (!at) return str("rank ", rank, " is awaited, and its position cannot be read from here");
    if (at->position.state == State::ended) return str("rank ", rank, " has ended, and is awaited");
  }
  const std::string waits = waits_text(ranks, reporter);
  return str("no rank stands still", waits.empty() ? "" : ": " + waits);
}

std::string verdict_of(const Positions& positions, int reporter, double waited_s) {
  // A busy machine may keep a rank from its core for some tenths of a second.
  constexpr double kMinSilent_s = 0.1, kMaxSilent_s = 1;
  const std::vector<std::optional<RankPosition>> ranks = positions.read_all();
  return verdict_of(ranks, reporter, monotonic_s(), std::clamp(waited_s / 2, kMinSilent_s, kMaxSilent_s));
}

}  // namespace megalith::comm
