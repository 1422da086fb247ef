#include "megalith/ops/grouped_matmul.h"

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
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
constexpr Names kWeightGrad{{"grouped_matmul_weight_grad"}, "dy", "dw", "x"};

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
  if (static_cast<Index>(product.sizes.size()) != groups)
    throw ShapeError(str("[", names.op, ".sizes] groups = ", product.sizes.size(), ": must be ", groups));
}

/// Checks that are made when the op runs.
void check_sizes(const GroupedProduct& product, const Names& names) {
  Index sum = 0;
  for (const Index size : product.sizes) {
    if (size < 0) throw ShapeError(str("[", names.op, ".sizes] size = ", size, ": must be at least 0"));
    sum += size;
  }
  const Index rows = product.rows.dim(0);
  if (sum > rows) throw ShapeError(str("[", names.op, ".sizes] sum = ", sum, ": must be at most ", rows, ", the rows"));
}

void run(Exec& ex, const GroupedProduct& product, const Names& names, const OpInfo& info) {
  check(ex, product, names);
  run_kernel(
      ex, info,
      [product, &names] {
        check_sizes(product, names);
        cpu::grouped_matmul(product);
      },
      [product, &names](auto& exec, auto stream) {
        check_sizes(product, names);
        cuda::grouped_matmul(exec, stream, product);
      });
}

}  // namespace

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
                               .sizes = args.sizes.host};
  run(ex, product, kForward, {.name = "grouped_matmul", .reads = {args.x, args.w}, .writes = {args.y}});
}

void grouped_matmul_input_grad(Exec& ex, const GroupedInputGrad& args) {
  const GroupedProduct product{.kind = GroupedProduct::Kind::input_grad,
                               .rows = args.dy,
                               .weights = args.w,
                               .others = args.dx,
                               .sizes = args.sizes.host};
  run(ex, product, kInputGrad, {.name = "grouped_matmul_input_grad", .reads = {args.dy, args.w}, .writes = {args.dx}});
}

void grouped_matmul_weight_grad(Exec& ex, const GroupedWeightGrad& args) {
  const GroupedProduct product{.kind = GroupedProduct::Kind::weight_grad,
                               .rows = args.dy,
                               .weights = args.dw,
                               .others = args.x,
                               .sizes = args.sizes.host,
                               .write = args.write};
  const Tensor before = args.write == Write::accumulate ? args.dw : Tensor();
  run(ex, product, kWeightGrad,
      {.name = "grouped_matmul_weight_grad", .reads = {args.dy, args.x, before}, .writes = {args.dw}});
}

}  // namespace megalith::ops
