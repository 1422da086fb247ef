#pragma once
#include <map>
#include <string>
#include <vector>

#include "megalith/report/trace_reader.h"

namespace megalith::apps {

/// How a rank spent the time of a trace.
struct RankWaits {
  int rank = 0;
  std::string position = {};                    ///< "tp 1, pp 0": in each group of several ranks
  double computing_us = 0;                      ///< in ops, and in starting calls
  double waiting_us = 0;                        ///< in calls that hold the next op up
  double transfer_us = 0;                       ///< the part of it in which all ranks had brought their data
  std::map<std::string, double> calls_us = {};  ///< waiting by call: "all_reduce over tp"
  std::map<int, double> ranks_us = {};          ///< waiting by the rank that was late, directly
  double blamed_us = 0;  ///< time in which other ranks waited, directly or through others, while this one did not wait
};

struct TraceWaits {
  double length_us = 0;  ///< from the first op of any rank to the last one's end
  std::vector<RankWaits> ranks;
  std::string verdict;
};

/// What each rank waited for. A collective ends for all when the last rank has brought its data: until then a rank
/// waits for that one. A message is waited for from the stage that sends it. If the awaited rank waits itself at that
/// time, the one that it waits for is blamed. The verdict names the rank, the stage or the call that holds the step up.
TraceWaits trace_waits(const std::vector<TracedRank>& ranks);

/// As a table for people, then the verdict.
std::string waits_text(const TraceWaits& waits, const std::string& source);
std::string waits_json(const TraceWaits& waits, const std::string& source);

}  // namespace megalith::apps
