#include "megalith/train/non_finite.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/params/non_finite.h"
#include "megalith/train/gather.h"

namespace megalith::train {
namespace {

/// Calls use(block in host memory) for each block of a tensor of the device, while it returns true.
template <class Use>
void for_each_block_of(Exec& ex, HostStaging& staging, const Tensor& tensor, Use&& use) {
  const Index most = HostStaging::kBytes / size_of(tensor.dtype());
  for (Index at = 0; at < tensor.numel(); at += most)
    if (!use(staging.read(ex, tensor, at, std::min(most, tensor.numel() - at)))) return;
}

void add_blocks(FirstNonFinite& first, Exec& ex, HostStaging& staging, const std::string& name, const Tensor& tensor) {
  if (!first.is_wanted(name)) return;
  for_each_block_of(ex, staging, tensor, [&](const Tensor& block) {
    first.add(name, block);
    return first.is_wanted(name);
  });
}

Finding first_value(Exec& ex, HostStaging& staging, const ParamSet& params, int rank) {
  FirstNonFinite first;
  for (const ParamBuffer& buffer : params.buffers())
    for (const Param& param : buffer.params()) add_blocks(first, ex, staging, param.name(), param.value);
  if (!first.is_found()) return {};
  return {first.order(), str("on rank ", rank, ' ', first.parameter(), " = ", first.value())};
}

Finding first_gradient(Exec& ex, HostStaging& staging, const ParamSet& params, int rank) {
  FirstNonFinite first(FirstNonFinite::Pass::backward);
  for (const ParamBuffer& buffer : params.trained())
    for (const Param& param : buffer.params())
      for (const Tensor& part : buffer.kept_grads(param)) add_blocks(first, ex, staging, param.name(), part);
  if (!first.is_found()) return {};
  return {first.order(), str("on rank ", rank, " the gradient of ", first.parameter(), " = ", first.value())};
}

}  // namespace

bool is_finite(Exec& ex, HostStaging& staging, const Tensor& tensor) {
  const DType dtype = tensor.dtype();
  if (dtype != DType::f64 && dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) return true;
  bool finite = true;
  for_each_block_of(ex, staging, tensor,
                    [&](const Tensor& block) { return finite = !non_finite_value(block).has_value(); });
  return finite;
}

NonFiniteTensor first_non_finite(comm::World& world, Exec& ex, const ParamSet& params, Gradients gradients) {
  HostStaging staging;
  std::string value = share_least_text(world, first_value(ex, staging, params, world.rank()));
  if (!value.empty()) return {.is_parameter = true, .text = std::move(value)};
  if (gradients == Gradients::replaced) return {};
  return {.text = share_least_text(world, first_gradient(ex, staging, params, world.rank()))};
}

std::string ranks_with_non_finite(comm::World& world, bool mine) {
  std::uint64_t flag = mine ? 1 : 0;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  Exec host;
  comm::all_gather(host, world.all(), Tensor(&flag, {1}, DType::u64), Tensor(all.data(), {world.size()}, DType::u64))
      .wait(host);
  constexpr Index kListed = 8;
  std::string ranks;
  Index count = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == 0) continue;
    if (count < kListed) ranks += str(ranks.empty() ? "" : ", ", rank);
    ++count;
  }
  return count <= kListed ? ranks : str(ranks, " and ", count - kListed, " more");
}

std::string non_finite_advice(const config::RunPlan& plan, Index updates) {
  if (updates > 0) {
    return str("A lower optimizer.lr",
               plan.train.scaling.is_on() ? ", a longer warm-up or train.precision = bf16" : " or a longer warm-up",
               " may help");
  }
  const std::string precision = str(" too large for train.precision = ", plan.train.precision);
  return str("No update has been made, so the learning rate is not the reason: ",
             plan.init().empty() ? str("model.init_std = ", exact(plan.model.init_std), " may be")
                                 : str("the parameters of ", plan.init_key(), " = ", plan.init(), " may be broken, or"),
             precision);
}

}  // namespace megalith::train
