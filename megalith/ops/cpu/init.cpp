#include <algorithm>
#include <type_traits>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/init_kernels.h"

namespace megalith::ops::cpu {
namespace {

template <class From, class To>
void cast_piece(const From* from, To* to, Index n) {
  if constexpr (std::is_same_v<From, Arithmetic<To>>)
    kernels<To>().elementwise.round(from, to, n);
  else if constexpr (std::is_same_v<Arithmetic<From>, To>)
    kernels<From>().elementwise.widen(from, to, n);
  else
    for (Index i = 0; i < n; ++i) to[i] = converted<To>(from[i]);
}

}  // namespace

void initialise(const InitialValues& values, const Tensor& to, std::uint64_t seed) {
  dispatch_wide(to.dtype(), "initialise", [&]<class T>() {
    T* out = to.data<T>();
    std::fill_n(out, to.numel(), values.init == Init::ones ? T{1} : T{0});
    if (values.init != Init::normal) return;
    const NormalBox box(values.slice, seed);
    parallel_rows(box.rows, box.columns, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        for (Index c = 0; c < box.columns; ++c) out[r * box.columns + c] = static_cast<T>(values.std * box.at(r, c));
      }
    });
  });
}

void cast(const Tensor& from, const Tensor& to) {
  dispatch_float(from.dtype(), "cast", [&]<class From>() {
    dispatch_float(to.dtype(), "cast", [&]<class To>() {
      const From* in = from.data<From>();
      To* out = to.data<To>();
      parallel_pieces(from.numel(), kPiece, from.numel(),
                      [&](Index begin, Index count) { cast_piece(in + begin, out + begin, count); });
    });
  });
}

}  // namespace megalith::ops::cpu
