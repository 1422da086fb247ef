#pragma once
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/pipeline/lowering.h"
#include "megalith/pipeline/stage.h"

namespace megalith::pipeline {

/// Runs a lowered schedule. This is the only place where actions become calls. Owns the message buffers; the lowering
/// gives their number. Every message is a tensor [T, H] of the boundary's shape.
class Executor {
 public:
  struct Boundary {
    Shape shape;
    DType dtype = DType::f32;
  };
  Executor(LoweredSchedule schedule, comm::Group pp, const Boundary& boundary);

  /// What the buffers of a schedule take.
  static Index buffer_bytes(const LoweredSchedule& schedule, const Boundary& boundary);
  Index buffer_bytes() const { return buffer_bytes(schedule_, boundary_); }
  /// Takes `pipeline buffers` from the ledger. Two executors that never run at the same time may share memory: pass
  /// that of the larger.
  void allocate(MemoryLedger& ledger);
  /// From here on runs another schedule of the stage, with messages of another shape, in the same memory. Throws
  /// InternalError if that needs more buffers, or larger ones, than allocate() took.
  void change(LoweredSchedule schedule, const Shape& shape);
  void run(Exec& ex, Stage& stage);

 private:
  static Index message_bytes(const Boundary& boundary) {
    return round_up(bytes_of(boundary.shape, boundary.dtype), kAlignment);
  }
  /// Cuts the memory into the schedule's buffers.
  void carve();
  void run_action(Exec& ex, Stage& stage, const LoweredAction& action);
  Tensor received(Flow flow, int buffer) const;
  Tensor sent(Flow flow, int buffer) const;

  LoweredSchedule schedule_;
  comm::Group pp_;
  Boundary boundary_;
  Buffer memory_;
  std::vector<Tensor> receive_buffers_[kNumFlows], send_buffers_[kNumFlows];
  std::vector<comm::Pending> receiving_[kNumFlows], sending_[kNumFlows];
};

}  // namespace megalith::pipeline
