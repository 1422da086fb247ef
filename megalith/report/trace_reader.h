#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::apps {

/// An op of a rank.
struct TracedOp {
  std::string name;
  bool communicates = false;  ///< the rank makes a call, or waits for one
  bool is_backward = false;
  double begin_us = 0, end_us = 0;
};

/// A communication call of a rank, from the time when its data was ready until it was done.
struct TracedCall {
  std::string name, group;
  double begin_us = 0, end_us = 0;
};

/// What a trace has of a rank, in the order of time.
struct TracedRank {
  int rank = 0;
  std::map<std::string, std::vector<int>> groups;  ///< the ranks of each group, in its order
  std::vector<TracedOp> ops;
  std::vector<TracedCall> calls;
};

/// Reads what `train --trace` and `bench step --trace` write (train/trace_file.h), line by line. Ranks ascend. Throws
/// InputError that names `source`, the line and the rule.
std::vector<TracedRank> read_trace(std::string_view text, const std::string& source);

/// Whether a file begins as those do.
bool is_trace(std::string_view text);

}  // namespace megalith::apps
