#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "megalith/report/echo_run.h"

namespace megalith::apps {

/// What --ep and --experts ask of a file. 0: anything.
struct EchoGrid {
  Index ranks = 0, experts = 0;
};

struct EchoFile {
  EchoCounts counts;
  /// Those of an entry of test vectors, with the vectors' values for what it leaves out. Nothing for plain arrays.
  std::optional<EchoSettings> settings;
};

/// Reads R arrays of E whole numbers, or an object whose `input` has them as `count`, with `ranks`, `experts`,
/// `slots_per_rank`, and perhaps `min_pairs` and `balance`. Throws InputError with line and column.
EchoFile read_echo_counts(std::string_view text, std::string_view file, const EchoGrid& grid);

/// Throws InputError "[FILE] line 1, column 2, ..." unless plan_echo() takes this many ranks and experts.
void require_echo_grid(Index ranks, Index experts, const std::string& where);

}  // namespace megalith::apps
