#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"

namespace megalith::pipeline {

/// What a stage does in a step. Microbatches, chunks and stages count from 0.
enum class Act {
  forward,
  backward,
  backward_input,
  backward_weight,
  post_send,  ///< from here on: added by lower()
  wait_send,
  post_recv,
  wait_recv,
  set_step_state,
  gather_params,
  reduce_grads
};

struct Action {
  Act act = Act::forward;
  int chunk = 0;
  int microbatch = 0;
  bool operator==(const Action&) const = default;
};
using Schedule = std::vector<Action>;

/// Where a backward stands among its chunk's in a step. The first finds no gradients there yet; behind the layers that
/// the last has passed, their gradients go to be reduced.
struct BackwardTurn {
  bool is_first = false, is_last = false;
  bool operator==(const BackwardTurn&) const = default;
};

enum class Mode { training, forward_only };

/// Everything that a schedule depends on.
struct ScheduleShape {
  int num_stages = 1;        ///< pp: pipeline ranks
  int num_chunks = 1;        ///< model chunks per stage ("virtual pipeline size")
  int num_microbatches = 1;  ///< of one step on one data-parallel rank
  int group_size = 0;        ///< microbatches that run back to back on a chunk; 0: num_stages; no effect with one chunk
  Mode mode = Mode::training;
  bool operator==(const ScheduleShape&) const = default;
};

enum class ScheduleKind { no_pipelining, one_f_one_b, interleaved_1f1b, forward_only };

/// The names used in printed schedules: "1f1b", "wait_recv", ...
std::string_view name(ScheduleKind kind);
std::string_view name(Act act);

/// Reports every broken rule under the recipe's keys, with the nearest legal values. Every other function of this
/// folder wants a shape that passes, and throws InternalError for one that does not.
/// With several chunks: num_stages > 1, and in training num_stages <= group_size <= num_microbatches, where the last
/// group is whole or holds at least num_stages microbatches. A forward-only pass takes any number of microbatches: it
/// has no forward/backward pairs that a short group would pull out of step.
void check_shape(const ScheduleShape& shape, Problems& out);
/// Throws InternalError naming the broken rules.
void require_legal(const ScheduleShape& shape);

ScheduleKind kind_of(const ScheduleShape& shape);
/// group_size with its default filled in.
int group_size(const ScheduleShape& shape);
/// Virtual microbatches of a stage: num_microbatches * num_chunks.
int total_work(const ScheduleShape& shape);
/// The place of a stage's chunk in the model: chunk * num_stages + stage. Activations flow to the next place.
int global_stage(const ScheduleShape& shape, int stage, int chunk);
/// The last place of all: it computes the loss.
int last_global_stage(const ScheduleShape& shape);

/// Row i of the table says what forward step i of every stage works on. Backward step i takes the same microbatch on
/// the mirrored chunk, num_chunks - 1 - chunk.
struct TableRow {
  int microbatch = 0;
  int chunk = 0;
  bool operator==(const TableRow&) const = default;
};
std::vector<TableRow> schedule_table(const ScheduleShape& shape);

/// Forwards that a stage runs before its first backward belongs to a forward/backward pair.
int warmup_count(const ScheduleShape& shape, int stage);
/// The most chunks of microbatches that are forward but not yet backward: min(warm-up + 1, total_work); 1 when
/// forward-only, which keeps nothing.
int peak_in_flight(const ScheduleShape& shape, int stage);

/// The forwards and backwards of one stage in the order in which it runs them: the warm-up forwards, then pairs of one
/// forward and one backward, then the remaining backwards. The only place where an order is made.
/// Sources: Narayanan et al. 2019, "PipeDream" (1F1B), and 2021, arXiv:2104.04473, section 2.2 (interleaved).
Schedule compute_schedule(const ScheduleShape& shape, int stage);
std::vector<Schedule> compute_schedules(const ScheduleShape& shape);  ///< of every stage

/// A schedule as signed numbers: +(chunk+1) is a forward, -(chunk+1) a backward; the n-th occurrence of a number is
/// microbatch n-1.
std::vector<int> signed_order(const Schedule& schedule);
/// The inverse; throws InternalError for an entry that names no chunk of the shape.
Schedule schedule_of_order(const ScheduleShape& shape, const std::vector<int>& order);

/// The order in which per-layer graphs are captured: all of the step, or one microbatch where there is no pipeline
/// (its graphs serve every microbatch). Empty when forward-only: evaluation never runs from graphs.
std::vector<int> capture_order(const ScheduleShape& shape, int stage);
int captured_microbatches(const ScheduleShape& shape);

}  // namespace megalith::pipeline
