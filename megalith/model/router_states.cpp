#include "megalith/model/router_states.h"

#include "megalith/base/str.h"
#include "megalith/ops/expert_load.h"

namespace megalith::model {
namespace {

Tensor value_of(const Param* param) { return param == nullptr ? Tensor() : param->value; }

}  // namespace

RouterStates::RouterStates(const ModelConfig& model, ParamSet& params) : rate_(model.moe.expert_bias_rate) {
  if (!model.moe.has_expert_bias() && !model.moe.keeps_shares()) return;  // no router has a state
  Index moe_layer = 0;
  for (const Index layer : model.moe_layers()) {
    const std::string name = str("layers.", layer, ".moe.router.");
    const Router router{moe_layer++, params.find(name + "bias"), params.find(name + "shares")};
    if (router.bias != nullptr || router.shares != nullptr) routers_.push_back(router);
  }
}

void RouterStates::add_bias_ranges(Exec& ex, const nn::MoeTotals& totals) const {
  for (const Router& router : routers_) {
    if (router.bias != nullptr) ops::expert_bias_range(ex, router.bias->value, totals.bias_range(router.moe_layer));
  }
}

void RouterStates::update(Exec& ex, const nn::MoeTotals& totals, const Tensor& verdict) const {
  for (const Router& router : routers_) {
    ops::update_experts(ex, {.counts = totals.choices(router.moe_layer),
                             .verdict = verdict,
                             .bias = value_of(router.bias),
                             .shares = value_of(router.shares),
                             .rate = rate_});
  }
}

}  // namespace megalith::model
