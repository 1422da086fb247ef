#pragma once
#include "megalith/ops/cuda/common.cuh"
#include "megalith/tensor/master_values.h"

// The two forms of masters for kernels that update N neighbours: the loads of several vectors are in flight before
// the first is used.

namespace megalith::ops::cuda {

/// Whole masters, and their copy in f16, which may be null.
struct WholeMasters {
  float* values;
  __half* copy;

  template <int N>
  using Loaded = Pack<float, N>;

  explicit WholeMasters(const MasterValues& masters)
      : values(pointer<float>(masters.whole)), copy(pointer<__half>(masters.copy)) {}
  bool is_aligned() const { return are_aligned({values, copy}); }

  template <int N>
  __device__ Loaded<N> load(Index element) const {
    return load_pack<N>(values, element);
  }
  template <int N>
  __device__ Values<float, N> unpacked(const Loaded<N>& loaded, Index /*element*/) const {
    return unpack(loaded);
  }
  template <int N>
  __device__ void store(Index element, const Values<float, N>& to) const {
    store_pack(values, element, pack<float>(to));
    if (copy != nullptr) store_pack(copy, element, pack<__half>(to));
  }
};

/// Split masters. Carries are rare: one element of 2^16 needs its own.
struct SplitMasters {
  std::uint16_t *copy, *low;
  unsigned long long* carries;
  Index first_carry;

  template <int N>
  struct Loaded {
    Pack<std::uint16_t, N> copy, low;
  };

  explicit SplitMasters(const MasterValues& masters)
      : copy(pointer<std::uint16_t>(masters.copy)),
        low(pointer<std::uint16_t>(masters.low)),
        carries(pointer<unsigned long long>(masters.carries)),
        first_carry(masters.first_carry) {}
  bool is_aligned() const { return are_aligned({copy, low}); }

  template <int N>
  __device__ Loaded<N> load(Index element) const {
    return {load_pack<N>(copy, element), load_pack<N>(low, element)};
  }
  template <int N>
  __device__ Values<float, N> unpacked(const Loaded<N>& loaded, Index element) const {
    std::uint16_t copies[N], lows[N];
    memcpy(copies, &loaded.copy.word, sizeof copies);
    memcpy(lows, &loaded.low.word, sizeof lows);
    Values<float, N> values;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      SplitF32 split{copies[i], lows[i]};
      if (split.needs_carry()) split.carry = (*word(element + i) & bit(element + i)) != 0;
      values[i] = split.joined();
    }
    return values;
  }
  template <int N>
  __device__ void store(Index element, const Values<float, N>& to) const {
    std::uint16_t copies[N], lows[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const SplitF32 split = SplitF32::of(to[i]);
      copies[i] = split.copy;
      lows[i] = split.low;
      if (split.needs_carry()) set(element + i, split.carry);
    }
    Loaded<N> packed;
    memcpy(&packed.copy.word, copies, sizeof copies);
    memcpy(&packed.low.word, lows, sizeof lows);
    store_pack(copy, element, packed.copy);
    store_pack(low, element, packed.low);
  }

 private:
  __device__ unsigned long long* word(Index element) const {
    return carries + static_cast<std::uint64_t>(first_carry + element) / MasterValues::kCarries;
  }
  __device__ unsigned long long bit(Index element) const {
    return 1ull << (static_cast<std::uint64_t>(first_carry + element) % MasterValues::kCarries);
  }
  /// Other threads may set other bits of the word at the same time.
  __device__ void set(Index element, bool carry) const {
    if (carry)
      atomicOr(word(element), bit(element));
    else
      atomicAnd(word(element), ~bit(element));
  }
};

/// f(WholeMasters or SplitMasters of `masters`)
template <class F>
void with_masters(const MasterValues& masters, F&& f) {
  if (masters.is_split())
    f(SplitMasters(masters));
  else
    f(WholeMasters(masters));
}

}  // namespace megalith::ops::cuda
