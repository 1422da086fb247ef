#include "megalith/train/first_op.h"

#include <algorithm>
#include <string_view>

#include "megalith/base/clock.h"
#include "megalith/base/str.h"
#include "megalith/train/non_finite.h"

namespace megalith::train {
namespace {

/// Its maximum is -infinity on a rank whose shard of the vocabulary has padding only.
constexpr std::string_view kMaximum = "logits_max";
/// More than a pass has ops, and a step microbatches.
constexpr std::int64_t kMaxOps = std::int64_t{1} << 24, kMaxMicrobatches = std::int64_t{1} << 20;

}  // namespace

FirstOpFinder::FirstOpFinder(const model::Stage& stage, double limit_s)
    : pp_(stage.mesh().pp.size()),
      pp_rank_(stage.mesh().pp.rank()),
      stages_(pp_ * stage.config().chunks),
      end_s_(monotonic_s() + limit_s) {}

/// The ranks of a tensor-parallel group run the same ops in a pass.
std::int64_t FirstOpFinder::order_of_next(const CallSite& site) {
  const int stage = site.chunk * pp_ + pp_rank_;  // of the whole model
  const std::int64_t pass = site.phase == StepPhase::forward ? stage : 2 * stages_ - 1 - stage;
  return (pass * kMaxMicrobatches + site.microbatch) * kMaxOps + ops_[{site.phase, site.chunk, site.microbatch}]++;
}

void FirstOpFinder::run(Exec& ex, const OpInfo& op, const Capture::Call& call) {
  ex.execute(op.name, call, op.kind);
  const CallSite& site = ex.call_site();
  if (site.phase != StepPhase::forward && site.phase != StepPhase::backward) return;
  const std::int64_t order = order_of_next(site);
  if (!found_.text.empty() && order >= found_.order) return;
  if (op.kind != OpKind::local || op.name == kMaximum || monotonic_s() > end_s_) return;
  const auto is_broken = [&](const Tensor& tensor) {
    return tensor && tensor.raw() != nullptr && !is_finite(ex, staging_, tensor);
  };
  if (std::ranges::any_of(op.writes, is_broken))
    found_ = {order, str(op.name, " (", name_of(site.phase), describe(site), ')')};
}

}  // namespace megalith::train
