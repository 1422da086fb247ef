#include "megalith/optim/optimizer.h"

#include <algorithm>
#include <vector>

#include "megalith/ops/elementwise.h"

namespace megalith::optim {

Optimizer::Optimizer(const OptimConfig& config, ParamBuffer& params)
    : config_(config),
      params_(params),
      m_(nullptr, {params.numel()}, params.policy().master),
      v_(nullptr, {params.numel()}, params.policy().master),
      decays_(nullptr, {num_groups()}, DType::u8) {}

Index Optimizer::bytes() const { return 2 * moment_bytes() + num_groups(); }

void Optimizer::allocate(Exec& ex, MemoryLedger& ledger) {
  const DType dtype = params_.policy().master;
  memory_ = ledger.take("optimizer", bytes());
  m_ = memory_.view({params_.numel()}, dtype);
  v_ = memory_.view({params_.numel()}, dtype, moment_bytes());
  decays_ = memory_.view({num_groups()}, DType::u8, 2 * moment_bytes());
  std::vector<std::uint8_t> decays(static_cast<std::size_t>(num_groups()));
  for (const Param& param : params_.params()) {
    if (param.spec.decay == Decay::no) continue;
    const Index first = param.offset / ops::kDecayGroup, last = param.offset + param.spec.held.numel();
    std::fill(decays.begin() + first, decays.begin() + ceil_div(last, ops::kDecayGroup), std::uint8_t{1});
  }
  ex.copy(decays_.raw(), decays.data(), num_groups());
  ex.synchronize();
}

void Optimizer::sum_of_squares(Exec& ex, const Tensor& sum_squares) const {
  ops::fill(ex, sum_squares, 0);
  ops::sum_of_squares(ex, params_.grads().rows(0, params_.owned_numel()), sum_squares);
}

void Optimizer::step(Exec& ex, const Tensor& verdict) const {
  ops::adamw(ex, {.value = params_.masters(),
                  .m = m_,
                  .v = v_,
                  .copy = params_.has_copy() ? params_.values() : Tensor(),
                  .grad = params_.grads(),
                  .decays = decays_,
                  .verdict = verdict,
                  .beta1 = config_.beta1,
                  .beta2 = config_.beta2,
                  .eps = config_.eps,
                  .weight_decay = config_.weight_decay});
}

}  // namespace megalith::optim
