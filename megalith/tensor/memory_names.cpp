#include "megalith/tensor/memory_names.h"

#include <algorithm>

#include "megalith/base/str.h"

namespace megalith {
namespace {

constexpr Index kInLayer = Index{1} << 20;  // more than a layer has parameters, and a chunk ops

}  // namespace

StepOrder forward_order(Index microbatch, Index layer, Index num_layers, Index op) {
  return {StepOrder::Part::activations, (microbatch * num_layers + layer) * kInLayer + op};
}

StepOrder backward_order(Index microbatch, Index layer, Index num_layers, Index op) {
  constexpr Index kFirst = -(Index{1} << 62);
  return {StepOrder::Part::gradients, kFirst + ((microbatch + 1) * num_layers - layer) * kInLayer + op};
}

void add_name(MemoryNames& names, const Tensor& tensor, const StepOrder& order, std::string name) {
  names.push_back({static_cast<const std::byte*>(tensor.raw()), tensor.bytes(), order, std::move(name)});
}

void add_names(MemoryNames& names, const ParamBuffer& params, const Tensor& flat, StepOrder::Part part,
               std::string_view what) {
  const bool is_whole = flat.numel() == params.numel();
  const std::vector<OwnRange> ranges = is_whole ? std::vector<OwnRange>{{0, 0, flat.numel()}} : params.own_ranges();
  Index count = 0;
  for (const Param& param : params.params()) {
    const Index position = (param.spec.layer + 1) * kInLayer + count++;
    const Index within = part == StepOrder::Part::gradients ? -position : position;
    for (const OwnRange& range : ranges) {
      const Index begin = std::max(param.offset, range.in_whole);
      const Index end = std::min(param.offset + param.spec.held.numel(), range.in_whole + range.count);
      if (begin >= end) continue;
      add_name(names, flat.rows(range.in_own + begin - range.in_whole, end - begin), {part, within},
               str(what, " of ", param.name()));
    }
  }
}

}  // namespace megalith
