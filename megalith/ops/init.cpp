#include "megalith/ops/init.h"

#include <algorithm>

#include "megalith/base/hash.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/init_kernels.h"

namespace megalith::ops {

NormalBox::NormalBox(const TensorSlice& slice, std::uint64_t seed)
    : site{.seed = hash_combine(seed, fnv1a(slice.name))} {
  const int last = slice.global.rank() - 1;
  columns = slice.local[last];
  first_column = slice.offset[static_cast<std::size_t>(last)];
  stride = slice.global[last];
  for (int d = last; d-- > 0;) {
    const int to = kOuter - (last - d);
    local[to] = slice.local[d];
    global[to] = slice.global[d];
    offset[to] = slice.offset[static_cast<std::size_t>(d)];
    rows *= slice.local[d];
  }
}

void initialise(Exec& ex, const InitialValues& values, const Tensor& to, std::uint64_t seed) {
  expect_float(ex, to, "initialise");
  Shape held = values.slice.local;
  if (held.rank() > 0) held.set(0, std::max(held[0], to.shape().rank() > 0 ? to.shape()[0] : 0));  // padding rows
  expect_like(to, held, statistics_dtype(to.dtype()), "initialise.to");
  run_kernel(
      ex, {.name = "initialise", .reads = {}, .writes = {to}}, [&] { cpu::initialise(values, to, seed); },
      [&](auto&, auto stream) { cuda::initialise(stream, values, to, seed); });
}

void cast(Exec& ex, const Tensor& from, const Tensor& to) {
  expect_shape(to, from.shape(), "cast.to");
  run_kernel(
      ex, {.name = "cast", .reads = {from}, .writes = {to}}, [=] { cpu::cast(from, to); },
      [=](auto&, auto stream) { cuda::cast(stream, from, to); });
}

}  // namespace megalith::ops
