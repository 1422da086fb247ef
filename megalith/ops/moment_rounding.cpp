#include "megalith/ops/moment_rounding.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"

namespace megalith::ops {

RoundedParam RoundedParam::of(const TensorSlice& slice, Index begin, std::uint64_t seed) {
  RoundedParam param{.seed = hash_combine(hash_combine(seed, fnv1a("moments")), fnv1a(slice.name)), .begin = begin};
  // From the last dimension on: those that the slice covers, and the first one that it cuts, are one run.
  Index distance = 1;  // in the global tensor, of neighbours along dimension d
  bool is_cut = false;
  for (int d = slice.global.rank(); d-- > 0;) {
    const bool cuts = slice.local[d] != slice.global[d];
    if (is_cut && cuts && d > 0)
      throw InternalError(str("[RoundedParam] ", slice.name, ": a slice ", slice.local, " of ", slice.global,
                              ": its runs have several distances"));
    param.first += slice.offset[static_cast<std::size_t>(d)] * distance;
    distance *= slice.global[d];
    if (!is_cut) {
      param.run *= slice.local[d];
      param.stride = distance;
    }
    is_cut = is_cut || cuts;
  }
  param.run = std::max<std::int64_t>(param.run, 1);
  return param;
}

}  // namespace megalith::ops
