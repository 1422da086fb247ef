#include "megalith/train/engine.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/config/moe_rules.h"
#include "megalith/ops/init.h"
#include "megalith/ops/row_budget.h"
#include "megalith/ops/scaled_grouped_matmul.h"
#include "megalith/ops/scaled_matmul.h"
#include "megalith/train/first_op.h"
#include "megalith/train/gather.h"
#include "megalith/train/non_finite.h"

namespace megalith::train {
namespace {

constexpr Index kOutcomeBytes = round_up(Index{sizeof(ops::StepOutcome)}, kAlignment);

/// Numbers of microbatches [M, N] sample by sample. Those of spans are [2, B, S] in a microbatch of B samples.
std::vector<float> by_sample(const Tensor& numbers, const config::RunPlan& plan) {
  const std::span<float> all = numbers.span<float>();
  if (plan.model.task->form != nn::TaskForm::spans) return {all.begin(), all.end()};
  const auto samples = static_cast<std::size_t>(plan.train.micro_batch),
             seq_len = static_cast<std::size_t>(plan.model.seq_len);
  std::vector<float> ordered;
  ordered.reserve(all.size());
  for (std::size_t first = 0; first < all.size(); first += 2 * samples * seq_len) {
    for (std::size_t sample = 0; sample < samples; ++sample) {
      for (const std::size_t which : {sample, samples + sample}) {
        const std::span<float> row = all.subspan(first + which * seq_len, seq_len);
        ordered.insert(ordered.end(), row.begin(), row.end());
      }
    }
  }
  return ordered;
}

/// A rank, then its numbers; nothing without numbers.
std::vector<std::byte> as_bytes_of(Index rank, const std::vector<float>& numbers) {
  if (numbers.empty()) return {};
  std::vector<std::byte> bytes(sizeof rank + numbers.size() * sizeof(float));
  std::memcpy(bytes.data(), &rank, sizeof rank);
  std::memcpy(bytes.data() + sizeof rank, numbers.data(), numbers.size() * sizeof(float));
  return bytes;
}

/// Throws ConfigError on a GPU that has no FP8 GEMM with block scales.
void require_fp8_gemms(const config::RunPlan& plan) {
  if (plan.device == Device::cpu || plan.train.policy().gemms != GemmFormat::e4m3) return;
  Exec ex(plan.device);
  const ops::Operand a = ops::make_operand(ex, ops::kScaleBlock, ops::kScaleBlock, ops::ScaleBlocks::vectors),
                     b = ops::make_operand(ex, ops::kScaleBlock, ops::kScaleBlock, ops::ScaleBlocks::squares);
  const Tensor c = ex.tensor({ops::kScaleBlock, ops::kScaleBlock}, DType::bf16);
  std::string why = ops::why_no_scaled_matmul(ex, {.a = a, .b = b, .c = c});
  if (why.empty() && plan.model.moe.has_experts()) why = ops::why_no_scaled_grouped_matmul(ex);
  if (!why.empty()) throw ConfigError("train.precision = fp8: " + why);
}

}  // namespace

Engine::Engine(comm::World& world, const config::RunPlan& plan)
    : memory_(world, plan), program_(memory_), graphs_(memory_, program_), batch_(plan.train.global_batch) {}

void Engine::allocate(InitialValues values) {
  const Device device = memory_.plan().device;
  memory_.start();
  require_fp8_gemms(memory_.plan());
  replays_.emplace(world(), exec());
  memory_.take(values);
  program_.allocate(kMaxStarted);
  outcomes_memory_ = Buffer(kMaxStarted * outcome_bytes(), device, Side::host);
  for (Started& started : under_way_) started.done = Event(device);
  if (device == Device::cuda)
    memory_.warm_up([this] { program_.warm_up_collectives(); }, [this] { program_.warm_up_passes(); });
  graphs_.require_memory();
}

ops::GemmChoices Engine::choose_gemms(std::span<const ops::KnownGemms> known) {
  if (!memory_.plan().chooses_gemms()) return {};
  // The warm-up of allocate() has met all products. Its memory is free again and serves for timing.
  ops::GemmChoices choices = agree_on_gemms(world(), ops::gemm_chooser(exec()), known, stage().work());
  gemm_table_ = choices.table;
  const comm::HostsMeet meet(world());
  stage().warm_up(exec(),
                  memory_.scalars().optimizer_state);  // loads the kernels, also where another rank has timed them
  world().wait_for(exec());
  return choices;
}

void Engine::forget_graphs() {
  if (steps_started() != 0) throw InternalError("[Engine::forget_graphs] a step is under way");
  graphs_.forget();
}

void Engine::refuse_disagreement(std::byte* totals, Index step) {
  if (stage().compares_plans()) {
    const auto [order, text] = stage().plan_difference(totals_in(totals).plans.span<std::int64_t>());
    const std::string first = share_least_text(world(), {order, text});
    if (!first.empty()) throw CollectiveError(str(first, ". Parameters stay those of step ", step - 1));
  }
  throw CollectiveError(str("[step ", step,
                            "] the ranks disagree about the collectives of this step: parameters stay those of step ",
                            step - 1));
}

std::string Engine::where_not_finite(const ops::StepOutcome& outcome, Index step, nn::RowExchange exchange) {
  const std::string ranks = "seen on rank " + ranks_with_non_finite(world(), outcome.finite_here == 0);
  const Gradients gradients = steps_started() == 0 ? Gradients::kept : Gradients::replaced;
  const NonFiniteTensor first = first_non_finite(world(), exec(), stage().params(), gradients);
  std::string where = first.text.empty() ? ranks : str(ranks, "; ", first.text);
  const bool skips = program_.rules().non_finite == ops::NonFinite::skip;
  if (skips && !first.is_parameter) return where;
  throw NonFiniteError(str("[step ", step, "] loss = ", exact(outcome.totals.loss_sums[0]),
                           ", gradient norm = ", exact(outcome.grad_norm), ": must be finite; ", where,
                           skips ? ", and no later step can be finite" : "", first_op_not_finite(exchange),
                           // With skip, a step in flight may have been applied.
                           skips && steps_started() > 0 ? "" : str("; parameters stay those of step ", step - 1), ". ",
                           non_finite_advice(memory_.plan(), optimizer_state().updates)));
}

std::string Engine::first_op_not_finite(nn::RowExchange exchange) {
  const comm::HostWait waiting(world());
  world().wait_for(exec());  // a later step that is in flight changes nothing
  constexpr double kMax_s = 60;
  FirstOpFinder finder(stage(), std::min(kMax_s, memory_.plan().timeout_s / 4));
  load(under_way_[static_cast<std::size_t>((finished_ - 1) % kMaxStarted)]);
  const NewTensors before = exec().fill_new_tensors(NewTensors::zero);
  exec().watched(finder, [&] { graphs_.run_passes_eagerly(exchange); });
  exec().fill_new_tensors(before);
  world().wait_for(exec());
  Finding found = finder.found();
  if (!found.text.empty()) found.text = str("; first in ", found.text, " on rank ", world().rank());
  return share_least_text(world(), found);
}

Index Engine::needed_factor(std::byte* totals) const {
  const Index needed = totals_in(totals).overflow.data<std::int64_t>()[1];
  return ops::factor_for_rows(needed, config::moe_rows(memory_.plan()).permuted);
}

void Engine::refuse_overflow(std::byte* totals, Index step) const {
  const config::RunPlan& plan = memory_.plan();
  const nn::MoeConfig& moe = plan.model.moe;
  const Index needed = totals_in(totals).overflow.data<std::int64_t>()[1], even = config::moe_rows(plan).permuted;
  throw ConfigError(str("[step ", step, "] moe.rank_capacity_factor = ", moe.rank_capacity_factor.text(),
                        ": a rank of experts needs ", needed, " rows, and has room for ",
                        ops::rows_of_factor(even, moe.rank_capacity_factor.thousandths), "; for this step ",
                        nn::RankCapacity{needed_factor(totals)}.text(), " suffices. Parameters stay those of step ",
                        step - 1));
}

StepReport Engine::step(const model::BatchSource& source, const Progress& progress, Stop stop) {
  start_step(source, progress, [stop] { return Requests{.stop = stop}; });
  return finish_step();
}

void Engine::start_step(const model::BatchSource& source, const Progress& progress, const AskRequests& ask) {
  if (steps_started() == kMaxStarted) throw InternalError("[Engine::start_step] too many steps are under way");
  world().check_health();
  const comm::HostWait waiting(world());
  const Index index = started_++ % kMaxStarted;
  Started& started = under_way_[static_cast<std::size_t>(index)];
  started.progress = progress;
  started.source = &source;
  load(started);
  graphs_.run_step(started.step(), [&] { return started.requests = ask(); });
  end_step(index);
}

void Engine::set_batch(Index samples) {
  if (samples == batch_) return;
  batch_ = samples;
  stage().set_batch(samples);
  memory_.train_executor().change(stage().schedule(), stage().boundary_shape());
}

void Engine::load(const Started& started) {
  const config::TrainConfig& train = memory_.plan().train;
  const bool ahead = counts_terms_ahead(memory_.plan());
  const Index first = started.progress.samples;
  set_batch(train.batch_after(first));
  if (ahead) count_terms(*started.source, first);
  stage().load(exec(), nn::Mode::train, *started.source, first,
               {.step = static_cast<std::uint64_t>(started.progress.step),
                .loss_scale = ahead ? 1.0 : 1.0 / program_.rules().divided_by},
               memory_.scalars().optimizer_state);
  if (!ahead) return;
  const Index next = first + batch_;
  program_.set_next_terms(stage().read_ahead(*started.source, next, train.batch_after(next))[0]);
}

void Engine::count_terms(const model::BatchSource& source, Index first_sample) {
  if (stage().has_read(source, first_sample)) return;  // the vote of the step before has summed them
  std::int64_t terms = stage().read_ahead(source, first_sample, batch_)[0];
  Exec host;
  comm::all_reduce(host, world().all(), Tensor(&terms, {1}, DType::i64), comm::Reduce::sum).wait(host);
  ops::OptimizerState state = optimizer_state();
  state.next_terms = terms;
  set_optimizer_state(state);
}

std::byte* Engine::outcome_of(Index step_in_flight) {
  return outcomes_memory_.data() + step_in_flight * outcome_bytes();
}

void Engine::end_step(Index step_in_flight) {
  std::byte* const outcome = outcome_of(step_in_flight);
  exec().copy(outcome, memory_.scalars().outcome.raw(), sizeof(ops::StepOutcome));
  if (const Index bytes = stage().moe_totals().bytes(); bytes > 0)
    exec().copy(outcome + kOutcomeBytes, stage().moe_totals().counts.raw(), bytes);
  if (const Tensor& exposed = stage().moe_totals().exposed; exposed)
    exec().copy(outcome + kOutcomeBytes + stage().moe_totals().bytes(), exposed.raw(), exposed.bytes());
  under_way_[static_cast<std::size_t>(step_in_flight)].done.record(exec().stream());
}

void Engine::run_again() {
  const comm::HostWait waiting(world());
  world().wait_for(exec());  // a later step that is in flight was held, too
  ops::OptimizerState state = optimizer_state();
  state.halted = 0;
  set_optimizer_state(state);
  const bool aborts = memory_.plan().model.moe.overflow == nn::RowOverflow::abort;
  for (Index i = finished_ - 1; i < started_; ++i) {
    const Index index = i % kMaxStarted;
    const Started& started = under_way_[static_cast<std::size_t>(index)];
    load(started);
    if (aborts)
      graphs_.measure_rows();
    else
      graphs_.run_in_rounds(started.requests);
    end_step(index);
    if (!aborts) continue;
    world().wait_for(started.done);
    refuse_overflow(outcome_of(index) + kOutcomeBytes, started.step());
  }
}

Index Engine::outcome_bytes() const {
  const nn::MoeTotals& totals = memory_.stage().moe_totals();
  return kOutcomeBytes + round_up(totals.bytes() + (totals.exposed ? totals.exposed.bytes() : 0), kAlignment);
}

LossMeans Engine::means_of(const ops::StepTotals& totals, const ops::StepCounts& counts) const {
  LossMeans means;
  for (std::size_t i = 0; const nn::LossSpec& loss : model::losses_of(memory_.plan().model)) {
    means.push_back(
        {loss.name, ops::mean_of_loss(totals, counts, i), static_cast<Index>(counts.loss_counts[i]), loss.terms});
    ++i;
  }
  return means;
}

nn::MoeTotals Engine::totals_in(std::byte* memory) const {
  const nn::MoeTotals& on_device = memory_.stage().moe_totals();
  const auto of_echo = on_device.echo ? nn::EchoTotals::counted : nn::EchoTotals::none;
  nn::MoeTotals totals =
      nn::MoeTotals::in(memory, on_device.layers(), on_device.layers() == 0 ? 0 : on_device.num_experts(), of_echo);
  if (on_device.exposed) totals.exposed = {memory + totals.bytes(), on_device.exposed.shape(), DType::f64};
  return totals;
}

MoeReport Engine::read_moe(std::byte* totals, Index samples) const {
  if (memory_.stage().moe_totals().layers() == 0) return {};
  const model::ModelConfig& model = memory_.plan().model;
  const double part = static_cast<double>(samples) / static_cast<double>(memory_.plan().train.global_batch),
               tokens = part * program_.rules().divided_by;
  MoeReport report = moe_report(totals_in(totals), model.moe_layers(), tokens, model.moe.has_expert_bias());
  for (ExpertLoad& load : report.layers) {
    if (load.echo) load.echo->bytes = static_cast<double>(load.echo->clones) * clone_bytes(memory_.plan(), load.layer);
  }
  return report;
}

StepReport Engine::finish_step() {
  if (steps_started() == 0) throw InternalError("[Engine::finish_step] no step is under way");
  const Index index = finished_++ % kMaxStarted;
  const Started& started = under_way_[static_cast<std::size_t>(index)];
  const auto wait = [&] {
    world().wait_for(started.done);
    ops::StepOutcome outcome;
    std::memcpy(&outcome, outcome_of(index), sizeof outcome);
    return outcome;
  };
  ops::StepOutcome outcome = wait();
  const bool held = outcome.halted == ops::kHeldForRows;
  if (held) {
    run_again();
    outcome = wait();
  }
  const ops::StepRules& rules = program_.rules();
  const bool skipped = outcome.applied == 0, finite = outcome.counts.non_finite == 0;
  if (outcome.counts.calls != 0) refuse_disagreement(outcome_of(index) + kOutcomeBytes, started.step());
  if (outcome.halted != 0 && finite) throw InternalError("[Engine::finish_step] an earlier step has ended the run");
  std::string where;
  if (!finite && !rules.scaling.is_on()) {
    const auto exchange = held ? nn::RowExchange::in_rounds : nn::RowExchange::at_once;
    where = where_not_finite(outcome, started.step(), exchange);
  }
  const Requests asked = StepProgram::answer(outcome.counts);
  const Index samples = memory_.plan().train.batch_after(started.progress.samples);
  return {.loss = rules.mean_loss(outcome.totals, outcome.counts),
          .losses = means_of(outcome.totals, outcome.counts),
          .grad_norm = outcome.grad_norm,
          .learning_rate = skipped ? 0.0 : outcome.learning_rate,
          .loss_scale = outcome.loss_scale,
          .skipped = skipped,
          .finite = finite,
          .skipped_steps = outcome.skipped_steps,
          .spikes = outcome.spikes,
          .means = outcome.means,
          .where = std::move(where),
          .rerun = held,
          .rows_factor = held ? 1e-3 * static_cast<double>(needed_factor(outcome_of(index) + kOutcomeBytes)) : 0.0,
          .stop = asked.stop == Stop::asked,
          .save = asked.save,
          .moe = read_moe(outcome_of(index) + kOutcomeBytes, samples)};
}

std::vector<float> Engine::gather_numbers() {
  model::Stage& stage = memory_.stage();
  std::vector<float> mine;
  if (const Tensor& numbers = stage.numbers(); numbers && memory_.counts_losses()) {
    Exec host;
    const Tensor on_host = host.tensor(numbers.shape(), numbers.dtype()),
                 narrow = host.tensor(numbers.shape(), DType::f32);
    exec().copy(on_host.raw(), numbers.raw(), numbers.bytes());
    world().wait_for(exec());
    ops::cast(host, on_host, narrow);
    mine = by_sample(narrow, memory_.plan());
  }
  // Ranks with the head, in the order of their samples.
  const std::vector<std::vector<std::byte>> all = gather_bytes(world(), as_bytes_of(mesh().dp_rank(), mine));
  std::vector<std::vector<float>> parts(static_cast<std::size_t>(mesh().dp.size()));
  for (const std::vector<std::byte>& bytes : all) {
    if (bytes.empty()) continue;
    Index rank = 0;
    std::memcpy(&rank, bytes.data(), sizeof rank);
    std::vector<float>& part = parts[static_cast<std::size_t>(rank)];
    part.resize((bytes.size() - sizeof rank) / sizeof(float));
    std::memcpy(part.data(), bytes.data() + sizeof rank, part.size() * sizeof(float));
  }
  std::vector<float> joined;
  for (const std::vector<float>& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  return joined;
}

Finding Engine::plan_difference() {
  if (!stage().compares_plans()) return {};
  const auto on_host = memory_.read<std::array<std::int64_t, ops::kPlanDifference>>(stage().moe_totals().plans);
  auto [order, text] = stage().plan_difference(on_host);
  return {order, std::move(text)};
}

Evaluated Engine::evaluate_losses(const model::BatchSource& source, Index samples, const TakeNumbers& take) {
  if (steps_started() != 0) throw InternalError("[Engine::evaluate] a step is under way");
  const config::RunPlan& plan = memory_.plan();
  stage().gather_all_params(exec());
  ops::StepTotals totals;
  ops::StepCounts counts;
  Finding other_plan;
  for (Index first = 0; first < samples; first += plan.train.global_batch) {
    const comm::HostWait waiting(world());
    stage().load(exec(), nn::Mode::evaluate, source, first, {}, {});
    graphs_.run_evaluation();
    for (int i = 0; i < program_.rules().losses; ++i) {
      totals.loss_sums[i] += memory_.read<double>(stage().loss_sums().rows(i, 1));
      counts.loss_counts[i] += static_cast<std::uint64_t>(memory_.loss_counts()[static_cast<std::size_t>(i)]);
    }
    if (other_plan.text.empty()) other_plan = plan_difference();
    if (!take) continue;
    const std::vector<float> numbers = gather_numbers();
    if (world().rank() == 0) take(numbers);
  }
  graphs_.end_evaluation();
  if (stage().compares_plans()) {
    const std::string differs = share_least_text(world(), other_plan);
    if (!differs.empty()) throw CollectiveError(differs + ". It was found in an evaluation");
  }
  if (!memory_.counts_losses()) totals = {};
  Exec host;
  const Index losses = program_.rules().losses;
  comm::all_reduce(host, world().all(), Tensor(totals.loss_sums, {losses}, DType::f64), comm::Reduce::sum).wait(host);
  comm::all_reduce(host, world().all(), Tensor(counts.loss_counts, {losses}, DType::u64), comm::Reduce::sum).wait(host);
  return {program_.rules().mean_loss(totals, counts), means_of(totals, counts)};
}

}  // namespace megalith::train
