#pragma once
#include <span>

#include "megalith/ops/matmul.h"

namespace megalith::ops {

// Products of rows that lie together by group, each group by its own weight: the experts of a mixture. Group g has the
// rows behind those of the groups before it; rows behind the last group's are neither read nor written. Any group may
// be empty, or all, or have all rows.
//
// The backend is a loop, one product of ops/matmul.h a group: on a CPU the pieces of all of them are shared among the
// threads at once, on a GPU they run in several streams that join at the op's end. An op stands for a whole loop, so
// that how tokens are routed changes no step's ops. Bits of a group follow from its own shape.

inline constexpr Index kMaxGroups = 1024;

/// How many rows each group has. Read when the op runs and not when it is recorded, as a step's routing is known only
/// then: what it points to must stay until the ops have run. (Sizes that only the device knows will be a tensor beside
/// it.)
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

/// dw_g = dy_g^T x_g, or dw_g +=. An empty group's stays as it is, to the bit, where it accumulates, and is 0 where it
/// is overwritten.
struct GroupedWeightGrad {
  Tensor dy, x;  // in   [M, N], [M, K]
  Tensor dw;     // out  [E, N, K]; of x's dtype, or f32
  GroupSizes sizes;
  Write write = Write::accumulate;
};
void grouped_matmul_weight_grad(Exec& ex, const GroupedWeightGrad& args);

/// While it lives, these ops also run with other sizes on a GPU, up to one group with all rows, over operands of no
/// meaning, so that the library loads what any sizes need. To load it in a step would wait for the device, and so for
/// other ranks, which may wait for this one. For passes before the first step: results are undefined, and so are unused
/// rows. Does nothing on a CPU.
class AllGroupSizes {
 public:
  explicit AllGroupSizes(Exec& ex);
  ~AllGroupSizes();
  AllGroupSizes(const AllGroupSizes&) = delete;
  AllGroupSizes& operator=(const AllGroupSizes&) = delete;

 private:
  Exec& ex_;
};

/// The three as one: what the product of a group is.
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
  /// `first_row`: of the group.
  Matmul of(Index group, Index first_row) const { return of(group, first_row, size(group)); }
  Matmul of(Index group, Index first_row, Index count) const;
};

}  // namespace megalith::ops
