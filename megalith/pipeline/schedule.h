#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"

namespace megalith::pipeline {

/// One action of a stage in a step. Microbatches, chunks and stages count from 0.
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

/// The position of a backward pass among those of its chunk in a step. The first one finds no gradients yet. After the
/// last one the gradients of each layer are reduced.
struct BackwardTurn {
  bool is_first = false, is_last = false;
  bool operator==(const BackwardTurn&) const = default;
};

enum class ScheduleMode { training, forward_only };

/// Everything that a schedule depends on.
struct ScheduleShape {
  int num_stages = 1;        ///< pp: pipeline ranks
  int num_chunks = 1;        ///< model chunks per stage ("virtual pipeline size")
  int num_microbatches = 1;  ///< of one step on one data-parallel rank
  int group_size = 0;        ///< microbatches that run back to back on a chunk; 0: num_stages; no effect with one chunk
  ScheduleMode mode = ScheduleMode::training;
  bool operator==(const ScheduleShape&) const = default;
};

enum class ScheduleKind { no_pipelining, one_f_one_b, interleaved_1f1b, forward_only };

/// The names in printed schedules: "1f1b", "wait_recv", ...
std::string_view name(ScheduleKind kind);
std::string_view name(Act act);

/// Reports every broken rule under the recipe's keys, with the nearest legal values. Every other function of this
/// folder requires a shape that passes, and throws InternalError for one that does not.
/// With several chunks: num_stages > 1, and in training num_stages <= group_size <= num_microbatches. The last group
/// must be full or have at least num_stages microbatches. A forward-only pass takes any number of microbatches, because
/// it has no forward/backward pairs that a short group would break.
void check_shape(const ScheduleShape& shape, Problems& out);
/// Throws InternalError that names the broken rules.
void require_legal(const ScheduleShape& shape);

ScheduleKind kind_of(const ScheduleShape& shape);
/// group_size, or its default.
int group_size(const ScheduleShape& shape);
/// Virtual microbatches of a stage: num_microbatches * num_chunks.
int total_work(const ScheduleShape& shape);
/// The position of a stage's chunk in the model: chunk * num_stages + stage. Activations flow to the next position.
int global_stage(const ScheduleShape& shape, int stage, int chunk);
/// The last position. It computes the loss.
int last_global_stage(const ScheduleShape& shape);

/// Row i of the table is the work of forward step i of every stage. Backward step i takes the same microbatch on the
/// mirrored chunk, num_chunks - 1 - chunk.
struct TableRow {
  int microbatch = 0;
  int chunk = 0;
  bool operator==(const TableRow&) const = default;
};
std::vector<TableRow> schedule_table(const ScheduleShape& shape);

/// The number of forward passes of a stage before its first forward/backward pair.
int warmup_count(const ScheduleShape& shape, int stage);
/// The largest number of chunks of microbatches whose forward has run but whose backward has not: min(warm-up + 1,
/// total_work). 1 if forward-only, which keeps nothing.
int peak_in_flight(const ScheduleShape& shape, int stage);

/// The forward and backward passes of one stage in the order in which it runs them: the warm-up forwards, then pairs of
/// one forward and one backward, then the remaining backwards. The only place where an order is made.
/// Sources: Narayanan et al. 2019, "PipeDream" (1F1B), and 2021, arXiv:2104.04473, section 2.2 (interleaved).
Schedule compute_schedule(const ScheduleShape& shape, int stage);
std::vector<Schedule> compute_schedules(const ScheduleShape& shape);  ///< of every stage

/// A schedule as signed numbers: +(chunk+1) is a forward, -(chunk+1) a backward. The n-th occurrence of a number is
/// microbatch n-1.
std::vector<int> signed_order(const Schedule& schedule);
/// The inverse. Throws InternalError for an entry that names no chunk of the shape.
Schedule schedule_of_order(const ScheduleShape& shape, const std::vector<int>& order);

/// The order in which graphs of layers are captured: that of the whole step, or of one microbatch if there is no
/// pipeline (its graphs serve every microbatch). Empty if forward-only: evaluation never runs from these graphs.
std::vector<int> capture_order(const ScheduleShape& shape, int stage);
int captured_microbatches(const ScheduleShape& shape);

}  // namespace megalith::pipeline
