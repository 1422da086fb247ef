#include "megalith/ops/cuda/quantise_tiles.cuh"
#include "megalith/ops/quantise_rows_kernels.h"

namespace megalith::ops::cuda {
namespace {

/// A source of the kernel of quantise(): rows of x by their pairs.
template <class T>
struct GatheredRows {
  using Element = T;
  using Loaded = Eight<T>;
  static constexpr bool kStores = true, kGathers = true;
  static constexpr int kBlocks = sizeof(T) == 2 ? 3 : 2;
  const T* x;
  const std::int32_t* pair_of;
  std::uint32_t top_k;
  T* out;

  __device__ bool is_used(Index row) const { return __ldg(pair_of + row) != kUnusedRow; }
  __device__ int row_of(Index row) const {
    const int pair = __ldg(pair_of + row);
    return pair < 0 ? -1 : static_cast<int>(static_cast<std::uint32_t>(pair) / top_k);
  }
  __device__ Loaded load(Index element) const { return load_eight(x, element); }
  static __device__ Eight<T> numbers(const Loaded& loaded) { return loaded; }
  __device__ T one(Index element) const { return x[element]; }
};

}  // namespace

void quantise_rows(Stream stream, const QuantiseRows& args) {
  dispatch_element(args.x.dtype(), [&]<class T>() {
    T* const out = args.rows ? pointer<T>(args.rows) : nullptr;
    const GatheredRows<T> source{.x = pointer<const T>(args.x),
                                 .pair_of = pointer<const std::int32_t>(args.pair_of),
                                 .top_k = static_cast<std::uint32_t>(args.top_k),
                                 .out = out};
    quantise_from(stream, source, args.pair_of.numel(), args.x.dim(1), args.straight, args.turned, ScaleForm::f32, {},
                  {source.x, out});
  });
}

}  // namespace megalith::ops::cuda
