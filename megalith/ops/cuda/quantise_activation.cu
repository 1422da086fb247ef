#include "megalith/ops/cuda/gelu.cuh"
#include "megalith/ops/cuda/quantise_tiles.cuh"
#include "megalith/ops/cuda/silu.cuh"
#include "megalith/ops/quantise_activation_kernels.h"

// Sources of the kernel of quantise(): the numbers of an activation or of its gradient, rounded to T as by the
// kernels that store them.

namespace megalith::ops::cuda {
namespace {

template <class T>
__device__ float number(const T* x, Index element) {
  return static_cast<float>(x[element]);
}

template <class T, GeluForm kForm>
struct GeluNumbers {
  using Element = T;
  using Loaded = Eight<T>;
  static constexpr bool kStores = true, kGathers = false;
  static constexpr int kBlocks = 3;
  const T* z;
  T* out;

  static __device__ float activated(float at) { return at * gelu_gate_of<kForm>(at); }
  __device__ Loaded load(Index element) const { return load_eight(z, element); }
  static __device__ Eight<T> numbers(const Loaded& loaded) {
    Values<float, kEach> all = numbers_of(loaded);
#pragma unroll
    for (int i = 0; i < kEach; ++i) all[i] = activated(all[i]);
    return eight_of<T>(all);
  }
  __device__ T one(Index element) const { return convert<T>(activated(number(z, element))); }
};

template <class T, GeluForm kForm>
struct GeluGradients {
  using Element = T;
  struct Loaded {
    Eight<T> z, dy;
  };
  static constexpr bool kStores = true, kGathers = false;
  static constexpr int kBlocks = 3;
  const T *z, *dy;
  T* out;

  __device__ Loaded load(Index element) const { return {load_eight(z, element), load_eight(dy, element)}; }
  static __device__ Eight<T> numbers(const Loaded& loaded) {
    const Values<float, kEach> at = numbers_of(loaded.z);
    Values<float, kEach> all = numbers_of(loaded.dy);
#pragma unroll
    for (int i = 0; i < kEach; ++i) all[i] *= gelu_slope_of<kForm>(at[i]);
    return eight_of<T>(all);
  }
  __device__ T one(Index element) const {
    return convert<T>(number(dy, element) * gelu_slope_of<kForm>(number(z, element)));
  }
};

template <class T>
struct SwigluNumbers {
  using Element = T;
  struct Loaded {
    Eight<T> pairs[2];
  };
  static constexpr bool kStores = true, kGathers = false;
  static constexpr int kBlocks = 2;
  const T* gate_up;
  T* out;

  static __device__ float activated(float gate, float up) { return gate * silu_gate(gate) * up; }
  __device__ Loaded load(Index element) const {
    return {{load_eight(gate_up, 2 * element), load_eight(gate_up, 2 * element + kEach)}};
  }
  static __device__ Eight<T> numbers(const Loaded& loaded) {
    Values<float, kEach> all;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Values<float, kEach> pairs = numbers_of(loaded.pairs[half]);
#pragma unroll
      for (int i = 0; i < kEach / 2; ++i) all[half * kEach / 2 + i] = activated(pairs[2 * i], pairs[2 * i + 1]);
    }
    return eight_of<T>(all);
  }
  __device__ T one(Index element) const {
    return convert<T>(activated(number(gate_up, 2 * element), number(gate_up, 2 * element + 1)));
  }
};

/// The gradients of the pairs (gate, up).
template <class T>
struct SwigluGradients {
  using Element = T;
  struct Loaded {
    Eight<T> pairs;
    Pack<T, kEach / 2> dy;
  };
  static constexpr bool kStores = true, kGathers = false;
  static constexpr int kBlocks = 2;
  const T *gate_up, *dy;
  T* out;

  static __device__ float2 gradients(float d, float gate, float up) {
    const float s = silu_gate(gate);
    return {d * up * (s * (1.0f + gate * (1.0f - s))), d * (gate * s)};
  }
  __device__ Loaded load(Index element) const {
    return {load_eight(gate_up, element), load_pack<kEach / 2>(dy, element / 2)};
  }
  static __device__ Eight<T> numbers(const Loaded& loaded) {
    Values<float, kEach> all = numbers_of(loaded.pairs);
    const Values<float, kEach / 2> d = unpack(loaded.dy);
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
      const float2 pair = gradients(d[i], all[2 * i], all[2 * i + 1]);
      all[2 * i] = pair.x;
      all[2 * i + 1] = pair.y;
    }
    return eight_of<T>(all);
  }
  __device__ T one(Index element) const {
    const Index gate = element / 2 * 2;
    const float2 pair = gradients(number(dy, element / 2), number(gate_up, gate), number(gate_up, gate + 1));
    return convert<T>(element == gate ? pair.x : pair.y);
  }
};

}  // namespace

void quantise_activation(Stream stream, const QuantiseActivation& args) {
  dispatch_element(args.z.dtype(), [&]<class T>() {
    const T* const z = pointer<const T>(args.z);
    T* const y = args.y ? pointer<T>(args.y) : nullptr;
    const auto run = [&](const auto& source) {
      const Index columns = args.activation == Activation::swiglu ? args.z.dim(1) / 2 : args.z.dim(1);
      quantise_from(stream, source, args.z.dim(0), columns, args.straight, args.turned, ScaleForm::f32, args.groups,
                    {z, y});
    };
    if (args.activation == Activation::swiglu) return run(SwigluNumbers<T>{z, y});
    if (args.activation == Activation::gelu) return run(GeluNumbers<T, GeluForm::tanh>{z, y});
    run(GeluNumbers<T, GeluForm::erf>{z, y});
  });
}

void quantise_activation_backward(Stream stream, const QuantiseActivationBackward& args, const Tensor& sum_parts) {
  dispatch_element(args.z.dtype(), [&]<class T>() {
    const T *const z = pointer<const T>(args.z), *const dy = pointer<const T>(args.dy);
    T* const dz = args.dz ? pointer<T>(args.dz) : nullptr;
    const auto run = [&](const auto& source) {
      quantise_from(stream, source, args.z.dim(0), args.z.dim(1), args.straight, args.turned, ScaleForm::f32, {},
                    {z, dy, dz}, {args.column_sums, sum_parts});
    };
    if (args.activation == Activation::swiglu) return run(SwigluGradients<T>{z, dy, dz});
    if (args.activation == Activation::gelu) return run(GeluGradients<T, GeluForm::tanh>{z, dy, dz});
    run(GeluGradients<T, GeluForm::erf>{z, dy, dz});
  });
}

}  // namespace megalith::ops::cuda
