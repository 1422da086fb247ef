#include "megalith/ops/cuda/quantise_tiles.cuh"

namespace megalith::ops::cuda {
namespace {

template <class T>
struct Numbers {
  using Element = T;
  using Loaded = Eight<T>;
  static constexpr bool kStores = false, kGathers = false;
  static constexpr int kBlocks = sizeof(T) == 2 ? 3 : 2;
  const T* x;
  __device__ Loaded load(Index element) const { return load_eight(x, element); }
  static __device__ Eight<T> numbers(const Loaded& loaded) { return loaded; }
  __device__ T one(Index element) const { return x[element]; }
};

}  // namespace

void quantise(Stream stream, const Quantise& args, const Tensor& sum_parts) {
  dispatch_element(args.x.dtype(), [&]<class T>() {
    quantise_from(stream, Numbers<T>{pointer<const T>(args.x)}, args.x.dim(0), args.x.dim(1), args.straight,
                  args.turned, args.form, args.groups, {args.x.raw()}, {args.column_sums, sum_parts});
  });
}

}  // namespace megalith::ops::cuda
