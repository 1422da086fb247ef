#include "megalith/ops/cpu/init.h"

#include <algorithm>

#include "megalith/base/hash.h"
#include "megalith/base/philox.h"
#include "megalith/ops/cpu/parallel.h"

namespace megalith::ops::cpu {
namespace {

/// Calls f.operator()<T>() with the type of any floating-point dtype.
template <class F>
void dispatch_any_float(DType dtype, F&& f) {
  if (dtype == DType::bf16) return f.template operator()<bfloat16>();
  if (dtype == DType::f16) return f.template operator()<float16>();
  dispatch_float(dtype, "cast", f);
}

template <class To, class From>
To converted(From value) {
  if constexpr (sizeof(To) == 2 || sizeof(From) == 2)
    return static_cast<To>(static_cast<float>(value));
  else
    return static_cast<To>(value);
}

}  // namespace

template <class T>
void initialise(const ParamSpec& spec, const Tensor& to, std::uint64_t seed) {
  T* out = to.data<T>();
  std::fill_n(out, to.numel(), spec.init == Init::ones ? T{1} : T{0});
  if (spec.init != Init::normal) return;
  const TensorSlice& slice = spec.slice;
  const RandomSite site{.seed = hash_combine(seed, fnv1a(slice.name))};
  const bool matrix = slice.global.rank() == 2;
  const Index rows = matrix ? slice.local[0] : 1;
  const Index columns = matrix ? slice.local[1] : slice.local[0];
  const Index row_offset = matrix ? slice.offset[0] : 0;
  const Index column_offset = slice.offset[matrix ? 1 : 0];
  const Index stride = matrix ? slice.global[1] : 0;
  parallel_rows(rows, columns, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      for (Index c = 0; c < columns; ++c) {
        const auto element = static_cast<std::uint64_t>((r + row_offset) * stride + c + column_offset);
        out[r * columns + c] = static_cast<T>(spec.init_std * site.normal(element));
      }
    }
  });
}

void cast(const Tensor& from, const Tensor& to) {
  dispatch_any_float(from.dtype(), [&]<class From>() {
    dispatch_any_float(to.dtype(), [&]<class To>() {
      const From* in = from.data<From>();
      To* out = to.data<To>();
      parallel_pieces(from.numel(), kPiece, from.numel(), [&](Index begin, Index count) {
        for (Index i = begin; i < begin + count; ++i) out[i] = converted<To>(in[i]);
      });
    });
  });
}

template void initialise<float>(const ParamSpec& spec, const Tensor& to, std::uint64_t seed);
template void initialise<double>(const ParamSpec& spec, const Tensor& to, std::uint64_t seed);

}  // namespace megalith::ops::cpu
