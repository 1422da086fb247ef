#pragma once
#include <cstdint>
#include <map>
#include <tuple>

#include "megalith/model/stage.h"
#include "megalith/runtime/exec.h"
#include "megalith/train/gather.h"
#include "megalith/train/host_staging.h"

namespace megalith::train {

/// Looks for the first op of a rank's passes that writes a number which is not finite, while they run (Exec::watched).
/// First is in the order in which numbers reach each other: forward passes before backward passes, stage by stage of
/// the model, then microbatch by microbatch, then by the calls between ranks before it, which ranks of a group have in
/// common, then op by op: ranks of experts may run other numbers of ops between two calls. So the first one of all
/// ranks (share_least_text) is no consequence of another. Calls between ranks are passed over: their data may still be
/// in flight. Some ops, as those of experts, write parts of their tensors: run the passes with NewTensors::zero, or
/// what was there before is taken for their result. Reads every result once, on a GPU through HostStaging, and stops
/// looking after `limit_s`.
class FirstOpFinder final : public OpWatcher {
 public:
  FirstOpFinder(const model::Stage& stage, double limit_s);
  void run(Exec& ex, const OpInfo& op, const Capture::Call& call) override;
  /// "matmul (forward, chunk 0, microbatch 1, layer 3)"; without text if there is none.
  const Finding& found() const { return found_; }

 private:
  std::int64_t order_of_next(const CallSite& site, OpKind kind);

  int pp_, pp_rank_, stages_;
  double end_s_;
  Finding found_;
  HostStaging staging_;
  struct Position {
    std::int64_t calls = 0, ops = 0;  ///< calls between ranks so far, and ops since the last one
  };
  std::map<std::tuple<StepPhase, int, int>, Position> positions_;  // of a pass: phase, chunk, microbatch
};

}  // namespace megalith::train
