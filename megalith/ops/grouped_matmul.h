#pragma once
#include <span>

#include "megalith/ops/matmul.h"

namespace megalith::ops {

// Grouped GEMMs: rows lie together by group, and each group is multiplied by its own weight, as for the experts of a
// mixture. The rows of group g follow those of the groups before it. Rows after the last group's are neither read nor
// written. Any group may be empty, or all, or have all rows.
//
// The backend is a loop with one product of ops/matmul.h per group. On a CPU the threads share the pieces of all
// products at once. On a GPU the products run in several streams that join at the op's end. An op stands for a whole
// loop, so that the routing of tokens changes no step's ops. A group's bits follow from its own shape.

inline constexpr Index kMaxGroups = 1024;

/// How many rows each group has. It is read when the op runs and not when it is recorded, because a step's routing is
/// known only then. What it points to must stay until the ops have run. (Sizes that only the device knows will be a
/// tensor beside it.)
struct GroupSizes {
  std::span<const Index> host;
};

/// y_g = x_g w_g^T.  Sizes that are negative or sum up to more than M rows throw ShapeError when the op runs.
struct GroupedForward {
  Tensor x, w;  // in   [M, K], [E, N, K]
  Tensor y;     // out  [M, N]; of x's dtype, or f32
  GroupSizes sizes;
};
void grouped_matmul(Exec& ex, const GroupedForward& args);

/// dx_g = dy_g w_g.
struct GroupedInputGrad {
  Tensor dy, w;  // in   [M, N], [E, N, K]
  Tensor dx;     // out  [M, K]; of dy's dtype, or f32
  GroupSizes sizes;
};
void grouped_matmul_input_grad(Exec& ex, const GroupedInputGrad& args);

/// dw_g = dy_g^T x_g, or dw_g +=. For an empty group, dw_g keeps its bits where it accumulates, and is 0 where it is
/// overwritten.
struct GroupedWeightGrad {
  Tensor dy, x;  // in   [M, N], [M, K]
  Tensor dw;     // out  [E, N, K]; of x's dtype, or f32
  GroupSizes sizes;
  Write write = Write::accumulate;
};
void grouped_matmul_weight_grad(Exec& ex, const GroupedWeightGrad& args);

/// While it lives, these ops also run with other sizes on a GPU, up to one group with all rows, over operands without
/// meaning. So the library loads what any sizes need. Loading in a step would wait for the device, and so for other
/// ranks, which may wait for this one. Use it for passes before the first step: results are undefined, and so are
/// unused rows. It does nothing on a CPU.
class AllGroupSizes {
 public:
  explicit AllGroupSizes(Exec& ex);
  ~AllGroupSizes();
  AllGroupSizes(const AllGroupSizes&) = delete;
  AllGroupSizes& operator=(const AllGroupSizes&) = delete;

 private:
  Exec& ex_;
};

/// The three ops in one form: the GEMM of one group.
struct GroupedProduct {
  enum class Kind : std::uint8_t { forward, input_grad, weight_grad };
  Kind kind;
  Tensor rows;     ///< x, dy or dy
  Tensor weights;  ///< w, w or dw
  Tensor others;   ///< y, dx or x: the other tensor of rows
  std::span<const Index> sizes;
  Write write = Write::overwrite;

  Index size(Index group) const { return sizes[static_cast<std::size_t>(group)]; }
  bool has_work(Index group) const {
    return size(group) > 0 || (kind == Kind::weight_grad && write == Write::overwrite);
  }
  /// `first_row`: the group's first row.
  Matmul of(Index group, Index first_row) const { return of(group, first_row, size(group)); }
  Matmul of(Index group, Index first_row, Index count) const;
};

}  // namespace megalith::ops
