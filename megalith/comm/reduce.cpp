#include "megalith/comm/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace megalith::comm {
namespace {

/// Sums wrap around where the type has a range, without the undefined overflow of signed numbers.
template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <Reduce kReduce, class T>
T combine(T a, T b) {
  if constexpr (kReduce == Reduce::sum) return add(a, b);
  // "|", not "||": without a branch the loop is vectorised.
  if constexpr (kReduce == Reduce::max) return (b > a) | (b != b) ? b : a;
  if constexpr (kReduce == Reduce::min) return (b < a) | (b != b) ? b : a;
}

template <class T, Reduce kReduce>
void reduce_typed(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, Index begin,
                  Index end) {
  using Sum = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;
  constexpr Index kBlock = 8192 / static_cast<Index>(sizeof(Sum));  // stays in the first-level cache
  alignas(64) Sum sums[kBlock];
  alignas(64) T rounded[std::is_same_v<T, Sum> ? 1 : kBlock];
  for (Index at = begin; at < end; at += kBlock) {
    const Index count = std::min(kBlock, end - at);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + at;
    for (Index i = 0; i < count; ++i) sums[i] = static_cast<Sum>(first[i]);
    for (const std::byte* input : inputs.subspan(1)) {
      const T* next = reinterpret_cast<const T*>(input) + at;
      for (Index i = 0; i < count; ++i) sums[i] = combine<kReduce>(sums[i], static_cast<Sum>(next[i]));
    }
    const void* result = sums;
    if constexpr (!std::is_same_v<T, Sum>) {
      for (Index i = 0; i < count; ++i) rounded[i] = static_cast<T>(sums[i]);
      result = rounded;
    }
    for (std::byte* output : outputs) {
      std::memcpy(reinterpret_cast<T*>(output) + at, result, static_cast<std::size_t>(count) * sizeof(T));
    }
  }
}

template <class T>
void reduce_by(Reduce reduce, std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
               Index begin, Index end) {
  switch (reduce) {
    case Reduce::sum:
      return reduce_typed<T, Reduce::sum>(inputs, outputs, begin, end);
    case Reduce::max:
      return reduce_typed<T, Reduce::max>(inputs, outputs, begin, end);
    case Reduce::min:
      return reduce_typed<T, Reduce::min>(inputs, outputs, begin, end);
  }
}

}  // namespace

void reduce_into(DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                 std::span<std::byte* const> outputs, Index begin, Index end) {
  switch (dtype) {
    case DType::f64:
      return reduce_by<double>(reduce, inputs, outputs, begin, end);
    case DType::f32:
      return reduce_by<float>(reduce, inputs, outputs, begin, end);
    case DType::bf16:
      return reduce_by<bfloat16>(reduce, inputs, outputs, begin, end);
    case DType::i64:
      return reduce_by<std::int64_t>(reduce, inputs, outputs, begin, end);
    case DType::i32:
      return reduce_by<std::int32_t>(reduce, inputs, outputs, begin, end);
    case DType::u64:
      return reduce_by<std::uint64_t>(reduce, inputs, outputs, begin, end);
    case DType::u8:
      return reduce_by<std::uint8_t>(reduce, inputs, outputs, begin, end);
    case DType::f16:
      return reduce_by<float16>(reduce, inputs, outputs, begin, end);
  }
}

}  // namespace megalith::comm
