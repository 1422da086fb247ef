#include "megalith/nn/moe/moe.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/nn/moe/all_to_all_dispatcher.h"
#include "megalith/nn/moe/local_dispatcher.h"
#include "megalith/nn/moe/peer_dispatcher.h"
#include "megalith/ops/elementwise.h"

namespace megalith::nn {
namespace {

/// `columns`: experts, and slots of clones.
DispatchSizes dispatch_sizes(const MoeSpec& spec, const SublayerOptions& options, Index columns) {
  DispatchSizes sizes{.num_experts = columns,
                      .top_k = spec.config.top_k,
                      .alignment = options.group_alignment,
                      .rank_capacity = spec.config.rank_capacity_factor};
  if (spec.config.capacity == ExpertCapacity::pad) {
    sizes.run = spec.capacity_run;
    sizes.capacity = spec.config.capacity_of(sizes.run);
  }
  return sizes;
}

bool uses_peers(const MoeConfig& moe, const comm::Channel& channel) {
  const bool can = channel.reads_rows() && channel.size() <= kMaxPeers;
  if (moe.dispatcher == ExpertDispatcher::peer && !can) {
    const bool on_cpu = channel.device() == Device::cpu;
    throw ConfigError(str("moe.dispatcher = peer: group ", channel.name(), " has ", channel.size(),
                          " ranks: must be at most ", kMaxPeers, ", all on one host",
                          on_cpu ? ", which share memory"
                                 : ", on GPUs that NVLink connects, with parallel.transfers = copy_engines, and "
                                   "parallel.share_gpu_memory = true if ranks are processes",
                          "; use moe.dispatcher = auto or all_to_all; graphs.mode = iteration needs peer, or "
                          "moe.capacity = pad"));
  }
  return can && moe.dispatcher != ExpertDispatcher::all_to_all;
}

/// Whether passes may run in rounds.
bool may_lack_rows(const MoeSpec& spec, const ExpertParallel& experts) {
  const MoeConfig& moe = spec.config;
  return !moe.rank_capacity_factor.is_worst_case() && moe.overflow != RowOverflow::drop &&
         moe.capacity != ExpertCapacity::pad && experts.dispatch().size() > 1 &&
         uses_peers(moe, experts.dispatch().channel());
}

/// The experts of a rank whose rows come first with moe.overlap: a quarter. With top-8 and 16 experts of 64 on a rank
/// they want 45 % of its rows, and the others travel beside their products.
Index first_groups_of(const MoeSpec& spec, const ExpertParallel& experts) {
  const Index local = spec.config.num_experts / experts.ep().size();
  return spec.config.overlap && local > 1 ? std::max<Index>(1, local / 4) : 0;
}

std::unique_ptr<Dispatcher> make_dispatcher(const MoeSpec& spec, const SublayerOptions& options,
                                            const ExpertParallel& experts, Index columns) {
  DispatchSizes sizes = dispatch_sizes(spec, options, columns);
  sizes.first_groups = first_groups_of(spec, experts);
  sizes.forms = Experts::row_forms(options);
  if (options.recompute.has(RecomputeModule::dispatch)) sizes.backward_rows = BackwardRows::fetched;
  // Passes that pad copy nothing.
  const HostCopies copies = host_copies(facts_of_copies(spec, experts, Mode::evaluate, options.captured_end));
  const HostCopies of_groups = sizes.alignment == 1 ? copies : HostCopies{};  // for loops over groups
  const comm::Group& group = experts.dispatch();
  if (group.size() == 1) return std::make_unique<LocalDispatcher>(group, sizes, of_groups);
  if (uses_peers(spec.config, group.channel())) return std::make_unique<PeerDispatcher>(experts, sizes, of_groups);
  return std::make_unique<AllToAllDispatcher>(experts, sizes, copies);
}

}  // namespace

DispatchFacts facts_of_copies(const MoeSpec& spec, const ExpertParallel& experts, Mode mode,
                              std::optional<ForwardStage> captured_end) {
  const bool pads = spec.config.capacity == ExpertCapacity::pad;
  return {.capacity = pads && mode == Mode::evaluate ? ExpertCapacity::none : spec.config.capacity,
          .ep = experts.ep().size(),
          .etp = experts.dispatch().size() / experts.ep().size(),
          .local_experts = spec.config.num_experts / experts.ep().size(),
          .preprocess_captured = captured_end == ForwardStage::dispatch};
}

void Moe::declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec, const StreamSpec& stream,
                  const LayerGroups& groups) {
  if (!groups.experts) throw InternalError("[Moe::declare] the groups have no expert parallelism");
  Router::declare(specs, name + ".router", spec, stream, *groups.experts);
  Experts::declare(specs, name + ".experts", spec, stream, *groups.experts);
  if (spec.config.shared_ffn_hidden_size > 0) SharedExperts::declare(specs, name + ".shared", spec, stream, groups.tp);
}

Moe::Moe(const std::string& name, const MoeSpec& spec, const SublayerOptions& options, const LayerGroups& groups,
         ParamSet& params)
    : groups_(groups),
      router_(name + ".router", spec, groups, params),
      experts_(name + ".experts", options, params),
      overflow_(spec.config.overflow) {
  const bool cut = options.captured_end == ForwardStage::preprocess || options.captured_end == ForwardStage::dispatch;
  if (cut) clone_grads_end_ = BackwardStage::dispatch;
  Index columns = spec.config.num_experts;
  if (spec.config.echo.slots > 0 && this->groups().dispatch().size() > 1)
    columns = echo_.emplace(spec, this->groups(), experts_).num_columns();
  dispatcher_ = make_dispatcher(spec, options, this->groups(), columns);
  if (may_lack_rows(spec, *groups.experts)) rounds_.emplace(*groups.experts, dispatch_sizes(spec, options, columns));
  if (spec.config.shared_ffn_hidden_size == 0) return;
  shared_.emplace(name + ".shared", spec, options, groups.tp, params);
  shared_stage_ = cut ? ForwardStage::route : ForwardStage::dispatch;
}

std::unique_ptr<Sublayer::Saved> Moe::make_saved() const {
  auto saved = std::make_unique<MoeState>();
  saved->dispatcher = dispatcher_->make_saved();
  if (rounds_) saved->rounds = rounds_->make_saved();
  if (shared_) saved->shared = shared_->make_saved();
  if (echo_) saved->echo = echo_->make_pass();
  saved->experts.clones = saved->echo.get();
  return saved;
}

std::span<const ForwardStage> Moe::forward_stages() const {
  static constexpr ForwardStage kStages[] = {ForwardStage::gather,   ForwardStage::route,   ForwardStage::preprocess,
                                             ForwardStage::dispatch, ForwardStage::experts, ForwardStage::combine};
  return kStages;
}

std::span<const BackwardStage> Moe::backward_stages() const {
  static constexpr BackwardStage kStages[] = {BackwardStage::gather,     BackwardStage::combine,
                                              BackwardStage::experts,    BackwardStage::dispatch,
                                              BackwardStage::preprocess, BackwardStage::route};
  return kStages;
}

InFlight Moe::forward_stage(Exec& ex, const Microbatch& microbatch, ForwardStage stage, const Tensor& x,
                            MoeState& saved) const {
  if (microbatch.sub_batch.count != 1)
    throw InternalError("[Moe::forward] experts work on whole microbatches: sub-microbatches are not built");
  switch (stage) {
    case ForwardStage::gather:
      saved.x = x;
      if (shared_) return shared_->gather(ex, microbatch, x, saved.shared);
      break;
    case ForwardStage::route:
      if (shared_stage_ == stage) shared_->forward(ex, microbatch, saved.shared);
      saved.routed = saved.router.x = groups().own_rows(saved.x);
      router_.forward(ex, microbatch, saved.router);
      break;
    case ForwardStage::preprocess:
      if (in_rounds(microbatch)) {
        rounds_->preprocess(ex, routed_pairs(ex, microbatch, saved), saved.rounds);
        break;
      }
      dispatcher_->preprocess(ex, routed_pairs(ex, microbatch, saved), *saved.dispatcher);
      ex.owned_by(kRowsOwner, [&] { dispatcher_->permute(ex, saved.routed, *saved.dispatcher); });
      break;
    case ForwardStage::dispatch:
      if (echo_) echo_->start_weights(ex, *saved.echo);
      dispatch(ex, microbatch, saved);
      break;
    case ForwardStage::experts:
      if (in_rounds(microbatch)) {
        rounds_->forward(ex, saved.routed, experts_, saved.experts, saved.rounds);
        break;
      }
      ex.owned_by(kRowsOwner, [&] {
        LaterRows later = std::exchange(saved.later, {});
        const Tensor results = experts_.forward(ex, saved.rows, saved.experts, later);
        dispatcher_->return_rows(ex, results, *saved.dispatcher);
      });
      break;
    default:
      combine(ex, microbatch, saved);
  }
  return {};
}

/// The shared experts compute beside the transfer of rows.
void Moe::dispatch(Exec& ex, const Microbatch& microbatch, MoeState& saved) const {
  InFlight rows;
  const bool at_once = !in_rounds(microbatch);
  if (at_once) ex.owned_by(kRowsOwner, [&] { rows = dispatcher_->dispatch(ex, *saved.dispatcher, saved.later); });
  if (shared_stage_ == ForwardStage::dispatch) shared_->forward(ex, microbatch, saved.shared);
  rows.wait(ex);
  if (at_once) ex.owned_by(kRowsOwner, [&] { saved.rows = dispatcher_->arrived(ex, *saved.dispatcher); });
}

RoutedPairs Moe::routed_pairs(Exec& ex, const Microbatch& microbatch, MoeState& saved) const {
  RoutedPairs routed{.experts = saved.router.kept};
  if (echo_ && microbatch.pass == ForwardPass::recompute)
    routed = echo_->repeat(*saved.first->echo, *saved.echo);
  else if (echo_)
    routed = echo_->plan(ex, microbatch, saved.router.kept, *saved.echo);
  routed.mode = microbatch.mode;
  if (microbatch.mode != Mode::train || microbatch.pass != ForwardPass::first || microbatch.moe == nullptr)
    return routed;
  const MoeTotals& totals = microbatch.moe->totals;
  routed.overflow = totals.overflow;
  if (totals.layers() > 0 && overflow_ == RowOverflow::drop) routed.dropped = totals.dropped(router_.layer());
  return routed;
}

void Moe::combine(Exec& ex, const Microbatch& microbatch, MoeState& saved) const {
  saved.y = ex.tensor_like(saved.x);
  const Tensor part = groups().rows() == DispatchRows::share ? ex.tensor_like(saved.router.x) : saved.y;
  if (in_rounds(microbatch))
    rounds_->combine(ex, saved.router.weights, part, saved.rounds);
  else
    dispatcher_->combine(ex, saved.router.weights, part, *saved.dispatcher);
  complete(ex, part, saved.y);
  if (shared_) shared_->add_to(ex, saved.y, saved.y, saved.shared);
}

void Moe::complete(Exec& ex, const Tensor& part, const Tensor& whole) const {
  const comm::Group& tp = groups_.tp.group();
  if (groups().rows() == DispatchRows::replicated) comm::all_reduce(ex, tp, whole, comm::Reduce::sum).wait(ex);
  if (groups().rows() == DispatchRows::share) comm::all_gather(ex, tp, part, whole).wait(ex);
}

InFlight Moe::backward_stage(Exec& ex, const Microbatch& microbatch, BackwardStage stage, const Gradients& grads,
                             MoeState& saved) const {
  switch (stage) {
    case BackwardStage::gather:
      saved.dy = grads.dy.grad;
      break;
    case BackwardStage::combine:
      if (echo_) echo_->start_weights_again(ex, *saved.echo);
      if (in_rounds(microbatch)) break;
      dispatcher_->combine_backward(ex, groups().own_rows(saved.dy), saved.router.weights, *saved.dispatcher);
      break;
    case BackwardStage::experts:
      experts_backward(ex, microbatch, saved);
      break;
    case BackwardStage::dispatch:
      dispatch_backward(ex, microbatch, grads.dx, saved);
      if (echo_ && clone_grads_end_ == stage) echo_->finish_grads(ex, *saved.echo);
      break;
    case BackwardStage::preprocess:
      preprocess_backward(ex, microbatch, grads.dx, saved);
      break;
    default:
      route_backward(ex, microbatch, grads.dx, saved);
      if (echo_ && clone_grads_end_ == stage) echo_->finish_grads(ex, *saved.echo);
  }
  return {};
}

void Moe::experts_backward(Exec& ex, const Microbatch& microbatch, MoeState& saved) const {
  if (in_rounds(microbatch)) {
    rounds_->backward(ex,
                      {.x = saved.router.x,
                       .dy = groups().own_rows(saved.dy),
                       .weights = saved.router.weights,
                       .weight_grads = microbatch.weight_grads},
                      experts_, saved.experts, saved.rounds);
    return;
  }
  LaterRows later;
  const RowGrads dy = dispatcher_->return_rows_backward(ex, *saved.dispatcher, later);
  saved.rows = dispatcher_->dispatched(ex, saved.router.x, *saved.dispatcher);
  saved.d_rows = experts_.backward(ex, saved.rows, dy, microbatch.weight_grads, saved.experts, later);
}

/// The gradients of rows return beside the last weight gradient.
void Moe::dispatch_backward(Exec& ex, const Microbatch& microbatch, const Tensor& dx, MoeState& saved) const {
  const bool has_share = groups().rows() == DispatchRows::share;
  saved.d_sources = {has_share ? ex.tensor_like(saved.router.x) : dx, ex.tensor_like(saved.router.weights)};
  if (in_rounds(microbatch)) return;
  InFlight rows = dispatcher_->dispatch_backward(ex, saved.d_rows, saved.d_sources, *saved.dispatcher);
  experts_.add_last_weight_grads(ex, saved.rows, microbatch.weight_grads, saved.experts);
  rows.wait(ex);
}

void Moe::preprocess_backward(Exec& ex, const Microbatch& microbatch, const Tensor& dx, MoeState& saved) const {
  if (in_rounds(microbatch))
    rounds_->sum_grads(ex, saved.d_sources.x, saved.d_sources.weights, saved.rounds);
  else
    dispatcher_->permute_backward(ex, saved.d_sources, *saved.dispatcher);
  // Before the router's part, which every rank has whole.
  if (groups().rows() != DispatchRows::share) complete(ex, saved.d_sources.x, dx);
}

void Moe::route_backward(Exec& ex, const Microbatch& microbatch, const Tensor& dx, MoeState& saved) const {
  router_.backward(ex, microbatch, saved.d_sources.weights, saved.d_sources.x, saved.router);
  if (groups().rows() == DispatchRows::share) complete(ex, saved.d_sources.x, dx);
  if (!shared_) return;
  const Tensor d_shared = ex.tensor_like(dx);
  shared_->backward(ex, microbatch, saved.dy, d_shared, saved.shared);
  ops::add(ex, dx, d_shared, dx);
}

void Moe::restore_input(const Tensor& x, MoeState& saved) const {
  saved.x = x;
  saved.router.x = groups().own_rows(x);
  if (shared_) shared_->set_input(x, saved.shared);
}

}  // namespace megalith::nn
