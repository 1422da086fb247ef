#include "megalith/train/step_program.h"

#include <algorithm>
#include <cstring>

namespace megalith::train {
namespace {

/// A request to save, in the sum of all ranks' requests: above those to stop, one for each rank.
constexpr std::uint64_t kSaveRequest = std::uint64_t{1} << 32;

}  // namespace

bool counts_terms_ahead(const config::RunPlan& plan) { return plan.model.is_masked_lm(); }

StepProgram::StepProgram(RunMemory& memory)
    : memory_(memory), rules_(optim::step_rules(memory.plan().optimizer, memory.plan().train.scaling)) {
  const config::RunPlan& plan = memory.plan();
  const Index terms = plan.model.task ? plan.model.task->labels() : plan.model.seq_len;  // of a sample, at most
  if (!counts_terms_ahead(plan)) rules_.divided_by = static_cast<double>(plan.train.global_batch * terms);
  if (plan.model.moe.overflow == nn::RowOverflow::drop) rules_.without_rows = ops::WithoutRows::counts;
  rules_.non_finite = plan.train.on_nonfinite;
  rules_.spikes = plan.train.spikes;
  rules_.losses = 0;
  for (const nn::LossSpec& loss : model::losses_of(plan.model)) rules_.loss_weights[rules_.losses++] = loss.weight;
}

void StepProgram::allocate(int ahead) { staging_ = Staging(memory_.plan().device, kAlignment, ahead); }

void StepProgram::warm_up_collectives() {
  Exec& ex = memory_.exec();
  const comm::Mesh& mesh = memory_.mesh();
  const StepScalars& scalars = memory_.scalars();
  memory_.stage().warm_up_collectives(ex);
  for (const ParamBuffer& params : memory_.stage().params().trained()) {
    if (params.is_sharded())  // the optimizer's, of its blocks' sums
      comm::all_reduce(ex, mesh.reduction_group({.grid = params.grid()}), scalars.totals.rows(0, 2), comm::Reduce::sum)
          .wait(ex);
  }
  sum_totals();
  memory_.world().wait_for(ex);
}

void StepProgram::warm_up_passes() {
  memory_.stage().warm_up(memory_.exec(), memory_.scalars().optimizer_state);
  sum_squares([](std::size_t, std::size_t) {});
  update_parameters();  // the verdict is still all zero: it refuses the step
  memory_.world().wait_for(memory_.exec());
}

void StepProgram::passes() {
  Exec& ex = memory_.exec();
  model::Stage& stage = memory_.stage();
  stage.begin(ex);
  memory_.train_executor().run(ex, stage);
  ex.set_call_site({.phase = StepPhase::optimizer});  // until update() ends
  sum_squares([&](std::size_t buffer, std::size_t bucket) { stage.await_grads(ex, buffer, bucket); });
}

template <class Await>
void StepProgram::sum_squares(Await&& await) {
  Exec& ex = memory_.exec();
  ex.begin(memory_.optimizer_plan().phases[0], nullptr, memory_.stage().scratch());
  Index row = 0;
  for (std::size_t buffer = 0; const optim::Optimizer& optimizer : memory_.optimizers()) {
    optimizer.sum_of_squares(ex, memory_.scalars().squares.rows(row, 2),
                             [&](std::size_t bucket) { await(buffer, bucket); });
    row += 2;
    ++buffer;
  }
  ex.end();
}

void StepProgram::update_parameters() {
  Exec& ex = memory_.exec();
  ex.begin(memory_.optimizer_plan().phases[1], nullptr, memory_.stage().scratch());
  for (const optim::Optimizer& optimizer : memory_.optimizers()) optimizer.step(ex, memory_.scalars().verdict);
  ex.end();
}

void StepProgram::upload(const Requests& requests) {
  const std::uint64_t term = (requests.stop == Stop::asked ? 1 : 0) + (requests.save ? kSaveRequest : 0);
  ops::StepCounts counts{.calls = memory_.world().agreement_term(), .requests = term};
  counts.next_terms = next_terms_;
  std::ranges::copy(memory_.loss_counts(), counts.loss_counts);
  staging_.upload(memory_.exec(), static_cast<std::byte*>(memory_.scalars().counts.raw()), sizeof counts,
                  [&](std::byte* host) { std::memcpy(host, &counts, sizeof counts); });
}

void StepProgram::vote() {
  const StepScalars& scalars = memory_.scalars();
  // Replicas of a number count once: optimizers count an owner's gradients, and losses are equal over tp.
  ops::step_terms(memory_.exec(), {.sum_squares = scalars.squares,
                                   .loss_sums = memory_.stage().loss_sums(),
                                   .totals = scalars.totals,
                                   .counts = scalars.counts,
                                   .overflow = memory_.stage().moe_totals().overflow,
                                   .plans = memory_.stage().moe_totals().plans,
                                   .outcome = scalars.outcome,
                                   .loss = memory_.counts_losses() ? ops::LossShare::counts : ops::LossShare::replica});
  sum_totals();
}

void StepProgram::sum_totals() {
  Exec& ex = memory_.exec();
  const comm::Group& world = memory_.mesh().world;
  const StepScalars& scalars = memory_.scalars();
  comm::all_reduce(ex, world, scalars.totals.rows(0, ops::summed_totals(rules_.losses)), comm::Reduce::sum).wait(ex);
  comm::all_reduce(ex, world, scalars.counts.rows(0, ops::summed_counts(rules_.losses)), comm::Reduce::sum).wait(ex);
  memory_.stage().sum_moe_totals(ex);
}

void StepProgram::update() {
  const StepScalars& scalars = memory_.scalars();
  ops::decide_step(memory_.exec(), {.totals = scalars.totals,
                                    .counts = scalars.counts,
                                    .state = scalars.optimizer_state,
                                    .verdict = scalars.verdict,
                                    .outcome = scalars.outcome,
                                    .rules = rules_});
  update_parameters();
  memory_.stage().update_routers(memory_.exec(), scalars.verdict);
  memory_.exec().set_call_site({});
}

void StepProgram::evaluate() {
  memory_.stage().begin(memory_.exec());
  memory_.eval_executor().run(memory_.exec(), memory_.stage());
}

Requests StepProgram::answer(const ops::StepCounts& totals) {
  return {.stop = totals.requests % kSaveRequest != 0 ? Stop::asked : Stop::no,
          .save = totals.requests >= kSaveRequest};
}

}  // namespace megalith::train
