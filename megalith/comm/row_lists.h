#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megalith/tensor/tensor.h"

namespace megalith::comm {

// The lists of the row collectives (gather_rows and gather_sum_rows in group.h). They lie in the memory of the tensors,
// so a GPU may have made them. Their sizes are fixed, and how much of them is used is data. A place is a pair (member
// of the group, row of that member's matrix). All are row-major and contiguous: in CuTe's notation [P, 2] is (P, 2) :
// (2, 1).

/// Which rows a member pulls, and where they go. Pull i < p takes the row at sources[i]. The rows of the result that
/// want it are wants[begin[i]] to wants[begin[i + 1] - 1]. The rows of the result from wants[begin[p]] to wants[w - 1]
/// have no source and become zeros. All others keep what they hold.
///
///   counts [2]      2, 4          p = 2, w = 4
///   sources [P, 2]  (1, 5) (0, 2)
///   begin [P + 1]   0 2 3
///   wants [M]       0 3 1 2       out[0] = out[3] = row 5 of member 1, out[1] = row 2 of member 0, out[2] = 0
struct RowPulls {
  Tensor counts;   // [2] i32: p and w, from 0 to P and M
  Tensor sources;  // [P, 2] i32: places, of which p are read. No two are alike, so a row crosses a link once
  Tensor begin;    // [P + 1] i32: p + 1 numbers are read. The first is 0, none is less than the one before
  Tensor wants;    // [M] i32: rows of the result, of which w are read. No two are alike
};

inline constexpr std::int32_t kNoMember = -1;

/// The terms of sums of rows. Row t of the result is the sum over j, from begin[t] to begin[t + 1] - 1 in this order,
/// of weights[j] times the row at places[j]. A place with kNoMember has no row and is left out.
struct RowSums {
  Tensor begin;    // [n + 1] i32: the first is 0, none is less than the one before, the last is at most J
  Tensor places;   // [J, 2] i32
  Tensor weights;  // [J] f32 (f64 for f64), or undefined: all weights are 1
};

enum class Write : std::uint8_t { overwrite, accumulate };

/// The arguments of the row collectives.
struct GatherRows {
  Tensor mine;  // in   [N, W] of any dtype
  RowPulls pulls;
  Tensor out;  // out  [n, W]
};
struct GatherSumRows {
  Tensor mine;  // in   [N, W] f64, f32, bf16 or f16
  RowSums sums;
  Tensor out;  // out  [n, W]
  Write write = Write::overwrite;
};

/// Throws ShapeError if the tensors do not fit together.
void check_shapes(const GatherRows& args);
void check_shapes(const GatherSumRows& args);

// ---- Lists in host memory ----

struct RowPlace {
  std::int32_t member = 0, row = 0;
};
/// Those that are read.
std::span<const RowPlace> places_of(const GatherRows& args);
std::span<const RowPlace> places_of(const GatherSumRows& args);
/// The longest that list may be in another step.
inline std::size_t capacity_of(const GatherRows& args) { return static_cast<std::size_t>(args.pulls.sources.dim(0)); }
inline std::size_t capacity_of(const GatherSumRows& args) { return static_cast<std::size_t>(args.sums.places.dim(0)); }

/// What is wrong if a list names a member or a row that does not exist, or if its counts do not fit; otherwise empty.
/// In a group of `members`.
std::string fault_of_lists(int members, const GatherRows& args);
std::string fault_of_lists(int members, const GatherSumRows& args);

/// Columns of the matrices.
struct Columns {
  Index begin = 0, count = 0;
};
/// Does what the lists of `args` state, in these columns. rows[i] is the address of place i's first element in them,
/// null for kNoMember.
void take_rows(const GatherRows& args, std::span<const std::byte* const> rows, const Columns& columns);
/// Each element is summed alone, in f32 (f64 for f64) and by a fused multiply-add where the processor has one, as
/// ops::sum_rows() does. It is rounded once. With `accumulate` the terms are added to the element, one after the other.
void take_rows(const GatherSumRows& args, std::span<const std::byte* const> rows, const Columns& columns);
/// take_rows() where the matrix of every member is `mine`. `rows` keeps the addresses, so that a longer list of a later
/// step allocates nothing.
template <class Args>
void take_own_rows(const Args& args, std::vector<const std::byte*>& rows) {
  const std::span<const RowPlace> places = places_of(args);
  const Index row_bytes = args.mine.dim(1) * size_of(args.mine.dtype());
  rows.resize(std::max(rows.size(), capacity_of(args)));
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& [member, row] = places[i];
    rows[i] = member == kNoMember ? nullptr : static_cast<const std::byte*>(args.mine.raw()) + row * row_bytes;
  }
  take_rows(args, std::span(rows).first(places.size()), {0, args.mine.dim(1)});
}

}  // namespace megalith::comm
