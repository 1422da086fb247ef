#include "megalith/nn/moe/moe.h"

#include "megalith/base/error.h"
#include "megalith/nn/moe/all_to_all_dispatcher.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/expert_load.h"

namespace megalith::nn {
namespace {

DispatchSizes dispatch_sizes(const MoeSpec& spec) {
  DispatchSizes sizes{.num_experts = spec.config.num_experts, .top_k = spec.config.top_k};
  if (spec.config.capacity == ExpertCapacity::pad) {
    sizes.run = spec.capacity_run;
    sizes.capacity = spec.config.capacity_of(sizes.run);
  }
  return sizes;
}

HostCopies copies_of_counts(const MoeSpec& spec, const ExpertParallel& experts) {
  return host_copies(
      {.capacity = spec.config.capacity == ExpertCapacity::drop ? ExpertCapacity::drop : ExpertCapacity::none,
       .ep = experts.ep().size(),
       .etp = experts.dispatch().size() / experts.ep().size(),
       .local_experts = spec.config.num_experts / experts.ep().size()});
}

}  // namespace

void Moe::declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec, const StreamSpec& stream,
                  const LayerGroups& groups) {
  if (!groups.experts) throw InternalError("[Moe::declare] the groups have no expert parallelism");
  Router::declare(specs, name + ".router", spec, stream, *groups.experts);
  Experts::declare(specs, name + ".experts", spec, stream, *groups.experts);
  if (spec.config.shared_ffn_hidden_size > 0) SharedExperts::declare(specs, name + ".shared", spec, stream, groups.tp);
}

Moe::Moe(const std::string& name, const MoeSpec& spec, const SublayerOptions& options, const LayerGroups& groups,
         ParamSet& params)
    : config_(spec.config),
      capacity_run_(spec.capacity_run),
      layer_(spec.moe_layer),
      groups_(groups),
      router_(name + ".router", spec, groups, params),
      dispatcher_(std::make_unique<AllToAllDispatcher>(*groups.experts, dispatch_sizes(spec),
                                                       copies_of_counts(spec, *groups.experts))),
      experts_(name + ".experts", spec, options, params) {
  if (config_.shared_ffn_hidden_size > 0) shared_.emplace(name + ".shared", spec, options, groups.tp, params);
}

std::unique_ptr<Sublayer::Saved> Moe::make_saved() const {
  auto saved = std::make_unique<Saved>();
  saved->dispatcher = dispatcher_->make_saved();
  if (shared_) saved->shared = shared_->make_saved();
  return saved;
}

InFlight Moe::forward(Exec& ex, const Microbatch& microbatch, int stage, const Tensor& x,
                      Sublayer::Saved& saved) const {
  auto& kept = static_cast<Saved&>(saved);
  if (microbatch.sub_batch.count != 1)
    throw InternalError("[Moe::forward] experts work on whole microbatches: sub-microbatches are not built");
  switch (stage) {
    case kBegin:
      kept.x = x;
      if (shared_) return shared_->gather(ex, microbatch, x, kept.shared);
      break;
    case kRoute:
      route(ex, microbatch, kept);
      break;
    case kPreprocess:
      dispatcher_->preprocess(ex, kept.kept_experts, microbatch.mode, *kept.dispatcher);
      break;
    case kDispatch:
      ex.owned_by(kRowsOwner, [&] { kept.experts.in = dispatcher_->dispatch(ex, kept.router.x, *kept.dispatcher); });
      break;
    case kExperts:
      ex.owned_by(kRowsOwner,
                  [&] { dispatcher_->return_rows(ex, experts_.forward(ex, kept.experts), *kept.dispatcher); });
      if (shared_) shared_->forward(ex, microbatch, kept.shared);
      break;
    default:
      combine(ex, kept);
  }
  return {};
}

void Moe::route(Exec& ex, const Microbatch& microbatch, Saved& kept) const {
  kept.router.x = groups().own_rows(kept.x);
  router_.forward(ex, microbatch, kept.router);
  kept.kept_experts = kept.router.experts;
  if (config_.has_capacity() && microbatch.mode == Mode::train) drop(ex, microbatch, kept);
  router_.record_decisions(ex, microbatch, kept.kept_experts, kept.router);
}

void Moe::drop(Exec& ex, const Microbatch& microbatch, Saved& kept) const {
  kept.kept_experts = ex.tensor_like(kept.router.experts);
  const bool is_replayed = router_.replays(microbatch);
  ops::drop_pairs(ex, {.experts = kept.router.experts,
                       .weights = is_replayed ? kept.router.stays : kept.router.weights,
                       .kept = kept.kept_experts,
                       .num_experts = config_.num_experts,
                       .capacity = config_.capacity_of(capacity_run_),
                       .run = capacity_run_,
                       .by = is_replayed ? ops::DropBy::probability : config_.drop_by});
  if (microbatch.pass == ForwardPass::first && groups().counts_rows())
    ops::count_dropped(ex, kept.kept_experts, microbatch.moe.dropped(layer_));
}

void Moe::combine(Exec& ex, Saved& kept) const {
  kept.y = ex.tensor_like(kept.x);
  const Tensor part = groups().rows() == DispatchRows::share ? ex.tensor_like(kept.router.x) : kept.y;
  dispatcher_->combine(ex, kept.router.weights, part, *kept.dispatcher);
  complete(ex, part, kept.y);
  if (shared_) shared_->add_to(ex, kept.y, kept.y, kept.shared);
}

void Moe::complete(Exec& ex, const Tensor& part, const Tensor& whole) const {
  const comm::Group& tp = groups_.tp.group();
  if (groups().rows() == DispatchRows::replicated) comm::all_reduce(ex, tp, whole, comm::Reduce::sum).wait(ex);
  if (groups().rows() == DispatchRows::share) comm::all_gather(ex, tp, part, whole).wait(ex);
}

void Moe::backward(Exec& ex, const Microbatch& microbatch, int stage, const Gradients& grads,
                   Sublayer::Saved& saved) const {
  auto& kept = static_cast<Saved&>(saved);
  if (stage == 0) {
    kept.dy = grads.dy.grad;
  } else if (stage == 1) {
    if (!shared_) return backward_routed(ex, microbatch, grads.dx, kept);
    const Tensor d_shared = ex.tensor_like(grads.dx);
    shared_->backward(ex, microbatch, kept.dy, d_shared, kept.shared);
    backward_routed(ex, microbatch, grads.dx, kept);
    ops::add(ex, grads.dx, d_shared, grads.dx);
  }
}

void Moe::backward_routed(Exec& ex, const Microbatch& microbatch, const Tensor& dx, Saved& kept) const {
  const Tensor d_weights = ex.tensor_like(kept.router.weights);
  const ExpertRows d_rows =
      dispatcher_->combine_backward(ex, groups().own_rows(kept.dy), kept.router.weights, d_weights, *kept.dispatcher);
  const Tensor d_in = experts_.backward(ex, d_rows.rows, microbatch.weight_grads, kept.experts);
  const bool has_share = groups().rows() == DispatchRows::share;
  const Tensor part = has_share ? ex.tensor_like(kept.router.x) : dx;
  dispatcher_->dispatch_backward(ex, d_in, part, *kept.dispatcher);
  if (!has_share) complete(ex, part, dx);  // before the router's part, which every rank has whole
  router_.backward(ex, microbatch, d_weights, part, kept.router);
  if (has_share) complete(ex, part, dx);
}

void Moe::set_input(const Tensor& x, Sublayer::Saved& saved) const {
  auto& kept = static_cast<Saved&>(saved);
  kept.x = x;
  kept.router.x = groups().own_rows(x);
  if (shared_) shared_->set_input(x, kept.shared);
}

}  // namespace megalith::nn
