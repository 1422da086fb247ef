#pragma once
#include <vector>

#include "megalith/model/model_config.h"
#include "megalith/nn/moe/moe_totals.h"
#include "megalith/params/param_set.h"

namespace megalith::model {

/// What a rule, and no gradient, updates of the routers on a rank.
class RouterStates {
 public:
  RouterStates(const ModelConfig& model, ParamSet& params);
  /// Puts the least and the greatest bias of every router here into the totals.
  void add_bias_ranges(Exec& ex, const nn::MoeTotals& totals) const;
  /// From the totals over all ranks, after the verdict on a step (u8 [sizeof(ops::StepVerdict)]).
  void update(Exec& ex, const nn::MoeTotals& totals, const Tensor& verdict) const;

 private:
  struct Router {
    Index moe_layer = 0;                             ///< row of the totals
    const Param *bias = nullptr, *shares = nullptr;  ///< null: it has none
  };
  std::vector<Router> routers_;
  double rate_;
};

}  // namespace megalith::model
