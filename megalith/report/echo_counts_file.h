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
  /// What an entry of test vectors gives of EchoSettings.
  struct Asked {
    std::optional<Index> slots, min_pairs;
    std::optional<ops::EchoBalance> balance;
  };
  Asked asked;
};

/// Reads R arrays of E whole numbers, or an object whose `input` has them as `count`, and perhaps `ranks`, `experts`,
/// `slots_per_rank`, `min_pairs` and `balance`. Throws InputError with line and column.
EchoFile read_echo_counts(std::string_view text, std::string_view file, const EchoGrid& grid);

/// The rule that so many slots of a rank break, by which runs with clones must fit ops::kMaxGroups; empty: none.
std::string why_too_many_columns(Index ranks, Index experts, Index slots);

/// Throws InputError "[FILE] line 1, column 2, ..." unless plan_echo() takes this many ranks and experts.
void require_echo_grid(Index ranks, Index experts, const std::string& where);

}  // namespace megalith::apps
