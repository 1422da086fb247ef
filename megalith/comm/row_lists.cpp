#include "megalith/comm/row_lists.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::comm {
namespace {

constexpr Index kMaxRows = std::numeric_limits<std::int32_t>::max();  ///< as lists have numbers of 32 bits

void check_matrices(std::string_view op, const Tensor& mine, const Tensor& out) {
  if (!mine || !out) throw ShapeError(str('[', op, "] there is no tensor '", mine ? "out" : "mine", "'"));
  if (mine.dtype() != out.dtype()) {
    throw ShapeError(
        str('[', op, "] dtype = ", name_of(mine.dtype()), " in and ", name_of(out.dtype()), " out: must be the same"));
  }
  if (mine.shape().rank() != 2 || out.shape().rank() != 2 || mine.dim(1) != out.dim(1)) {
    throw ShapeError(str('[', op, "] shapes ", mine.shape(), " and ", out.shape(), ": must be [N, W] and [n, W]"));
  }
  for (const Index size : {mine.dim(0), mine.dim(1), out.dim(0)}) {
    if (size > kMaxRows)
      throw ShapeError(str('[', op, "] shapes ", mine.shape(), " and ", out.shape(), ": must be below 2^31"));
  }
}

/// A list of `op`: i32, of this shape.
void check_list(std::string_view op, std::string_view name, const Tensor& list, const Shape& wanted) {
  if (!list) throw ShapeError(str('[', op, "] there is no list '", name, "'"));
  if (list.dtype() != DType::i32) expect_dtype(list, DType::i32, str(op, '.', name));
  if (list.shape() != wanted) expect_shape(list, wanted, str(op, '.', name));
}

Index length_of(std::string_view op, std::string_view name, const Tensor& list) {
  if (!list || list.shape().rank() == 0) throw ShapeError(str('[', op, "] there is no list '", name, "'"));
  return list.dim(0);
}

// These return what is wrong with a list, or nothing.

enum class NoMember : std::uint8_t { allowed, refused };

std::string fault_of_places(std::string_view name, std::span<const RowPlace> places, int members, Index rows,
                            NoMember no_member) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    const RowPlace& place = places[i];
    if (place.member == kNoMember && no_member == NoMember::allowed) continue;
    if (place.member >= 0 && place.member < members && place.row >= 0 && place.row < rows) continue;
    return str(name, '[', i, "] = (", place.member, ", ", place.row, "): must be a member from 0 to ", members - 1,
               " and a row from 0 to ", rows - 1);
  }
  return {};
}

std::string fault_of_count(std::string_view name, Index count, Index most) {
  if (count >= 0 && count <= most) return {};
  return str(name, " = ", count, ": must be from 0 to ", most, ", the length of the list");
}

/// begin[0] to begin[count] ascend from 0 to at most `most`.
std::string fault_of_begin(const Tensor& list, Index count, Index most) {
  const auto* begin = list.data<std::int32_t>();
  if (begin[0] != 0) return str("begin[0] = ", begin[0], ": must be 0");
  for (Index i = 0; i < count; ++i) {
    if (begin[i + 1] >= begin[i] && begin[i + 1] <= most) continue;
    return str("begin[", i + 1, "] = ", begin[i + 1], ": must be from ", begin[i], " to ", most);
  }
  return {};
}

std::string fault_of_wants(std::span<const std::int32_t> wants, Index rows) {
  for (std::size_t i = 0; i < wants.size(); ++i) {
    if (wants[i] < 0 || wants[i] >= rows)
      return str("wants[", i, "] = ", wants[i], ": must be a row from 0 to ", rows - 1);
  }
  return {};
}

std::span<const RowPlace> first_places(const Tensor& list, Index count) {
  return {reinterpret_cast<const RowPlace*>(list.data<std::int32_t>()), static_cast<std::size_t>(count)};
}

std::byte* address(const Tensor& matrix, Index row, Index column) {
  return static_cast<std::byte*>(matrix.raw()) + (row * matrix.dim(1) + column) * size_of(matrix.dtype());
}

template <class T>
using SumType = std::conditional_t<std::is_same_v<T, double>, double, float>;

enum class Product : std::uint8_t { fused, rounded };

template <Product kProduct, class A>
[[gnu::always_inline]] inline A plus_product(A sum, A weight, A value) {
  if constexpr (kProduct == Product::rounded) {
    return sum + weight * value;
  } else if constexpr (std::is_same_v<A, double>) {
    return __builtin_fma(weight, value, sum);
  } else {
    return __builtin_fmaf(weight, value, sum);
  }
}

/// The terms of one row's sum.
template <class T>
struct Terms {
  const std::byte* const* rows = nullptr;
  const SumType<T>* weights = nullptr;  ///< null: all 1
  Index count = 0;
};

template <Product kProduct, class T>
[[gnu::always_inline]] inline void sum_row(const Terms<T>& terms, T* out, Index columns, Write write) {
  using A = SumType<T>;
  constexpr Index kBlock = 256;  // its sums stay in the first-level cache
  alignas(64) std::array<A, kBlock> sums;
  for (Index at = 0; at < columns; at += kBlock) {
    const Index count = std::min(kBlock, columns - at);
    for (Index i = 0; i < count; ++i) sums.data()[i] = write == Write::accumulate ? static_cast<A>(out[at + i]) : A{};
    for (Index term = 0; term < terms.count; ++term) {
      if (terms.rows[term] == nullptr) continue;
      const T* row = reinterpret_cast<const T*>(terms.rows[term]) + at;
      const A weight = terms.weights == nullptr ? A{1} : terms.weights[term];
      for (Index i = 0; i < count; ++i)
        sums.data()[i] = plus_product<kProduct>(sums.data()[i], weight, static_cast<A>(row[i]));
    }
    for (Index i = 0; i < count; ++i) out[at + i] = static_cast<T>(sums.data()[i]);
  }
}

template <class T>
using SumRow = void (*)(const Terms<T>&, T*, Index, Write);

template <class T>
void sum_row_baseline(const Terms<T>& terms, T* out, Index columns, Write write) {
  sum_row<Product::rounded>(terms, out, columns, write);
}

#if defined(__x86_64__)
// ops::sum_rows() fuses on the same processors, so that both give the same bits.
template <class T>
[[gnu::target("avx2,fma")]] void sum_row_fused(const Terms<T>& terms, T* out, Index columns, Write write) {
  sum_row<Product::fused>(terms, out, columns, write);
}
template <class T>
SumRow<T> best_sum_row() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? sum_row_fused<T> : sum_row_baseline<T>;
}
#else
template <class T>
SumRow<T> best_sum_row() {
  return sum_row_baseline<T>;
}
#endif

template <class T>
void take_sums(const GatherSumRows& args, std::span<const std::byte* const> rows, const Columns& columns) {
  const SumRow<T> sum = best_sum_row<T>();
  const auto* begin = args.sums.begin.data<std::int32_t>();
  const SumType<T>* weights = args.sums.weights ? args.sums.weights.data<SumType<T>>() : nullptr;
  for (Index t = 0; t < args.out.dim(0); ++t) {
    const Terms<T> terms{.rows = rows.data() + begin[t],
                         .weights = weights == nullptr ? nullptr : weights + begin[t],
                         .count = begin[t + 1] - begin[t]};
    sum(terms, reinterpret_cast<T*>(address(args.out, t, columns.begin)), columns.count, args.write);
  }
}

}  // namespace

void check_shapes(const GatherRows& args) {
  constexpr std::string_view kOp = "gather_rows";
  check_matrices(kOp, args.mine, args.out);
  const RowPulls& pulls = args.pulls;
  const Index capacity = length_of(kOp, "sources", pulls.sources);
  check_list(kOp, "counts", pulls.counts, {2});
  check_list(kOp, "sources", pulls.sources, {capacity, 2});
  check_list(kOp, "begin", pulls.begin, {capacity + 1});
  check_list(kOp, "wants", pulls.wants, {length_of(kOp, "wants", pulls.wants)});
}

void check_shapes(const GatherSumRows& args) {
  constexpr std::string_view kOp = "gather_sum_rows";
  check_matrices(kOp, args.mine, args.out);
  const DType dtype = args.mine.dtype();
  if (dtype != DType::f64 && dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    throw ShapeError(str('[', kOp, "] dtype = ", name_of(dtype), ": must be f64, f32, bf16 or f16"));
  const Index terms = length_of(kOp, "places", args.sums.places);
  check_list(kOp, "begin", args.sums.begin, {args.out.dim(0) + 1});
  check_list(kOp, "places", args.sums.places, {terms, 2});
  if (!args.sums.weights) return;
  expect_dtype(args.sums.weights, dtype == DType::f64 ? DType::f64 : DType::f32, "gather_sum_rows.weights");
  expect_shape(args.sums.weights, {terms}, "gather_sum_rows.weights");
}

std::span<const RowPlace> places_of(const GatherRows& args) {
  return first_places(args.pulls.sources, args.pulls.counts.data<std::int32_t>()[0]);
}

std::span<const RowPlace> places_of(const GatherSumRows& args) {
  return first_places(args.sums.places, args.sums.begin.data<std::int32_t>()[args.out.dim(0)]);
}

std::string fault_of_lists(int members, const GatherRows& args) {
  const RowPulls& pulls = args.pulls;
  const auto* counts = pulls.counts.data<std::int32_t>();
  std::string fault = fault_of_count("counts[0]", counts[0], pulls.sources.dim(0));
  if (fault.empty()) fault = fault_of_count("counts[1]", counts[1], pulls.wants.dim(0));
  if (fault.empty()) fault = fault_of_begin(pulls.begin, counts[0], counts[1]);
  if (fault.empty()) fault = fault_of_places("sources", places_of(args), members, args.mine.dim(0), NoMember::refused);
  if (!fault.empty()) return fault;
  return fault_of_wants(pulls.wants.span<std::int32_t>().first(static_cast<std::size_t>(counts[1])), args.out.dim(0));
}

std::string fault_of_lists(int members, const GatherSumRows& args) {
  std::string fault = fault_of_begin(args.sums.begin, args.out.dim(0), args.sums.places.dim(0));
  return fault.empty() ? fault_of_places("places", places_of(args), members, args.mine.dim(0), NoMember::allowed)
                       : fault;
}

void take_rows(const GatherRows& args, std::span<const std::byte* const> rows, const Columns& columns) {
  const auto *begin = args.pulls.begin.data<std::int32_t>(), *wants = args.pulls.wants.data<std::int32_t>();
  const auto bytes = static_cast<std::size_t>(columns.count * size_of(args.out.dtype()));
  if (bytes == 0) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (Index want = begin[i]; want < begin[i + 1]; ++want)
      std::memcpy(address(args.out, wants[want], columns.begin), rows[i], bytes);
  }
  const Index end = args.pulls.counts.data<std::int32_t>()[1];
  for (Index want = begin[rows.size()]; want < end; ++want)
    std::memset(address(args.out, wants[want], columns.begin), 0, bytes);
}

void take_rows(const GatherSumRows& args, std::span<const std::byte* const> rows, const Columns& columns) {
  dispatch_float(args.out.dtype(), "gather_sum_rows", [&]<class T>() { take_sums<T>(args, rows, columns); });
}

}  // namespace megalith::comm
