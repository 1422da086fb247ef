#include "megalith/base/hash.h"
#include "megalith/ops/cuda/elementwise.h"
#include "megalith/ops/cuda/init.h"
#include "megalith/ops/cuda/map.cuh"

namespace megalith::ops::cuda {
namespace {

/// out = std * the normal number of the global element: an op of the map kernel over the held box.  1 element moved.
struct Normal {
  RandomSite site;
  Index first_row, first_column, stride;  // of the box in the global tensor
  double std;

  template <class V, int N>
  __device__ void operator()(const Place& place, const Values<V, N>*, Values<V, N>* out) const {
    const Index element = (first_row + place.row) * stride + first_column + place.column;
    for (int i = 0; i < N; ++i) out[0][i] = static_cast<V>(std * site.normal(static_cast<std::uint64_t>(element + i)));
  }
};

}  // namespace

void initialise(Stream stream, const ParamSpec& spec, const Tensor& to, std::uint64_t seed) {
  fill(stream, to, spec.init == Init::ones ? 1 : 0);
  if (spec.init != Init::normal) return;
  const TensorSlice& slice = spec.slice;
  const bool matrix = slice.global.rank() == 2;
  const Matrix held{matrix ? slice.local[0] : 1, slice.local[matrix ? 1 : 0]};  // without padding rows
  const Normal normal{.site = {.seed = hash_combine(seed, fnv1a(slice.name))},
                      .first_row = matrix ? slice.offset[0] : 0,
                      .first_column = slice.offset[matrix ? 1 : 0],
                      .stride = matrix ? slice.global[1] : 0,
                      .std = spec.init_std};
  const auto run = [&]<class T>() { map(stream, held, std::array<const T*, 0>{}, std::array{pointer<T>(to)}, normal); };
  if (to.dtype() == DType::f64) return run.template operator()<double>();
  run.template operator()<float>();
}

}  // namespace megalith::ops::cuda
