#include "megalith/pipeline/schedule.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/pipeline/at.h"

namespace megalith::pipeline {
namespace {

/// Keeps every count of this folder far inside an int.
constexpr Index kMaxWork = Index{1} << 28;

bool legal_groups(int num_stages, int num_microbatches, int group) {
  const int rest = group > 0 ? num_microbatches % group : 0;
  return num_stages <= group && group <= num_microbatches && (rest == 0 || rest >= num_stages);
}

/// The legal group size nearest to `wanted`. There is one whenever num_microbatches >= num_stages: all in one group.
int nearest_group(int num_stages, int num_microbatches, int wanted) {
  int best = num_microbatches;
  for (int group = num_stages; group < num_microbatches; ++group) {
    const bool nearer = std::abs(group - wanted) < std::abs(best - wanted);
    if (nearer && legal_groups(num_stages, num_microbatches, group)) best = group;
  }
  return best;
}

/// "4 or 8": the legal numbers of microbatches just below and above.
std::string nearest_microbatches(const ScheduleShape& shape, int group) {
  const auto legal = [&](int count) { return legal_groups(shape.num_stages, count, group); };
  int below = shape.num_microbatches;
  while (!legal(below)) --below;  // ends at `group` at the latest
  int above = shape.num_microbatches;
  while (!legal(above)) ++above;
  return str(below, " or ", above);
}

void check_interleaved(const ScheduleShape& shape, Problems& out) {
  const int pp = shape.num_stages, count = shape.num_microbatches, group = group_size(shape);
  if (group < pp) {
    out.add("parallel.group_size", group,
            str("must be at least parallel.pp = ", pp, " with parallel.chunks > 1; the nearest legal value is ",
                count < pp || shape.mode == ScheduleMode::forward_only ? pp : nearest_group(pp, count, group)));
  }
  if (shape.mode == ScheduleMode::forward_only) return;
  if (count < pp) {
    out.add(
        "num_microbatches", count,
        str("parallel.chunks = ", shape.num_chunks, " needs at least parallel.pp = ", pp,
            " microbatches in a step; raise train.global_batch until there are ", pp, ", or set parallel.chunks = 1"));
  } else if (group > count) {
    out.add("parallel.group_size", group,
            str("must not exceed the ", count, " microbatches of a step; the nearest legal value is ",
                nearest_group(pp, count, group)));
  } else if (group >= pp && !legal_groups(pp, count, group)) {
    out.add(
        "num_microbatches", count,
        str("in groups of parallel.group_size = ", group, " the last one holds ", count % group,
            ", and must hold none or at least parallel.pp = ", pp, "; change train.global_batch to have ",
            nearest_microbatches(shape, group), ", or set parallel.group_size = ", nearest_group(pp, count, group)));
  }
}

void require_stage(const ScheduleShape& shape, int stage) {
  require_legal(shape);
  if (stage < 0 || stage >= shape.num_stages) {
    throw InternalError(str("[schedule] stage = ", stage, ": must be in [0, ", shape.num_stages, ")"));
  }
}

}  // namespace

std::string_view name(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::no_pipelining:
      return "no_pipelining";
    case ScheduleKind::one_f_one_b:
      return "1f1b";
    case ScheduleKind::interleaved_1f1b:
      return "interleaved_1f1b";
    case ScheduleKind::forward_only:
      return "forward_only";
  }
  return "?";
}

std::string_view name(Act act) {
  switch (act) {
    case Act::forward:
      return "forward";
    case Act::backward:
      return "backward";
    case Act::backward_input:
      return "backward_input";
    case Act::backward_weight:
      return "backward_weight";
    case Act::post_send:
      return "post_send";
    case Act::wait_send:
      return "wait_send";
    case Act::post_recv:
      return "post_recv";
    case Act::wait_recv:
      return "wait_recv";
    case Act::set_step_state:
      return "set_step_state";
    case Act::gather_params:
      return "gather_params";
    case Act::reduce_grads:
      return "reduce_grads";
  }
  return "?";
}

void check_shape(const ScheduleShape& shape, Problems& out) {
  out.require(shape.group_size >= 0, "parallel.group_size", shape.group_size,
              "must be 0 (the same as parallel.pp) or a number of microbatches");
  const bool positive = out.positive({{"parallel.pp", shape.num_stages},
                                      {"parallel.chunks", shape.num_chunks},
                                      {"num_microbatches", shape.num_microbatches}});
  if (!positive || shape.group_size < 0) return;
  const bool fits = shape.num_chunks <= kMaxWork / shape.num_stages &&
                    shape.num_microbatches <= kMaxWork / (Index{shape.num_stages} * shape.num_chunks);
  if (!fits) {
    out.add("parallel.pp * chunks * num_microbatches",
            str(shape.num_stages, " * ", shape.num_chunks, " * ", shape.num_microbatches),
            str("must be at most ", kMaxWork));
    return;
  }
  if (shape.num_chunks == 1) return;
  if (shape.num_stages == 1) {
    out.add("parallel.chunks", shape.num_chunks,
            "a virtual pipeline needs a pipeline; set parallel.chunks = 1, or parallel.pp to 2 or more");
    return;
  }
  check_interleaved(shape, out);
}

void require_legal(const ScheduleShape& shape) {
  Problems problems;
  check_shape(shape, problems);
  if (problems.empty()) return;
  std::string text = "[schedule] a shape that was not checked:";
  for (const std::string& line : problems.lines()) text += "\n  " + line;
  throw InternalError(text);
}

ScheduleKind kind_of(const ScheduleShape& shape) {
  if (shape.mode == ScheduleMode::forward_only) return ScheduleKind::forward_only;
  if (shape.num_stages == 1) return ScheduleKind::no_pipelining;
  return shape.num_chunks == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved_1f1b;
}

int group_size(const ScheduleShape& shape) { return shape.group_size == 0 ? shape.num_stages : shape.group_size; }

int total_work(const ScheduleShape& shape) { return shape.num_microbatches * shape.num_chunks; }

int global_stage(const ScheduleShape& shape, int stage, int chunk) { return chunk * shape.num_stages + stage; }

int last_global_stage(const ScheduleShape& shape) { return shape.num_chunks * shape.num_stages - 1; }

std::vector<TableRow> schedule_table(const ScheduleShape& shape) {
  require_legal(shape);
  const int group = group_size(shape), count = shape.num_microbatches;
  std::vector<TableRow> table;
  table.reserve(at(total_work(shape)));
  for (int first = 0; first < count; first += std::min(group, count - first)) {
    const int end = first + std::min(group, count - first);
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      for (int microbatch = first; microbatch < end; ++microbatch) table.push_back({microbatch, chunk});
    }
  }
  return table;
}

int warmup_count(const ScheduleShape& shape, int stage) {
  const int stages_left = shape.num_stages - stage - 1;  // that a microbatch still has to pass
  switch (kind_of(shape)) {
    case ScheduleKind::no_pipelining:
      return 0;
    case ScheduleKind::one_f_one_b:
      return std::min(stages_left, total_work(shape));
    case ScheduleKind::interleaved_1f1b:
      return static_cast<int>(
          std::min<Index>(2 * Index{stages_left} + Index{shape.num_chunks - 1} * group_size(shape), total_work(shape)));
    case ScheduleKind::forward_only:
      return total_work(shape);
  }
  return 0;
}

int peak_in_flight(const ScheduleShape& shape, int stage) {
  if (shape.mode == ScheduleMode::forward_only) return 1;
  return std::min(warmup_count(shape, stage) + 1, total_work(shape));
}

Schedule compute_schedule(const ScheduleShape& shape, int stage) {
  require_stage(shape, stage);
  const std::vector<TableRow> table = schedule_table(shape);
  const int total = total_work(shape), warmup = warmup_count(shape, stage);
  Schedule schedule;
  schedule.reserve(2 * table.size());
  const auto row = [&](int i) { return table[at(i)]; };
  const auto forward = [&](int i) { schedule.push_back({Act::forward, row(i).chunk, row(i).microbatch}); };
  const auto backward = [&](int i) {
    schedule.push_back({Act::backward, shape.num_chunks - 1 - row(i).chunk, row(i).microbatch});
  };
  for (int i = 0; i < warmup; ++i) forward(i);
  if (shape.mode == ScheduleMode::forward_only) return schedule;
  for (int i = warmup; i < total; ++i) {
    forward(i);
    backward(i - warmup);
  }
  for (int i = total - warmup; i < total; ++i) backward(i);
  return schedule;
}

std::vector<Schedule> compute_schedules(const ScheduleShape& shape) {
  std::vector<Schedule> schedules;
  for (int stage = 0; stage < shape.num_stages; ++stage) schedules.push_back(compute_schedule(shape, stage));
  return schedules;
}

std::vector<int> signed_order(const Schedule& schedule) {
  std::vector<int> order;
  order.reserve(schedule.size());
  for (const Action& action : schedule) {
    if (action.act == Act::forward) order.push_back(action.chunk + 1);
    if (action.act == Act::backward) order.push_back(-action.chunk - 1);
  }
  return order;
}

Schedule schedule_of_order(const ScheduleShape& shape, const std::vector<int>& order) {
  const auto chunks = at(shape.num_chunks);
  std::vector<int> forwards(chunks), backwards(chunks);
  Schedule schedule;
  schedule.reserve(order.size());
  for (const int entry : order) {
    if (entry == 0 || entry > shape.num_chunks || entry < -shape.num_chunks) {
      throw InternalError(
          str("[schedule] order entry = ", entry, ": must be in [1, ", shape.num_chunks, "] or its negative"));
    }
    const int chunk = std::abs(entry) - 1;
    const auto c = at(chunk);
    if (entry > 0) {
      schedule.push_back({Act::forward, chunk, forwards[c]++});
    } else {
      schedule.push_back({Act::backward, chunk, backwards[c]++});
    }
  }
  return schedule;
}

int captured_microbatches(const ScheduleShape& shape) {
  if (shape.mode == ScheduleMode::forward_only) return 0;
  return shape.num_stages == 1 ? 1 : shape.num_microbatches;
}

std::vector<int> capture_order(const ScheduleShape& shape, int stage) {
  const int captured = captured_microbatches(shape);
  if (captured == 0) return {};
  ScheduleShape part = shape;
  part.num_microbatches = captured;
  return signed_order(compute_schedule(part, stage));
}

}  // namespace megalith::pipeline
