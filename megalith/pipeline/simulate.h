#pragma once
#include <vector>

#include "megalith/pipeline/lowering.h"

namespace megalith::pipeline {

struct ChunkCost {
  double forward = 0;
  double backward = 0;
};

/// Times in any unit. By default one microbatch takes 1 forward and 2 backward through all chunks of a stage, a chunk
/// its 1/num_chunks, and communication is free.
struct Costs {
  double forward = 1;
  double backward = 2;
  double latency = 0;                  ///< of a message, from when both its send and its receive are posted
  std::vector<ChunkCost> chunks = {};  ///< [global stage], in place of forward and backward; empty: all alike
};

/// One compute action in time.
struct Span {
  Action action;
  double start = 0;
  double end = 0;
};

struct StageResult {
  std::vector<Span> timeline;  ///< in order
  double busy = 0;
  double idle = 0;         ///< makespan - busy
  double send_wait = 0;    ///< part of idle: compute held up by a send buffer; 0 in training
  int peak_in_flight = 0;  ///< most chunks of microbatches between forward and backward
  PerFlow queue_depth;     ///< most sends posted and not complete at one time
  std::vector<int> num_slots;
  PerFlow receive_buffers;
  PerFlow send_buffers;
};

struct Simulation {
  double makespan = 0;
  std::vector<StageResult> stages;
};

/// Runs the lowered lists of all stages together: a posted send is complete `latency` after the receiver has posted the
/// matching receive, channels keep their order, and nothing but waits makes a stage wait. Also checks liveness.
/// Throws InternalError naming stage, action and what it waits for when the stages deadlock, or when a message meets a
/// receive that was posted for another microbatch or chunk; ShapeError when costs.chunks has a wrong size.
/// Takes time and memory proportional to the actions: 1.4 million (pp 64, 4 chunks, 512 microbatches) in 0.1 s.
Simulation simulate(const ScheduleShape& shape, const Costs& costs = {});
/// The same for lists that were lowered elsewhere, one for each stage.
Simulation simulate(const ScheduleShape& shape, const std::vector<LoweredSchedule>& lowered, const Costs& costs = {});

}  // namespace megalith::pipeline
