#include "megalith/params/param_names.h"

#include <algorithm>

#include "megalith/base/str.h"

namespace megalith {

void add_names(MemoryNames& names, const ParamBuffer& params, const Tensor& flat, StepOrder::Part part,
               std::string_view what) {
  const OwnRange whole{0, 0, flat.dim(0)};
  const bool is_whole = flat.dim(0) == params.numel();
  add_names(names, params, flat, part, what, is_whole ? std::span(&whole, 1) : std::span(params.own_ranges()));
}

void add_names(MemoryNames& names, const ParamBuffer& params, const Tensor& flat, StepOrder::Part part,
               std::string_view what, std::span<const OwnRange> ranges) {
  Index count = 0;
  for (const Param& param : params.params()) {
    const Index position = (param.spec.layer + 1) * StepOrder::kInLayer + count++;
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
