#pragma once
#include "megalith/ops/group_rows.h"
#include "megalith/ops/matmul.h"

namespace megalith::ops {

// Grouped GEMMs: rows lie together by group (group_rows.h), and each group is multiplied by its own weight, as for the
// experts of a mixture. Any group may be empty, or all, or have all rows. A step's routing is known only when an op
// runs, not when it is recorded, so an op stands for all groups, and the routing of tokens changes no step's ops.
//
// Two backends. A loop has one product of ops/matmul.h per group. On a CPU the threads share the pieces of all products
// at once. On a GPU the host knows the groups (GroupRows::host), and the products run in several streams that join at
// the op's end. On Hopper GPUs one kernel (cuda/grouped_product.h) reads the groups on the device, if they begin at
// multiples of kGroupedKernelRows. A group's bits follow from its own rows, and in a loop from their number.

/// GroupRows::alignment of groups for the kernel.
inline constexpr Index kGroupedKernelRows = 128;
/// Whether grouped GEMMs can run as the kernel, for experts of weights [F, H] or [2F, H] and [H, F], or what keeps them
/// from it: a CPU, numbers of more than 16 bits, F or H that is no multiple of 8, another GPU than Hopper's. Where
/// there is no GPU, as for a plan of another machine, Hopper is assumed.
enum class GroupedKernelFit : std::uint8_t { fits, on_cpu, wide_numbers, odd_widths, other_gpu };
GroupedKernelFit grouped_kernel_fit(Device device, DType dtype, Index hidden, Index ffn);
/// The alignment that lets them run as the kernel; 1 where they cannot.
inline Index grouped_kernel_alignment(Device device, DType dtype, Index hidden, Index ffn) {
  return grouped_kernel_fit(device, dtype, hidden, ffn) == GroupedKernelFit::fits ? kGroupedKernelRows : 1;
}
/// What widths of experts must be multiples of, for the kernel: 16 bytes.
inline constexpr Index kGroupedKernelWidths = 8;

/// y_g = x_g w_g^T.  Groups that overlap or leave the M rows throw ShapeError when a loop over them runs.
struct GroupedForward {
  Tensor x, w;  // in   [M, K], [E, N, K]
  Tensor y;     // out  [M, N]; of x's dtype, or f32
  GroupRows groups;
};
void grouped_matmul(Exec& ex, const GroupedForward& args);

/// dx_g = dy_g w_g.
struct GroupedInputGrad {
  Tensor dy, w;  // in   [M, N], [E, N, K]
  Tensor dx;     // out  [M, K]; of dy's dtype, or f32
  GroupRows groups;
};
void grouped_matmul_input_grad(Exec& ex, const GroupedInputGrad& args);

/// dw_g = dy_g^T x_g, or dw_g +=. For an empty group, dw_g keeps its bits where it accumulates, and is 0 where it is
/// overwritten.
/// With `squares` the norm of dw needs no pass over it. The kernel sums its squares while they are in registers, by 16
/// numbers in f32, else in f64. Other backends, and an op that accumulates, read dw once more.
struct GroupedWeightGrad {
  Tensor dy, x;  // in   [M, N], [M, K]
  Tensor dw;     // out  [E, N, K]; of x's dtype, or f32
  GroupRows groups;
  Write write = Write::accumulate;
  /// out  [weight_grad_squares(dw)] f64, or undefined: numbers whose sum is that of the squares of dw, after the op.
  /// For dw in f32 (f64 for f64).
  Tensor squares = {};
  SmMargin sm_margin = SmMargin::none;  ///< of the kernel
};
Index weight_grad_squares(const Shape& dw);
void grouped_matmul_weight_grad(Exec& ex, const GroupedWeightGrad& args);
/// `squares` of dw [E, N, K], for a dw whose groups came by several calls.
void sum_weight_grad_squares(Exec& ex, const Tensor& dw, const Tensor& squares);

/// The first product of experts and its activation: z_g = x_g w_g^T, h = act(z). With z [M, 2F] it is SwiGLU
/// (ops/swiglu.h), with z [M, F] GELU (ops/elementwise.h). z is rounded before the activation.
struct GroupedActivated {
  Tensor x, w;  // in   [M, K], [E, 2F, K] or [E, F, K]
  Tensor z, h;  // out  [M, 2F] or [M, F], [M, F]; of x's dtype
  GroupRows groups;
  SmMargin sm_margin = SmMargin::none;  ///< of the kernel
};
void grouped_matmul_activated(Exec& ex, const GroupedActivated& args);

/// The input gradient of the second product of experts, y = h w^T, whose rows are weighted by p when they are summed:
/// with dh = dy w of the row's group, dz = p dh act'(z), ph = p h and dp = dh h, summed over the row. The weight
/// gradient of this product is that of (dy, ph). So neither h nor y is kept, and dy arrives unscaled.
struct GroupedActivatedInputGrad {
  Tensor dy, w, z;  // in   [M, H], [E, H, F], [M, 2F] or [M, F]
  Tensor p;         // in   [M, 1] f32 (f64 for f64)
  Tensor dz, ph;    // out  like z, [M, F]; dz may be z
  Tensor dp;        // out  [M, 1], like p
  GroupRows groups;
  SmMargin sm_margin = SmMargin::none;  ///< of the kernel
};
void grouped_matmul_activated_input_grad(Exec& ex, const GroupedActivatedInputGrad& args);

/// What grouped_matmul_activated_input_grad() does with dh, for a dh that another op has made.
struct GroupedActivationGrad {
  Tensor z;       // in   [M, 2F] or [M, F]
  Tensor p;       // in   [M, 1] f32 (f64 for f64)
  Tensor dh;      // in   [M, F]; out: p h
  Tensor dz, dp;  // out  like z, and may be z; [M, 1], like p
  GroupRows groups;
};
void grouped_activation_grad(Exec& ex, const GroupedActivationGrad& args);

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
  GroupRows groups;
  Write write = Write::overwrite;
  HostGroups host = {};  ///< set when the op runs
  Tensor squares = {};   ///< of weight_grad
  SmMargin sm_margin = SmMargin::none;

  Index size(Index group) const { return host.rows[group]; }
  Index first_row(Index group) const { return host.begin[group]; }
  bool has_work(Index group) const {
    return size(group) > 0 || (kind == Kind::weight_grad && write == Write::overwrite);
  }
  Matmul of(Index group) const { return of(group, first_row(group), size(group)); }
  Matmul of(Index group, Index first_row, Index count) const;
};

}  // namespace megalith::ops
