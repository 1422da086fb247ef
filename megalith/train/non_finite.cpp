#include "megalith/train/non_finite.h"

#include <algorithm>
#include <vector>

#include "megalith/base/str.h"
#include "megalith/params/non_finite.h"
#include "megalith/train/gather.h"
#include "megalith/train/host_staging.h"

namespace megalith::train {
namespace {

/// Adds a tensor of the device block by block.
void add_blocks(FirstNonFinite& first, Exec& ex, HostStaging& staging, const std::string& name, const Tensor& tensor) {
  const Index most = HostStaging::kBytes / size_of(tensor.dtype());
  for (Index at = 0; at < tensor.numel() && first.is_wanted(name); at += most)
    first.add(name, staging.read(ex, tensor, at, std::min(most, tensor.numel() - at)));
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
    for (const Param& param : buffer.params()) add_blocks(first, ex, staging, param.name(), param.grad);
  if (!first.is_found()) return {};
  return {first.order(), str("on rank ", rank, " the gradient of ", first.parameter(), " = ", first.value())};
}

}  // namespace

std::string non_finite_parameter(comm::World& world, Exec& ex, const ParamSet& params, Gradients gradients) {
  HostStaging staging;
  std::string value = share_least_text(world, first_value(ex, staging, params, world.rank()));
  if (!value.empty() || gradients == Gradients::replaced) return value;
  return share_least_text(world, first_gradient(ex, staging, params, world.rank()));
}

std::string ranks_with_non_finite(comm::World& world, bool mine) {
  std::uint64_t flag = mine ? 1 : 0;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  Exec host;
  comm::all_gather(host, world.all(), Tensor(&flag, {1}, DType::u64), Tensor(all.data(), {world.size()}, DType::u64))
      .wait(host);
  std::string ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != 0) ranks += str(ranks.empty() ? "" : ", ", rank);
  return ranks;
}

}  // namespace megalith::train
