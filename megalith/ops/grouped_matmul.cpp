#include "megalith/ops/grouped_matmul.h"

#include "megalith/base/str.h"
#include "megalith/ops/adamw_kernels.h"
#include "megalith/ops/cuda/grouped_product.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/grouped_matmul_kernels.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith::ops {
namespace {

/// An op's name, and those of its arguments for messages.
struct Names : Arguments {
  std::string_view rows, weights, others;
};
constexpr Names kForward{{"grouped_matmul"}, "x", "w", "y"};
constexpr Names kInputGrad{{"grouped_matmul_input_grad"}, "dy", "w", "dx"};
constexpr Names kActivated{{"grouped_matmul_activated"}, "x", "w", "z"};
constexpr Names kActivatedInputGrad{{"grouped_matmul_activated_input_grad"}, "dy", "w", "ph"};
constexpr Names kActivationGrad{{"grouped_activation_grad"}, "z", "dz", "dh"};
constexpr Names kWeightGrad{{"grouped_matmul_weight_grad"}, "dy", "dw", "x"};

void check_groups(const GroupRows& groups, Index count, const Names& names) {
  if (groups.alignment < 1)
    throw ShapeError(str("[", names.op, ".groups] alignment = ", groups.alignment, ": must be at least 1"));
  names.like(groups.begin, {count}, DType::i32, "groups.begin");
  names.like(groups.rows, {count}, DType::i32, "groups.rows");
}

void check(Exec& ex, const GroupedProduct& product, const Names& names) {
  expect_float(ex, product.rows, names.op);
  const DType dtype = product.rows.dtype();
  const auto [groups, n, k] = names.dims<3>(product.weights, names.weights);
  const Index rows = names.dims<2>(product.rows, names.rows)[0];
  const bool forward = product.kind == GroupedProduct::Kind::forward;
  names.like(product.rows, {rows, forward ? k : n}, dtype, names.rows);
  names.like(product.others, {rows, forward ? n : k}, product.others.dtype(), names.others);
  const bool weight_grad = product.kind == GroupedProduct::Kind::weight_grad;
  const Tensor &in = weight_grad ? product.others : product.weights,
               &out = weight_grad ? product.weights : product.others;
  names.like(in, in.shape(), dtype, weight_grad ? names.others : names.weights);
  if (out.dtype() != dtype)
    names.like(out, out.shape(), statistics_dtype(dtype), weight_grad ? names.weights : names.others);
  if (groups < 1 || groups > kMaxGroups)
    throw ShapeError(str("[", names.op, ".", names.weights, "] groups = ", groups, ": must be in 1 .. ", kMaxGroups));
  check_groups(product.groups, groups, names);
}

GroupedProduct product_of(const GroupedActivated& args) {
  return {.kind = GroupedProduct::Kind::forward,
          .rows = args.x,
          .weights = args.w,
          .others = args.z,
          .groups = args.groups};
}
/// dh takes the place of ph.
GroupedProduct product_of(const GroupedActivatedInputGrad& args) {
  return {.kind = GroupedProduct::Kind::input_grad,
          .rows = args.dy,
          .weights = args.w,
          .others = args.ph,
          .groups = args.groups};
}

/// z is [M, 2F] or [M, F], h [M, F].
void check_activation(const Tensor& z, const Tensor& h, DType dtype, const Names& names) {
  const auto [rows, units] = names.dims<2>(h, "h");
  const Index columns = names.dims<2>(z, "z")[1];
  names.like(h, {rows, units}, dtype, "h");
  names.like(z, {rows, columns == units ? units : 2 * units}, dtype, "z");
}

/// The product with groups that the host reads. Throws ShapeError unless they lie in its rows in ascending order.
GroupedProduct with_groups(GroupedProduct product, HostGroups host, const Names& names) {
  const GroupRows& groups = product.groups;
  const Index rows = product.rows.dim(0);
  Index end = 0;
  for (Index g = 0; g < groups.count(); ++g) {
    const Index begin = host.begin[g], count = host.rows[g];
    if (count < 0) throw ShapeError(str("[", names.op, ".groups] rows = ", count, ": must be at least 0"));
    if (begin < end || begin % groups.alignment != 0)
      throw ShapeError(str("[", names.op, ".groups] begin = ", begin, ": must be a multiple of ", groups.alignment,
                           " and at least ", end, ", the end of the group before"));
    end = begin + count;
    if (end > rows)
      throw ShapeError(str("[", names.op, ".groups] end = ", end, ": must be at most ", rows, ", the rows"));
  }
  product.host = host;
  return product;
}

GroupedProduct on_cpu(const GroupedProduct& product, const Names& names) {
  const GroupRows& groups = product.groups;
  return with_groups(product, {groups.begin.data<std::int32_t>(), groups.rows.data<std::int32_t>()}, names);
}

/// With the host's copy of groups that lie in a GPU's memory.
GroupedProduct on_gpu(const GroupedProduct& product, const Names& names) {
  const HostGroups& host = product.groups.host;
  if (host.begin == nullptr) throw InternalError(str("[", names.op, ".groups] the host has no copy of the groups"));
  return with_groups(product, host, names);
}

/// dw as a row of numbers for each group, and the sums of their squares: the first numbers of `squares`.
struct SquaresOfGroups {
  SquaresOfGroups(Device device, const Tensor& of, const Tensor& squares)
      : dw(of.reshaped({of.dim(0), of.dim(1) * of.dim(2)})),
        all(squares),
        sums(squares.rows(0, dw.dim(0) * square_blocks(device, dw.dim(1)))
                 .reshaped({dw.dim(0), square_blocks(device, dw.dim(1))})) {}
  void sum_on_cpu() const {
    cpu::fill(all, 0);
    cpu::sum_of_squares(dw, sums);
  }
  template <class Stream>
  void sum_on_gpu(Stream stream) const {
    cuda::fill(stream, all, 0);
    cuda::sum_of_squares(stream, dw, sums);
  }
  Tensor dw, all, sums;
};

void run(Exec& ex, const GroupedProduct& product, const Names& names, const OpInfo& info) {
  check(ex, product, names);
  run_kernel(
      ex, info,
      [product, &names] {
        cpu::grouped_matmul(on_cpu(product, names));
        if (!product.squares) return;
        SquaresOfGroups(Device::cpu, product.weights, product.squares).sum_on_cpu();
      },
      [product, &names](auto& exec, auto stream) {
        if (cuda::grouped_kernel(exec, stream, product)) return;
        cuda::grouped_matmul(exec, stream, on_gpu(product, names));
        if (!product.squares) return;
        SquaresOfGroups(Device::cuda, product.weights, product.squares).sum_on_gpu(stream);
      });
}

}  // namespace

GroupedKernelFit grouped_kernel_fit(Device device, DType dtype, Index hidden, Index ffn) {
  if (device == Device::cpu) return GroupedKernelFit::on_cpu;
  if (size_of(dtype) != 2) return GroupedKernelFit::wide_numbers;
  if (hidden % kGroupedKernelWidths != 0 || ffn % kGroupedKernelWidths != 0) return GroupedKernelFit::odd_widths;
  if constexpr (build::has_cuda) {
    if (!cuda::may_have_grouped_kernel()) return GroupedKernelFit::other_gpu;
  }
  return GroupedKernelFit::fits;
}

AllGroupSizes::AllGroupSizes(Exec& ex) : ex_(ex) {
  if constexpr (build::has_cuda) {
    if (ex.device() == Device::cuda) cuda::run_all_group_sizes(ex, true);
  }
}

AllGroupSizes::~AllGroupSizes() {
  if constexpr (build::has_cuda) {
    if (ex_.device() == Device::cuda) cuda::run_all_group_sizes(ex_, false);
  }
}

Matmul GroupedProduct::of(Index group, Index first_row, Index count) const {
  const Index n = weights.dim(1), k = weights.dim(2);
  const Tensor a = rows.rows(first_row, count), b = others.rows(first_row, count),
               w = weights.rows(group, 1).reshaped({n, k});
  switch (kind) {
    case Kind::forward:
      return {.a = a, .b = w, .c = b, .transpose_b = Transpose::yes};
    case Kind::input_grad:
      return {.a = a, .b = w, .c = b};
    case Kind::weight_grad:
      return {.a = a, .b = b, .c = w, .transpose_a = Transpose::yes, .write = write};
  }
  return {};
}

void grouped_matmul(Exec& ex, const GroupedForward& args) {
  const GroupedProduct product{.kind = GroupedProduct::Kind::forward,
                               .rows = args.x,
                               .weights = args.w,
                               .others = args.y,
                               .groups = args.groups};
  run(ex, product, kForward,
      {.name = "grouped_matmul", .reads = {args.x, args.w, args.groups.begin, args.groups.rows}, .writes = {args.y}});
}

void grouped_matmul_input_grad(Exec& ex, const GroupedInputGrad& args) {
  const GroupedProduct product{.kind = GroupedProduct::Kind::input_grad,
                               .rows = args.dy,
                               .weights = args.w,
                               .others = args.dx,
                               .groups = args.groups};
  run(ex, product, kInputGrad,
      {.name = "grouped_matmul_input_grad",
       .reads = {args.dy, args.w, args.groups.begin, args.groups.rows},
       .writes = {args.dx}});
}

Index weight_grad_squares(const Shape& dw) { return dw[0] * cuda::tiled_squares(dw[1], dw[2]); }

void grouped_matmul_weight_grad(Exec& ex, const GroupedWeightGrad& args) {
  const GroupedProduct product{.kind = GroupedProduct::Kind::weight_grad,
                               .rows = args.dy,
                               .weights = args.dw,
                               .others = args.x,
                               .groups = args.groups,
                               .write = args.write,
                               .squares = args.squares,
                               .sm_margin = args.sm_margin};
  if (args.squares) {
    const auto [groups, n, k] = kWeightGrad.dims<3>(args.dw, "dw");
    kWeightGrad.like(args.squares, {weight_grad_squares({groups, n, k})}, DType::f64, "squares");
    kWeightGrad.like(args.dw, args.dw.shape(), statistics_dtype(args.dy.dtype()), "dw");
  }
  const Tensor before = args.write == Write::accumulate ? args.dw : Tensor();
  run(ex, product, kWeightGrad,
      {.name = "grouped_matmul_weight_grad",
       .reads = {args.dy, args.x, before, args.groups.begin, args.groups.rows},
       .writes = {args.dw, args.squares}});
}

void sum_weight_grad_squares(Exec& ex, const Tensor& dw, const Tensor& squares) {
  const auto [groups, n, k] = kWeightGrad.dims<3>(dw, "dw");
  kWeightGrad.like(squares, {weight_grad_squares({groups, n, k})}, DType::f64, "squares");
  run_kernel(
      ex, {.name = "sum_weight_grad_squares", .reads = {dw}, .writes = {squares}},
      [dw, squares] { SquaresOfGroups(Device::cpu, dw, squares).sum_on_cpu(); },
      [dw, squares](auto&, auto stream) { SquaresOfGroups(Device::cuda, dw, squares).sum_on_gpu(stream); });
}

void grouped_matmul_activated(Exec& ex, const GroupedActivated& args) {
  check(ex, product_of(args), kActivated);
  check_activation(args.z, args.h, args.x.dtype(), kActivated);
  run_kernel(
      ex,
      {.name = "grouped_matmul_activated",
       .reads = {args.x, args.w, args.groups.begin, args.groups.rows},
       .writes = {args.z, args.h}},
      [args] {
        const GroupedProduct product = on_cpu(product_of(args), kActivated);
        cpu::grouped_matmul(product);
        cpu::activate_groups(args, product.host);
      },
      [args](auto& exec, auto stream) {
        if (cuda::grouped_kernel(exec, stream, args)) return;
        cuda::grouped_matmul(exec, stream, on_gpu(product_of(args), kActivated));
        cuda::activate_groups(stream, args);
      });
}

void grouped_matmul_activated_input_grad(Exec& ex, const GroupedActivatedInputGrad& args) {
  const Index rows = args.dy.dim(0);
  const DType dtype = args.dy.dtype();
  check(ex, product_of(args), kActivatedInputGrad);
  check_activation(args.z, args.ph, dtype, kActivatedInputGrad);
  kActivatedInputGrad.like(args.dz, args.z.shape(), dtype, "dz");
  kActivatedInputGrad.like(args.p, {rows, 1}, statistics_dtype(dtype), "p");
  kActivatedInputGrad.like(args.dp, {rows, 1}, statistics_dtype(dtype), "dp");
  // Sums over tiles of columns, for the kernel.
  const bool is_kernel = ex.device() == Device::cuda && args.groups.alignment == kGroupedKernelRows;
  const Tensor parts = is_kernel ? ex.tensor({rows, cuda::tiled_dp_parts(args.ph.dim(1))}, DType::f32) : Tensor();
  run_kernel(
      ex,
      {.name = "grouped_matmul_activated_input_grad",
       .reads = {args.dy, args.w, args.z, args.p, args.groups.begin, args.groups.rows},
       .writes = {args.dz, args.ph, args.dp},
       .scratch = parts},
      [args] {
        const GroupedProduct product = on_cpu(product_of(args), kActivatedInputGrad);
        cpu::grouped_matmul(product);
        cpu::activate_groups_backward(args, product.host);
      },
      [args, parts](auto& exec, auto stream) {
        if (cuda::grouped_kernel(exec, stream, args, parts)) return;
        cuda::grouped_matmul(exec, stream, on_gpu(product_of(args), kActivatedInputGrad));
        cuda::activate_groups_backward(stream, args);
      });
}

void grouped_activation_grad(Exec& ex, const GroupedActivationGrad& args) {
  const Names& names = kActivationGrad;
  expect_float(ex, args.z, names.op);
  const DType dtype = args.z.dtype();
  const Index rows = names.dims<2>(args.z, "z")[0];
  check_activation(args.z, args.dh, dtype, names);
  names.like(args.dz, args.z.shape(), dtype, "dz");
  names.like(args.p, {rows, 1}, statistics_dtype(dtype), "p");
  names.like(args.dp, {rows, 1}, statistics_dtype(dtype), "dp");
  check_groups(args.groups, args.groups.begin.numel(), names);
  const GroupedActivatedInputGrad all{
      .dy = {}, .w = {}, .z = args.z, .p = args.p, .dz = args.dz, .ph = args.dh, .dp = args.dp, .groups = args.groups};
  run_kernel(
      ex,
      {.name = names.op.data(),
       .reads = {args.z, args.p, args.dh, args.groups.begin, args.groups.rows},
       .writes = {args.dz, args.dh, args.dp}},
      [all] {
        const GroupRows& groups = all.groups;
        cpu::activate_groups_backward(all, {groups.begin.data<std::int32_t>(), groups.rows.data<std::int32_t>()});
      },
      [all](auto&, auto stream) { cuda::activate_groups_backward(stream, all); });
}

}  // namespace megalith::ops
