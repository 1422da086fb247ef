#include "megalith/nn/moe/echo.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <ranges>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/nn/moe/moe_step.h"
#include "megalith/ops/elapsed.h"

namespace megalith::nn {
namespace {

/// In the order in which the forward pass reads them. The backward pass reads them in reverse.
constexpr std::array kMatrices = {ExpertMatrix::up, ExpertMatrix::down};

/// A row for each expert, or slot.
Tensor as_rows(const Tensor& matrices) {
  return matrices.reshaped({matrices.dim(0), matrices.dim(1) * matrices.dim(2)});
}

Shape in_slots(const Tensor& matrices, Index slots) { return {slots, matrices.dim(1), matrices.dim(2)}; }

/// Why the group cannot use this backend; empty: it can.
std::string unfit(EchoBackend backend, const comm::Channel& channel) {
  if (backend != EchoBackend::peer || channel.reads_rows()) return "";
  return str("moe.echo.backend = peer: group ", channel.name(), " has ",
             channel.device() == Device::cpu ? "ranks that share no memory (on several hosts, or in several containers)"
                                             : "ranks on several hosts, GPUs that no NVLink connects, or "
                                               "parallel.share_gpu_memory = false",
             ", which cannot read each other's weights; use moe.echo.backend = auto, collective or host_sized");
}

EchoBackend chosen(EchoBackend backend, ExpertDispatcher dispatcher, const comm::Channel& channel) {
  if (const std::string why = unfit(backend, channel); !why.empty()) throw ConfigError(why);
  if (backend != EchoBackend::automatic) return backend;
  const bool reads = channel.reads_rows() && channel.size() <= kMaxPeers && dispatcher != ExpertDispatcher::all_to_all;
  return reads ? EchoBackend::peer : EchoBackend::host_sized;
}

/// The world ranks, comma-separated, whose plan is not that of most.
std::string differing_ranks(std::span<const std::int64_t> hashes, std::span<const int> world_ranks) {
  std::map<std::int64_t, std::size_t> votes;
  for (const std::int64_t hash : hashes) ++votes[hash];
  const auto most = std::ranges::max_element(votes, {}, &std::pair<const std::int64_t, std::size_t>::second);
  std::string ranks;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i] == most->first) continue;
    ranks += str(ranks.empty() ? "" : ", ", world_ranks[i], " (", hex64(static_cast<std::uint64_t>(hashes[i])), ")");
  }
  return str(ranks, "; the plan of most ranks is ", hex64(static_cast<std::uint64_t>(most->first)));
}

/// Runs ops(), whose time adds to `sum` [1] f64, in us. Undefined: only runs them.
template <class Ops>
void measured(Exec& ex, const Tensor& sum, Ops&& ops) {
  if (!sum) return ops();
  const Tensor begin = ex.tensor({1}, DType::i64);
  ops::start_clock(ex, begin);
  ops();
  ops::add_elapsed(ex, begin, sum);
}

}  // namespace

EchoPass::EchoPass(const Echo& echo, Index ranks, Index slots) : echo_(&echo), src_on_host_(ranks * slots) {
  clones_.sends.resize(static_cast<std::size_t>(ranks));
  clones_.receives.resize(static_cast<std::size_t>(ranks));
}

void EchoPass::take_host_memory(Device device) { src_on_host_.take_memory(device); }

Tensor EchoPass::weights(Exec& ex, ExpertMatrix matrix) {
  echo_->finish_weights(ex, matrix, *this);
  return of(matrix).weights;
}

Tensor EchoPass::grads(Exec& ex, ExpertMatrix matrix) {
  if (rounds_) return of(matrix).grads;
  const Tensor of_experts = echo_->experts_.grads(matrix);
  return of(matrix).grads = ex.tensor(in_slots(of_experts, echo_->config_.slots), of_experts.dtype());
}

void EchoPass::grads_written(Exec& ex, ExpertMatrix matrix) {
  if (rounds_) return;
  Slots& slots = of(matrix);
  echo_->start_measured(ex, *this, [&] {
    echo_->transport_->start_grads(ex, as_rows(slots.grads), clones_, as_rows(echo_->experts_.grads(matrix)),
                                   slots.leaving);
  });
  slots.leaves = true;
  if (!echo_->config_.overlap) echo_->finish_grads(ex, matrix, *this);
}

void EchoPass::begin_rounds(Exec& ex, Rounds rounds) {
  for (const ExpertMatrix matrix : kMatrices) {
    weights(ex, matrix);
    if (rounds == Rounds::backward) grads(ex, matrix);
  }
  rounds_ = rounds;
}

void EchoPass::end_rounds(Exec& ex) {
  const bool has_grads = *std::exchange(rounds_, std::nullopt) == Rounds::backward;
  // What the loop reads in later rounds stays in its memory until here.
  ex.run({.name = "end_echo_rounds",
          .reads = {of(ExpertMatrix::up).weights, of(ExpertMatrix::down).weights},
          .writes = {}},
         [](Exec&, Stream) {});
  if (!has_grads) return;
  for (const ExpertMatrix matrix : std::views::reverse(kMatrices)) grads_written(ex, matrix);
}

Echo::Echo(const MoeSpec& spec, const ExpertParallel& groups, const Experts& experts)
    : config_(spec.config.echo),
      group_(groups.dispatch()),
      experts_(experts),
      num_experts_(spec.config.num_experts),
      layer_(spec.moe_layer),
      counts_(groups.counts_rows() && group_.rank() == 0),
      transport_(
          make_clone_transport(chosen(config_.backend, spec.config.dispatcher, group_.channel()), groups.clones())) {
  if (groups.slices() != 1)
    throw InternalError(str("[Echo] slices of an expert = ", groups.slices(), ": must be on ranks with equal rows"));
}

std::unique_ptr<EchoPass> Echo::make_pass() const {
  return std::make_unique<EchoPass>(*this, group_.size(), config_.slots);
}

RoutedPairs Echo::plan(Exec& ex, const Microbatch& microbatch, const Tensor& choices, EchoPass& pass) const {
  const Index ranks = group_.size(), rows = choices.dim(0), top_k = choices.dim(1);
  pass.exposed_ = microbatch.mode == Mode::train && microbatch.moe != nullptr
                      ? microbatch.moe->totals.exposed_in(layer_)
                      : Tensor();
  const Tensor all = ex.tensor({ranks, rows, top_k}, DType::i32);
  comm::all_gather(ex, group_, choices.reshaped({1, rows, top_k}), all).wait(ex);
  const Tensor counts = ex.tensor({ranks, num_experts_}, DType::i32);
  ops::count_pairs(ex, {.experts = all, .counts = counts});
  pass.plan_ = ops::make_echo_plan(ex, ranks, num_experts_, config_.slots);
  const Index every = compared_every(ex, microbatch);
  if (every == 0) pass.plan_.hash = {};
  const ops::EchoStages stages = ops::make_echo_stages(ex, ranks, num_experts_, config_.slots);
  ops::plan_echo(ex, {.counts = counts,
                      .plan = pass.plan_,
                      .stages = stages,
                      .balance = config_.balance,
                      .min_pairs = config_.min_pairs,
                      .step_state = every == 0 ? Tensor() : microbatch.step_state,
                      .hash_every = std::max<Index>(1, every)});
  add_totals(ex, microbatch, stages, pass);
  if (every > 0) compare_plans(ex, microbatch, all, pass);
  pass.columns_ = ex.tensor(all.shape(), DType::i32);
  ops::rewrite_choices(ex, {.experts = all,
                            .src = pass.plan_.src,
                            .take = pass.plan_.take,
                            .columns = pass.columns_,
                            .num_experts = num_experts_});
  pass.clones_.lists = ops::make_clone_lists(ex, ranks, num_experts_, config_.slots);
  ops::list_clones(ex, {.src = pass.plan_.src,
                        .lists = pass.clones_.lists,
                        .num_experts = num_experts_,
                        .ranks = ranks,
                        .rank = group_.rank()});
  return choices_of(pass);
}

RoutedPairs Echo::repeat(const EchoPass& first, EchoPass& again) const {
  again.plan_ = first.plan_;
  again.columns_ = first.columns_;
  again.clones_ = first.clones_;
  again.exposed_ = first.exposed_;
  return choices_of(again);
}

RoutedPairs Echo::choices_of(const EchoPass& pass) const {
  const Tensor& all = pass.columns_;
  return {.experts = all.rows(group_.rank(), 1).reshaped({all.dim(1), all.dim(2)}), .of_all = all};
}

void Echo::add_totals(Exec& ex, const Microbatch& microbatch, const ops::EchoStages& stages,
                      const EchoPass& pass) const {
  if (!counts_ || microbatch.mode == Mode::evaluate || microbatch.moe == nullptr || !microbatch.moe->totals.echo)
    return;
  ops::add_echo_totals(ex, {.plan = pass.plan_, .stages = stages, .totals = microbatch.moe->totals.of_echo(layer_)});
}

Index Echo::compared_every(const Exec& ex, const Microbatch& microbatch) const {
  const bool has_memory = microbatch.step_state && microbatch.moe != nullptr && microbatch.moe->totals.plans;
  if (!has_memory) return 0;  // inference
  const Index every = config_.compared_every(ex.device());
  return microbatch.mode == Mode::evaluate ? std::min<Index>(every, 1) : every;
}

void Echo::compare_plans(Exec& ex, const Microbatch& microbatch, const Tensor& choices, EchoPass& pass) const {
  const Tensor hashes = ex.tensor({group_.size()}, DType::i64);
  comm::all_gather(ex, group_, pass.plan_.hash, hashes).wait(ex);  // in every step, as steps make the same calls
  ops::check_echo_plans(ex, {.hashes = hashes,
                             .step_state = microbatch.step_state,
                             .experts = choices,
                             .src = pass.plan_.src,
                             .cap = pass.plan_.cap,
                             .take = pass.plan_.take,
                             .found = microbatch.moe->totals.plans,
                             .every = compared_every(ex, microbatch),
                             .chunk = ex.call_site().chunk,
                             .layer = ex.call_site().layer});
}

template <class Start>
void Echo::start_measured(Exec& ex, const EchoPass& pass, Start&& start) const {
  measured(ex, transport_->starts_take_time(ex.device()) ? pass.exposed_ : Tensor(), std::forward<Start>(start));
}

void Echo::set_host_sizes(Exec& ex, EchoPass& pass) const {
  std::vector<Index>&sends = pass.clones_.sends, &receives = pass.clones_.receives;
  std::ranges::fill(sends, 0);
  std::ranges::fill(receives, 0);
  // An op, so that the plan's memory is kept until here.
  ex.run({.name = "copy_clones_to_host", .reads = {pass.plan_.src}, .writes = {}},
         [&pass](Exec& runs, Stream) { pass.src_on_host_.copy(runs, pass.plan_.src); });
  const auto me = static_cast<std::size_t>(group_.rank());
  if (ex.recording()) {  // counts that fit the planned tensors
    const std::size_t other = me == 0 ? 1 : 0;
    sends[other] = pass.clones_.lists.sent.dim(0);
    receives[other] = config_.slots;
    return;
  }
  const std::span<const std::int32_t> src = pass.src_on_host_.wait(group_);
  const Index local = num_experts_ / group_.size();
  for (std::size_t slot = 0; slot < src.size(); ++slot) {
    if (src[slot] < 0) continue;
    const auto owner = slot / static_cast<std::size_t>(config_.slots),
               home = static_cast<std::size_t>(src[slot] / local);
    if (home == me) ++sends[owner];
    if (owner == me) ++receives[home];
  }
}

void Echo::start_weights(Exec& ex, EchoPass& pass) const {
  if (transport_->needs_host_sizes()) start_measured(ex, pass, [&] { set_host_sizes(ex, pass); });
  for (const ExpertMatrix matrix : kMatrices) start_weights(ex, matrix, pass);
}

void Echo::start_weights_again(Exec& ex, EchoPass& pass) const {
  if (config_.weights != EchoWeights::redispatch) return;
  for (const ExpertMatrix matrix : std::views::reverse(kMatrices)) start_weights(ex, matrix, pass);
}

void Echo::start_weights(Exec& ex, ExpertMatrix matrix, EchoPass& pass) const {
  EchoPass::Slots& slots = pass.of(matrix);
  const Tensor of_experts = experts_.weights(matrix);
  ex.owned_by(kSlotsOwner, [&] { slots.weights = ex.tensor(in_slots(of_experts, config_.slots), of_experts.dtype()); });
  start_measured(ex, pass, [&] {
    transport_->start_weights(ex, as_rows(of_experts), pass.clones_, as_rows(slots.weights), slots.arriving);
  });
  slots.arrives = true;
  if (!config_.overlap) finish_weights(ex, matrix, pass);
}

void Echo::finish_weights(Exec& ex, ExpertMatrix matrix, EchoPass& pass) const {
  EchoPass::Slots& slots = pass.of(matrix);
  if (!std::exchange(slots.arrives, false)) return;
  measured(ex, pass.exposed_,
           [&] { transport_->finish_weights(ex, pass.clones_, as_rows(slots.weights), slots.arriving); });
}

void Echo::finish_grads(Exec& ex, EchoPass& pass) const {
  for (const ExpertMatrix matrix : std::views::reverse(kMatrices)) finish_grads(ex, matrix, pass);
}

void Echo::finish_grads(Exec& ex, ExpertMatrix matrix, EchoPass& pass) const {
  EchoPass::Slots& slots = pass.of(matrix);
  if (!std::exchange(slots.leaves, false)) return;
  measured(ex, pass.exposed_,
           [&] { transport_->finish_grads(ex, pass.clones_, as_rows(experts_.grads(matrix)), slots.leaving); });
}

std::string describe_plan_difference(const comm::Group& group, std::span<const std::int64_t> difference,
                                     int microbatch) {
  const auto number = [&](ops::PlanDifference which) { return difference[static_cast<std::size_t>(which)]; };
  const CallSite site{.chunk = static_cast<int>(number(ops::PlanDifference::chunk)),
                      .microbatch = microbatch,
                      .layer = number(ops::PlanDifference::layer)};
  const std::span<const std::int64_t> hashes =
      difference.subspan(static_cast<std::size_t>(ops::PlanDifference::hashes), static_cast<std::size_t>(group.size()));
  return str("[echo] group ", group.name(), describe(site), ": the plan of clones differs on ranks ",
             differing_ranks(hashes, group.world_ranks()), ": all ranks must count the same pairs of token and expert");
}

}  // namespace megalith::nn
