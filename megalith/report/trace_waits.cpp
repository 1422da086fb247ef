#include "megalith/report/trace_waits.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <tuple>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"

namespace megalith::apps {
namespace {

constexpr double kSlack_us = 1;  // times of events on GPUs are exact to half of it

bool is_message(const TracedCall& call) { return call.name == "send" || call.name == "recv"; }

/// An op in which a rank waits, from the time when it had brought its own data.
struct Blocked {
  double begin_us = 0, end_us = 0;
  const TracedCall* call = nullptr;  ///< that ended it
  bool is_matched = false;           ///< the calls of all its ranks are known
  int awaited = -1;                  ///< the rank that was late; -1: none
  double ready_us = 0;               ///< until when it was
};

/// The calls of all ranks that belong together, and the waits that follow.
class WaitFinder {
 public:
  explicit WaitFinder(const std::vector<TracedRank>& ranks) : ranks_(ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) index_[ranks[i].rank] = i;
    match_collectives();
    blocked_.resize(ranks.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) find_blocked(i);
  }

  const std::vector<Blocked>& blocked(std::size_t rank) const { return blocked_[rank]; }

  /// Adds the time from `begin` to `end`, in which somebody waited for `rank`, to those that did not wait then.
  void blame(std::size_t rank, double begin, double end, std::vector<double>& blamed_us, int depth = 0) const {
    constexpr int kMaxDepth = 16;
    const std::vector<Blocked>& waits = blocked_[rank];
    auto wait = std::ranges::lower_bound(waits, begin, {}, &Blocked::end_us);
    for (; begin < end && wait != waits.end() && wait->begin_us < end; ++wait) {
      blamed_us[rank] += std::max(0.0, wait->begin_us - begin);
      begin = std::max(begin, wait->begin_us);
      const double until = std::min(end, wait->ready_us);
      const auto awaited = index_.find(wait->awaited);
      if (until > begin && awaited != index_.end() && depth < kMaxDepth) {
        blame(awaited->second, begin, until, blamed_us, depth + 1);
        begin = until;
      }
      begin = std::max(begin, std::min(end, wait->end_us));  // data that is on its way: nobody's
    }
    blamed_us[rank] += std::max(0.0, end - begin);
  }

 private:
  const std::vector<int>* members(std::size_t rank, const std::string& group) const {
    const auto found = ranks_[rank].groups.find(group);
    return found == ranks_[rank].groups.end() ? nullptr : &found->second;
  }

  /// The k-th call of a name in a group is one collective on all its ranks.
  void match_collectives() {
    using Key = std::tuple<std::string, std::string, std::vector<int>>;
    std::map<Key, std::map<std::size_t, std::vector<const TracedCall*>>> calls;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const TracedCall& call : ranks_[rank].calls) {
        const std::vector<int>* const group = members(rank, call.group);
        if (!is_message(call) && group != nullptr) calls[{call.name, call.group, *group}][rank].push_back(&call);
      }
    }
    for (const auto& [key, of_ranks] : calls) match(of_ranks, std::get<2>(key).size());
  }

  void match(const std::map<std::size_t, std::vector<const TracedCall*>>& of_ranks, std::size_t members) {
    const std::size_t count = of_ranks.begin()->second.size();
    const auto has_all = [&](const auto& of_rank) { return of_rank.second.size() == count; };
    if (of_ranks.size() != members || !std::ranges::all_of(of_ranks, has_all)) return;  // the trace begins within one
    for (std::size_t k = 0; k < count; ++k) {
      const auto last =
          std::ranges::max_element(of_ranks, {}, [&](const auto& of_rank) { return of_rank.second[k]->begin_us; });
      for (const auto& [rank, mine] : of_ranks)
        late_[mine[k]] = {rank == last->first ? -1 : ranks_[last->first].rank, last->second[k]->begin_us};
    }
  }

  /// The neighbour in the pipeline whose message the op after `at` needs.
  int sender(std::size_t rank, const TracedCall& call, std::size_t at) const {
    const std::vector<int>* const stages = members(rank, call.group);
    if (stages == nullptr) return -1;
    const auto self = std::ranges::find(*stages, ranks_[rank].rank);
    if (self == stages->end()) return -1;
    const std::vector<TracedOp>& ops = ranks_[rank].ops;
    const auto next = std::find_if(ops.begin() + static_cast<std::ptrdiff_t>(at), ops.end(),
                                   [](const TracedOp& op) { return !op.communicates; });
    const auto size = static_cast<std::ptrdiff_t>(stages->size());
    const std::ptrdiff_t step = next != ops.end() && next->is_backward ? 1 : size - 1;
    return (*stages)[static_cast<std::size_t>((self - stages->begin() + step) % size)];
  }

  void find_blocked(std::size_t rank) {
    // By the time of their ends: the call that ends within an op, or the last one to do so, is what it waited for.
    std::vector<const TracedCall*> calls;
    for (const TracedCall& call : ranks_[rank].calls) calls.push_back(&call);
    std::ranges::stable_sort(calls, {}, &TracedCall::end_us);
    const std::vector<TracedOp>& ops = ranks_[rank].ops;
    for (std::size_t at = 0; at < ops.size(); ++at) {
      const TracedOp& op = ops[at];
      if (!op.communicates) continue;
      Blocked wait{.begin_us = op.begin_us, .end_us = op.end_us, .ready_us = op.begin_us};
      auto last = std::ranges::upper_bound(calls, op.end_us + kSlack_us, {}, &TracedCall::end_us);
      while (last != calls.begin() && wait.call == nullptr) {
        const TracedCall& call = **--last;
        if (call.end_us < op.begin_us - kSlack_us) break;
        if (call.name != "send") wait.call = &call;
      }
      if (wait.call == nullptr) continue;  // it only starts a call
      wait.begin_us = std::clamp(wait.call->begin_us, op.begin_us, op.end_us);
      if (is_message(*wait.call)) {
        wait.awaited = sender(rank, *wait.call, at);
        wait.ready_us = wait.end_us;
      } else if (const auto late = late_.find(wait.call); late != late_.end()) {
        wait.is_matched = true;
        wait.awaited = late->second.first;
        wait.ready_us = std::clamp(late->second.second, wait.begin_us, wait.end_us);
      }
      blocked_[rank].push_back(wait);
    }
  }

  const std::vector<TracedRank>& ranks_;
  std::map<int, std::size_t> index_;
  std::map<const TracedCall*, std::pair<int, double>> late_;  ///< of a collective: who came last, and when
  std::vector<std::vector<Blocked>> blocked_;
};

std::string position_of(const TracedRank& rank) {
  std::string text;
  for (const char* const axis : {"tp", "cp", "pp", "dp", "dp-cp", "ep", "etp", "edp"}) {
    const auto group = rank.groups.find(axis);
    if (group == rank.groups.end()) continue;
    const auto self = std::ranges::find(group->second, rank.rank) - group->second.begin();
    text += str(text.empty() ? "" : ", ", axis, ' ', self);
  }
  return text;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }
std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}
std::string percent(double part) { return fixed(100 * part, 0) + " %"; }
std::string milliseconds(double us) { return fixed(us * 1e-3, 2) + " ms"; }

std::string name_of_rank(const RankWaits& rank) {
  return str("rank ", rank.rank, rank.position.empty() ? "" : str(" (", rank.position, ')'));
}

/// The stage of a rank; nothing without a pipeline.
std::optional<std::ptrdiff_t> stage_of(const TracedRank& rank) {
  const auto group = rank.groups.find("pp");
  if (group == rank.groups.end()) return std::nullopt;
  return std::ranges::find(group->second, rank.rank) - group->second.begin();
}

constexpr double kMuch = 1.25;  // how much more than the mean of the others is a cause

/// Who is blamed for much more than the others are, and computes for longer.
std::string verdict_of_rank(const TraceWaits& waits) {
  const auto worst = std::ranges::max_element(waits.ranks, {}, &RankWaits::blamed_us);
  double blamed = 0, computing = 0;
  for (const RankWaits& rank : waits.ranks) {
    if (&rank == &*worst) continue;
    blamed += rank.blamed_us;
    computing += rank.computing_us;
  }
  const auto others = static_cast<double>(waits.ranks.size() - 1);
  if (worst->blamed_us < 0.1 * waits.length_us || worst->blamed_us < 2 * kMuch * blamed / others) return "";
  return str(name_of_rank(*worst), " holds the step up: the others wait ", milliseconds(worst->blamed_us / others),
             " for it on average; it computes ", milliseconds(worst->computing_us), ", they ",
             milliseconds(computing / others));
}

/// The same for the stages of a pipeline: means over their ranks.
std::string verdict_of_stage(const std::vector<TracedRank>& ranks, const TraceWaits& waits) {
  std::map<std::ptrdiff_t, std::pair<double, double>> stages;  // ranks, computing
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::optional<std::ptrdiff_t> stage = stage_of(ranks[i]);
    if (!stage) return "";
    stages[*stage].first += 1;
    stages[*stage].second += waits.ranks[i].computing_us;
  }
  const auto mean = [](const auto& stage) { return stage.second.second / stage.second.first; };
  const auto longest = std::ranges::max_element(stages, {}, mean);
  double others = 0;
  for (const auto& stage : stages) others += &stage == &*longest ? 0 : mean(stage);
  if (stages.size() < 2) return "";
  others /= static_cast<double>(stages.size() - 1);
  if (mean(*longest) < kMuch * others) return "";
  return str("stage ", longest->first, " of the pipeline holds the step up: its ranks compute ",
             milliseconds(mean(*longest)), ", those of other stages ", milliseconds(others));
}

std::string verdict_of(const std::vector<TracedRank>& ranks, const TraceWaits& waits) {
  constexpr double kFew = 0.05;
  double waiting = 0, transfer = 0;
  std::map<std::string, double> calls;
  for (const RankWaits& rank : waits.ranks) {
    waiting += rank.waiting_us;
    transfer += rank.transfer_us;
    for (const auto& [call, us] : rank.calls_us) calls[call] += us;
  }
  const double all = waits.length_us * static_cast<double>(waits.ranks.size());
  const std::string waits_text = str("ranks wait ", percent(share(waiting, all)), " of the time");
  if (waiting < kFew * all) return str("no rank holds the step up: ", waits_text);
  const auto call = std::ranges::max_element(calls, {}, [](const auto& entry) { return entry.second; });
  const std::string most = str(waits_text, ", most in ", call->first, " (", percent(share(call->second, all)), ')');
  if (transfer > waiting / 2)
    return str("communication holds the step up: ", most, "; all ranks had brought their data in ",
               percent(share(transfer, waiting)), " of it");
  if (std::string rank = verdict_of_rank(waits); !rank.empty()) return str(rank, "; ", most);
  if (std::string stage = verdict_of_stage(ranks, waits); !stage.empty()) return str(stage, "; ", most);
  const bool of_messages = call->first.starts_with("recv");
  return str("no single rank holds the step up: ", most,
             of_messages ? "; stages compute alike, so it is the fill and drain of the pipeline: more microbatches per "
                           "step make it shorter"
                         : "");
}

}  // namespace

TraceWaits trace_waits(const std::vector<TracedRank>& ranks) {
  TraceWaits waits;
  const WaitFinder finder(ranks);
  double begin_us = ranks.front().ops.front().begin_us, end_us = begin_us;
  std::vector<double> blamed_us(ranks.size());
  std::map<int, std::size_t> index;
  for (std::size_t i = 0; i < ranks.size(); ++i) index[ranks[i].rank] = i;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    RankWaits mine{.rank = ranks[i].rank, .position = position_of(ranks[i])};
    for (const TracedOp& op : ranks[i].ops) {
      begin_us = std::min(begin_us, op.begin_us);
      end_us = std::max(end_us, op.end_us);
      mine.computing_us += op.end_us - op.begin_us;
    }
    for (const Blocked& wait : finder.blocked(i)) {
      const double us = wait.end_us - wait.begin_us;
      mine.waiting_us += us;
      mine.computing_us -= us;
      mine.calls_us[str(wait.call->name, " over ", wait.call->group)] += us;
      const double late_us = wait.awaited < 0 ? 0 : wait.ready_us - wait.begin_us;
      if (wait.is_matched) mine.transfer_us += us - late_us;
      if (late_us <= 0) continue;
      mine.ranks_us[wait.awaited] += late_us;
      if (const auto awaited = index.find(wait.awaited); awaited != index.end())
        finder.blame(awaited->second, wait.begin_us, wait.ready_us, blamed_us);
    }
    waits.ranks.push_back(std::move(mine));
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) waits.ranks[i].blamed_us = blamed_us[i];
  waits.length_us = end_us - begin_us;
  waits.verdict = verdict_of(ranks, waits);
  return waits;
}

namespace {

/// The largest of them, largest first: "all_reduce over tp 3.10 ms, ...".
template <class Key, class Name>
std::string largest_of(const std::map<Key, double>& times, const Name& name) {
  constexpr std::size_t kShown = 3;
  std::vector<std::pair<double, Key>> sorted;
  for (const auto& [key, us] : times) sorted.emplace_back(us, key);
  std::ranges::sort(sorted, std::greater<>{});
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, sorted.size()); ++i)
    text += str(i == 0 ? "" : ", ", name(sorted[i].second), ' ', milliseconds(sorted[i].first));
  return text;
}

}  // namespace

std::string waits_text(const TraceWaits& waits, const std::string& source) {
  std::string text = str(source, ": ", waits.ranks.size(), waits.ranks.size() == 1 ? " rank, " : " ranks, ",
                         milliseconds(waits.length_us), "\n");
  for (const RankWaits& rank : waits.ranks) {
    const auto line = [&](const char* what, double us) {
      return str(what, ' ', milliseconds(us), " (", percent(share(us, waits.length_us)), ')');
    };
    text += str(name_of_rank(rank), ": ", line("computes", rank.computing_us), ", ", line("waits", rank.waiting_us),
                ", ", line("idle", std::max(0.0, waits.length_us - rank.computing_us - rank.waiting_us)), "\n");
    const std::string calls = largest_of(rank.calls_us, [](const std::string& call) { return call; });
    const std::string late = largest_of(rank.ranks_us, [](int other) { return str("rank ", other); });
    if (!calls.empty()) text += str("    in ", calls, "\n");
    if (!late.empty()) text += str("    for ", late, "\n");
  }
  return str(text, "verdict: ", waits.verdict, "\n");
}

std::string waits_json(const TraceWaits& waits, const std::string& source) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankWaits& rank : waits.ranks) {
    nlohmann::ordered_json late = nlohmann::ordered_json::object();
    for (const auto& [other, us] : rank.ranks_us) late[str(other)] = us;
    ranks.push_back({{"rank", rank.rank},
                     {"position", rank.position},
                     {"computing_us", rank.computing_us},
                     {"waiting_us", rank.waiting_us},
                     {"transfer_us", rank.transfer_us},
                     {"calls_us", rank.calls_us},
                     {"ranks_us", late},
                     {"blamed_us", rank.blamed_us}});
  }
  const nlohmann::ordered_json report{
      {"trace", source}, {"length_us", waits.length_us}, {"ranks", ranks}, {"verdict", waits.verdict}};
  return report.dump(2) + "\n";
}

}  // namespace megalith::apps
