#include "megalith/train/graph_check.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"

namespace megalith::train {

void refuse_differences(comm::World& world, const std::string& what,
                        const std::optional<capture::MemoryCopy::Difference>& mine) {
  struct Found {
    bool any = false;
    StepOrder order;
    std::array<char, 256> text{};
  };
  Found here;
  if (mine) {
    here.any = true;
    here.order = mine->order;
    mine->text.copy(here.text.data(), here.text.size() - 1);
  }
  const std::vector<Found> all = comm::gather_values(world.all(), here);
  const auto first =
      std::ranges::min_element(all, {}, [](const Found& found) { return std::pair(!found.any, found.order); });
  if (!first->any) return;
  throw InternalError(str("rank ", first - all.begin(), ": [graphs] ", what, ": ", first->text.data(),
                          " is another from graphs than from an eager run, and is the first of all that differs: what "
                          "changes from step to step must come from memory, at the addresses of the capture, not by "
                          "value"));
}

}  // namespace megalith::train
