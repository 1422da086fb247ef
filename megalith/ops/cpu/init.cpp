#include "megalith/ops/cpu/init.h"

#include <algorithm>

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
  const NormalBox box(spec, seed);
  parallel_rows(box.rows, box.columns, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      for (Index c = 0; c < box.columns; ++c) out[r * box.columns + c] = static_cast<T>(spec.init_std * box.at(r, c));
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
