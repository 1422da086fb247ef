#include "megalith/train/engine.h"

#include <cmath>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::train {
namespace {

model::StageConfig stage_config(const config::RunPlan& plan) {
  return {.model = plan.model,
          .stage_layers = plan.stage_layers,
          .chunks = plan.chunks,
          .group_size = plan.group_size,
          .global_batch = plan.train.global_batch,
          .micro_batch = plan.train.micro_batch,
          .seed = plan.train.seed,
          .dtype = plan.train.dtype()};
}

// What is summed over the world after every backward pass.
enum Real : Index { kLoss, kSquares, kNumReals };
enum Word : Index { kCalls, kNonFinite, kStop, kNumWords };

}  // namespace

/// The sums of all ranks, and this rank's own part where a message needs it.
struct Engine::Agreement {
  double loss_sum = 0, squares = 0;
  std::uint64_t calls = 0, non_finite = 0, stop = 0;
  bool finite_here = true;

  bool apply() const { return calls == 0 && non_finite == 0; }
};

Engine::Engine(comm::World& world, const config::RunPlan& plan)
    : world_(world),
      plan_(plan),
      mesh_(grid::make_mesh(world, plan.grid)),
      ledger_(Device::cpu),
      stage_(stage_config(plan), mesh_),
      optimizer_(plan.optimizer, stage_.params()),
      train_executor_(stage_.schedule(), mesh_.pp, {stage_.boundary_shape(), plan.train.dtype()}),
      eval_executor_(stage_.eval_schedule(), mesh_.pp, {stage_.boundary_shape(), plan.train.dtype()}) {
  plan_optimizer();
}

void Engine::plan_optimizer() {
  Recording recording;
  Exec ex(Device::cpu, recording);
  recording.begin_phase();
  optimizer_.sum_of_squares(ex, Tensor(nullptr, {1}, DType::f64));
  recording.begin_phase();
  optimizer_.step(ex, Tensor(nullptr, {sizeof(ops::StepVerdict)}, DType::u8));
  optimizer_plan_ = make_plan(recording);
}

BytesByOwner Engine::planned_bytes() const {
  BytesByOwner bytes = stage_.planned_bytes(optimizer_plan_.scratch_bytes);
  bytes["optimizer"] = optim::Optimizer::bytes(stage_.params());
  bytes["pipeline buffers"] = train_executor_.buffer_bytes() + eval_executor_.buffer_bytes();
  bytes["step scalars"] = 4 * kAlignment + round_up(world_.size() * size_of(DType::u64), kAlignment);
  return bytes;
}

void Engine::allocate() {
  stage_.allocate(ledger_, optimizer_plan_.scratch_bytes);
  optimizer_.allocate(ledger_);
  train_executor_.allocate(ledger_);
  eval_executor_.allocate(ledger_);
  scalars_memory_ = ledger_.take("step scalars", planned_bytes().at("step scalars"));
  reals_ = scalars_memory_.view({kNumReals}, DType::f64);
  words_ = scalars_memory_.view({kNumWords}, DType::u64, kAlignment);
  verdict_ = scalars_memory_.view({sizeof(ops::StepVerdict)}, DType::u8, 2 * kAlignment);
  gathered_ = scalars_memory_.view({world_.size()}, DType::u64, 3 * kAlignment);
  for (Param& param : stage_.params().params()) initialise(param, plan_.train.seed);
}

Engine::Agreement Engine::agree(Stop stop) {
  const std::span<double> reals = reals_.span<double>();
  const std::span<std::uint64_t> words = words_.span<std::uint64_t>();
  Agreement agreement;
  const double squares = reals[kSquares];
  const double loss = stage_.loss_sum().data<double>()[0];
  agreement.finite_here = std::isfinite(squares) && std::isfinite(loss);
  // Replicas of a number count once: gradients are equal over dp after their reduction, losses over tp.
  reals[kSquares] = mesh_.dp_rank() == 0 ? squares : 0.0;
  reals[kLoss] = mesh_.tp_rank() == 0 ? loss : 0.0;
  comm::all_reduce(ex_, mesh_.world, reals_, comm::Reduce::sum).wait(ex_);
  words[kCalls] = world_.agreement_term();
  words[kNonFinite] = agreement.finite_here ? 0 : 1;
  words[kStop] = stop == Stop::asked ? 1 : 0;
  comm::all_reduce(ex_, mesh_.world, words_, comm::Reduce::sum).wait(ex_);
  agreement.loss_sum = reals[kLoss];
  agreement.squares = reals[kSquares];
  agreement.calls = words[kCalls];
  agreement.non_finite = words[kNonFinite];
  agreement.stop = words[kStop];
  return agreement;
}

void Engine::refuse(const Agreement& agreement, const Progress& progress) {
  const Index step = progress.step + 1;
  if (agreement.calls != 0) {
    throw CollectiveError(str("[step ", step,
                              "] the ranks disagree about the collectives of this step: parameters stay those of step ",
                              progress.step));
  }
  Tensor mine = gathered_.rows(world_.rank(), 1);
  mine.data<std::uint64_t>()[0] = agreement.finite_here ? 0 : 1;
  comm::all_gather(ex_, mesh_.world, mine, gathered_).wait(ex_);
  std::string ranks;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (gathered_.span<std::uint64_t>()[static_cast<std::size_t>(rank)] != 0)
      ranks += str(ranks.empty() ? "" : ", ", rank);
  }
  throw NonFiniteError(str("[step ", step, "] loss = ", exact(agreement.loss_sum),
                           ", gradient norm = ", exact(std::sqrt(agreement.squares)), ": must be finite; seen on rank ",
                           ranks, "; parameters stay those of step ", progress.step,
                           ". A lower optimizer.lr or a longer warm-up may help"));
}

StepResult Engine::step(const model::BatchSource& source, const Progress& progress, Stop stop) {
  comm::WatchedStep watched(world_, pattern_, ex_);
  const double tokens = static_cast<double>(plan_.train.global_batch * plan_.model.seq_len);
  const double lr = optim::learning_rate(plan_.optimizer, progress.updates + 1);
  stage_.begin(ex_, nn::Mode::train, source, progress.samples,
               {.step = static_cast<std::uint64_t>(progress.step), .learning_rate = lr, .loss_scale = 1.0 / tokens});
  train_executor_.run(ex_, stage_);
  ex_.begin(optimizer_plan_.phases[0], nullptr, stage_.scratch());
  optimizer_.sum_of_squares(ex_, reals_.rows(kSquares, 1));
  ex_.end();

  const Agreement agreement = agree(stop);
  watched.end();
  if (!agreement.apply()) refuse(agreement, progress);
  const double norm = std::sqrt(agreement.squares);
  const ops::StepVerdict verdict{.apply = 1,
                                 .factor = optim::clip_factor(plan_.optimizer.clip, norm),
                                 .learning_rate = lr,
                                 .update = progress.updates};
  std::memcpy(verdict_.raw(), &verdict, sizeof(verdict));
  ex_.begin(optimizer_plan_.phases[1], nullptr, stage_.scratch());
  optimizer_.step(ex_, verdict_);
  ex_.end();
  return {agreement.loss_sum / tokens, norm, lr, agreement.stop != 0};
}

double Engine::evaluate(const model::BatchSource& source, Index samples) {
  double sum = 0;
  for (Index first = 0; first < samples; first += plan_.train.global_batch) {
    stage_.begin(ex_, nn::Mode::evaluate, source, first, {});
    eval_executor_.run(ex_, stage_);
    sum += stage_.loss_sum().data<double>()[0];
  }
  reals_.span<double>()[kLoss] = mesh_.tp_rank() == 0 ? sum : 0.0;
  comm::all_reduce(ex_, mesh_.world, reals_.rows(kLoss, 1), comm::Reduce::sum).wait(ex_);
  return reals_.span<double>()[kLoss] / static_cast<double>(samples * plan_.model.seq_len);
}

}  // namespace megalith::train
