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
/// the model, then microbatch by microbatch, then op by op. So the first one of all ranks (share_least_text) is no
/// consequence of another. Calls between ranks are passed over: their data may still be in flight. Not for models with
/// experts, whose ops write parts of their tensors. Reads every result once, on a GPU through HostStaging, and stops
/// looking after `limit_s`.
class FirstOpFinder final : public OpWatcher {
 public:
  FirstOpFinder(const model::Stage& stage, double limit_s);
  void run(Exec& ex, const OpInfo& op, const Capture::Call& call) override;
  /// "matmul (forward, chunk 0, microbatch 1, layer 3)"; without text if there is none.
  const Finding& found() const { return found_; }

 private:
  std::int64_t order_of_next(const CallSite& site);

  int pp_, pp_rank_, stages_;
  double end_s_;
  Finding found_;
  HostStaging staging_;
  std::map<std::tuple<StepPhase, int, int>, std::int64_t> ops_;  // of a pass so far: phase, chunk, microbatch
};

}  // namespace megalith::train
