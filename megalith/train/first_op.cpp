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
/// More than a pass has calls between ranks, than it has ops between two of them, and than a step has microbatches.
constexpr std::int64_t kMaxCalls = std::int64_t{1} << 14, kMaxOps = std::int64_t{1} << 14,
                       kMaxMicrobatches = std::int64_t{1} << 20;

}  // namespace

FirstOpFinder::FirstOpFinder(const model::Stage& stage, double limit_s)
    : pp_(stage.mesh().pp.size()),
      pp_rank_(stage.mesh().pp.rank()),
      stages_(pp_ * stage.config().chunks),
      end_s_(monotonic_s() + limit_s) {}

std::int64_t FirstOpFinder::order_of_next(const CallSite& site, OpKind kind) {
  const int stage = site.chunk * pp_ + pp_rank_;  // of the whole model
  const std::int64_t pass = site.phase == StepPhase::forward ? stage : 2 * stages_ - 1 - stage;
  Position& position = positions_[{site.phase, site.chunk, site.microbatch}];
  position.ops = std::min(position.ops + 1, kMaxOps - 1);
  if (kind == OpKind::communication) position = {std::min(position.calls + 1, kMaxCalls - 1), 0};
  return ((pass * kMaxMicrobatches + site.microbatch) * kMaxCalls + position.calls) * kMaxOps + position.ops;
}

void FirstOpFinder::run(Exec& ex, const OpInfo& op, const Capture::Call& call) {
  ex.execute(op.name, call, op.kind);
  const CallSite& site = ex.call_site();
  if (site.phase != StepPhase::forward && site.phase != StepPhase::backward) return;
  const std::int64_t order = order_of_next(site, op.kind);
  if (!found_.text.empty() && order >= found_.order) return;
  if (op.kind != OpKind::local || op.name == kMaximum || monotonic_s() > end_s_) return;
  const auto is_broken = [&](const Tensor& tensor) {
    return tensor && tensor.raw() != nullptr && !is_finite(ex, staging_, tensor);
  };
  if (std::ranges::any_of(op.writes, is_broken))
    found_ = {order, str(op.name, " (", name_of(site.phase), describe(site), ')')};
}

}  // namespace megalith::train
