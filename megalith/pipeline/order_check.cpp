#include "megalith/pipeline/order_check.h"

#include <cstdlib>
#include <string>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/pipeline/at.h"
#include "megalith/pipeline/lowering.h"
#include "megalith/pipeline/simulate.h"

namespace megalith::pipeline {
namespace {

std::string where(int stage) { return str("order of stage ", stage); }

std::string text(const Action& action) {
  return str(name(action.act), " of chunk ", action.chunk, ", microbatch ", action.microbatch);
}

}  // namespace

void check_compute_list(const ScheduleShape& shape, int stage, const Schedule& list, Problems& out) {
  require_legal(shape);
  std::vector<int> forwards(at(shape.num_chunks)), backwards(at(shape.num_chunks));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const bool forward = action.act == Act::forward;
    const auto complain = [&](const std::string& rule) {
      out.add(str(where(stage), ", entry ", i), text(action), rule);
    };
    if (!forward && action.act != Act::backward) return complain("a compute list holds forwards and backwards only");
    if (!forward && shape.mode == ScheduleMode::forward_only) return complain("a forward-only list has no backwards");
    if (action.chunk < 0 || action.chunk >= shape.num_chunks) {
      return complain(str("there are ", shape.num_chunks, " chunks"));
    }
    int& done = forward ? forwards[at(action.chunk)] : backwards[at(action.chunk)];
    if (action.microbatch != done || done == shape.num_microbatches) {
      return complain(
          str("a chunk takes each of the ", shape.num_microbatches, " microbatches once, in ascending order"));
    }
    // Through the pipeline, a chunk's forward needs the one before it and its backward the one after it.
    if (forward && action.chunk > 0 && forwards[at(action.chunk - 1)] <= done) {
      return complain(str("comes before the forward of chunk ", action.chunk - 1));
    }
    if (!forward && forwards[at(action.chunk)] <= done) return complain("comes before its forward");
    if (!forward && action.chunk + 1 < shape.num_chunks && backwards[at(action.chunk + 1)] <= done) {
      return complain(str("comes before the backward of chunk ", action.chunk + 1));
    }
    ++done;
  }
  const std::size_t wanted = at(total_work(shape)) * (shape.mode == ScheduleMode::training ? 2 : 1);
  out.require(list.size() == wanted, where(stage), str(list.size(), " entries"), str("there must be ", wanted));
}

void check_orders(const ScheduleShape& shape, const std::vector<std::vector<int>>& orders, Problems& out) {
  require_legal(shape);
  if (orders.size() != at(shape.num_stages)) {
    out.add("orders", str(orders.size(), " lists"), str("there must be one for each of ", shape.num_stages, " stages"));
    return;
  }
  Problems problems;
  std::vector<Schedule> lists;
  for (int stage = 0; stage < shape.num_stages; ++stage) {
    for (const int entry : orders[at(stage)]) {
      problems.require(entry != 0 && std::abs(entry) <= shape.num_chunks, where(stage), entry,
                       str("an entry is +-1 to +-", shape.num_chunks));
    }
    if (!problems.empty()) break;
    lists.push_back(schedule_of_order(shape, orders[at(stage)]));
    check_compute_list(shape, stage, lists.back(), problems);
  }
  for (const std::string& line : problems.lines()) out.add_line(line);
  if (!problems.empty()) return;  // what follows relies on sound lists
  try {
    std::vector<LoweredSchedule> lowered;
    for (int stage = 0; stage < shape.num_stages; ++stage) lowered.push_back(lower(shape, stage, lists, {}));
    simulate(shape, lowered);
  } catch (const InternalError& error) {
    out.add_line(error.what());
  }
}

}  // namespace megalith::pipeline
