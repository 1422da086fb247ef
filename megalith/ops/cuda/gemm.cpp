#include "megalith/ops/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <bit>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cuda/gelu_product.h"
#include "megalith/ops/cuda/gemm_library.h"
#include "megalith/ops/cuda/grouped_product.h"
#include "megalith/ops/cuda/scaled_product.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/grouped_matmul_kernels.h"
#include "megalith/ops/matmul_kernels.h"
#include "megalith/ops/scaled_matmul_kernels.h"
#include "megalith/ops/swiglu_kernels.h"
#include "megalith/tensor/cuda/gpu_attribute.h"

namespace megalith::ops::cuda {
namespace {

/// The largest power of two up to 256 that divides all addresses. Null ones count as aligned.
std::int32_t common_alignment(std::initializer_list<const void*> pointers) {
  std::uintptr_t bits = 256;
  for (const void* pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return static_cast<std::int32_t>(std::uintptr_t{1} << std::countr_zero(bits));
}

/// The problem without an epilogue.
GemmProblem problem_of(Exec& ex, const Matmul& args) {
  return {.m = args.c.dim(0),
          .n = args.c.dim(1),
          .k = args.a.dim(args.transpose_a == Transpose::yes ? 0 : 1),
          .in = args.a.dtype(),
          .out = args.c.dtype(),
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .write = args.write,
          .epilogue = GemmEpilogue::none,
          .sm_margin = margin_of(ex, args.sm_margin),
          .alignment = common_alignment({args.a.raw(), args.b.raw(), args.c.raw()})};
}

/// Runs the GEMM with an epilogue that uses the vector and the activation. Returns false when the library has none.
bool run(Exec& ex, Stream stream, const Matmul& args, GemmEpilogue epilogue, void* vector, void* activation = nullptr) {
  GemmProblem problem = problem_of(ex, args);
  problem.epilogue = epilogue;
  problem.alignment = common_alignment({args.a.raw(), args.b.raw(), args.c.raw(), vector, activation});
  return ex.backend<GemmLibrary>().run(
      stream, problem,
      {.a = args.a.raw(), .b = args.b.raw(), .c = args.c.raw(), .vector = vector, .activation = activation});
}

[[noreturn]] void throw_no_kernel(const Matmul& args) {
  throw BackendError(str("[matmul] a ", args.a.shape(), ", b ", args.b.shape(), ", c ", args.c.shape(), " ",
                         name_of(args.c.dtype()), ": cuBLASLt has no kernel for it"));
}

void run_plain(Exec& ex, Stream stream, const Matmul& args) {
  if (!run(ex, stream, args, GemmEpilogue::none, nullptr)) throw_no_kernel(args);
}

GemmProblem problem_of(Exec& ex, const ScaledMatmul& args) {
  return {.m = args.c.dim(0),
          .n = args.c.dim(1),
          .k = args.a.values.dim(1),
          .in = DType::u8,
          .out = args.c.dtype(),
          .transpose_a = Transpose::no,
          .transpose_b = Transpose::yes,
          .write = args.write,
          .epilogue = GemmEpilogue::none,
          .sm_margin = margin_of(ex, args.sm_margin),
          .alignment = common_alignment(
              {args.a.values.raw(), args.a.scales.raw(), args.b.values.raw(), args.b.scales.raw(), args.c.raw()}),
          .a_scales = args.a.blocks,
          .b_scales = args.b.blocks};
}

/// Whether the caller, and not the table of GEMMs, selects our kernel.
bool names_own_kernel(const ScaledMatmul& args) { return args.kernel >= ScaledKernel::own; }
GemmSource source_of(const ScaledMatmul& args) {
  return args.kernel == ScaledKernel::library ? GemmSource::library : GemmSource::any;
}

/// In cuBLASLt's epilogues tanh is an approximation: errors of 2e-5 (seen on an H200), which 16 bits do not show.
bool has_gelu_epilogue(const Tensor& x) { return x.dtype() != DType::f32 && x.dim(1) > 0; }

/// A weight [N, K] as that of the only group.
Tensor as_one_group(const Tensor& weight) { return weight.reshaped({1, weight.dim(0), weight.dim(1)}); }
const TileGroups kOneGroup{};

/// One of about eight sizes per octave, which stands for all sizes near it.
Index size_class(Index rows) {
  const auto octave = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  return round_up(rows, std::max<Index>(16, octave / 16));
}

/// The problem that stands for a group's GEMM with any number of rows. Rows are m, or k for the weights' gradient.
GemmProblem of_class(GemmProblem problem, GroupedProduct::Kind kind) {
  Index& rows = kind == GroupedProduct::Kind::weight_grad ? problem.k : problem.m;
  rows = size_class(rows);
  return problem;
}

/// The alignment of any group, wherever its rows begin. So a group's bits do not depend on the groups before it.
std::int32_t alignment_of(const GroupedProduct& products) {
  const Tensor &rows = products.rows, &others = products.others, &weights = products.weights;
  const auto step = [](const Tensor& tensor, Index elements) {
    return reinterpret_cast<const void*>(elements * size_of(tensor.dtype()));
  };
  return common_alignment({rows.raw(), others.raw(), weights.raw(), step(rows, rows.dim(1)),
                           step(others, others.dim(1)), step(weights, weights.dim(1) * weights.dim(2))});
}

void run_passing(Exec& ex, std::size_t lane, const GroupedProduct& products, const Matmul& one) {
  GemmProblem problem = problem_of(ex, one);
  problem.alignment = alignment_of(products);
  if (!ex.backend<GemmLibrary>().run_passing(lane, problem, of_class(problem, products.kind),
                                             {.a = one.a.raw(), .b = one.b.raw(), .c = one.c.raw()}))
    throw_no_kernel(one);
}

/// AllGroupSizes: runs each class once, with its largest number of rows, with one row less and with none, in the first
/// lane. Returns false where nothing was run.
bool run_all_sizes(Exec& ex, const GroupedProduct& products) {
  auto& library = ex.backend<GemmLibrary>();
  const Index most = products.rows.dim(0);
  if (most == 0 || products.weights.numel() == 0) return false;
  const Matmul all = products.of(0, 0, most);
  GemmProblem largest = problem_of(ex, all);
  largest.alignment = alignment_of(products);
  if (!library.begin_all_sizes(largest)) return false;
  if (all.write == Write::overwrite) fill(library.lanes().at(0), all.c, 0);
  for (Index rows = size_class(1), last = 0; last < most; rows = size_class(rows + 1)) {
    last = std::min(rows, most);
    for (const Index count : {last, last - 1})
      if (count > 0) run_passing(ex, 0, products, products.of(0, 0, count));
  }
  return true;
}

}  // namespace

GemmChooser& gemm_chooser(Exec& ex) { return ex.backend<GemmLibrary>(); }
void set_sm_margin(Exec& ex, int count) { ex.backend<GemmLibrary>().set_sm_margin(count); }
int margin_of(Exec& ex, SmMargin margin) {
  return margin == SmMargin::communication ? ex.backend<GemmLibrary>().sm_margin() : 0;
}

void matmul(Exec& ex, Stream stream, const Matmul& args, const Tensor& parts) {
  const Index k = args.a.dim(args.transpose_a == Transpose::yes ? 0 : 1);
  if (k == 0 && args.write == Write::overwrite) fill(stream, args.c, 0);
  if (args.c.numel() == 0 || k == 0) {
    if (args.bias) add_bias(stream, args.c, args.bias);
    if (args.bias_grad) bias_backward(stream, args.a, args.bias_grad, parts);
    return;
  }
  if (!args.bias || !run(ex, stream, args, GemmEpilogue::bias, args.bias.raw())) {
    run_plain(ex, stream, args);
    if (args.bias) add_bias(stream, args.c, args.bias);
  }
  // The bias gradient is a pass of its own. cuBLASLt's epilogue for these sums makes the GEMM 1.2 to 1.5 times slower.
  // 32768 x 2304 x 768 took 250 us on an H200, against 166 + 49.
  if (args.bias_grad) bias_backward(stream, args.a, args.bias_grad, parts);
}

namespace {

/// Returns false when no kernel of those that the caller admits computes the problem.
bool run_scaled(Exec& ex, Stream stream, const ScaledMatmul& args, const GemmProblem& problem, void* bias) {
  const GemmOperands operands{.a = args.a.values.raw(),
                              .b = args.b.values.raw(),
                              .c = args.c.raw(),
                              .vector = bias,
                              .a_scales = args.a.scales.raw(),
                              .b_scales = args.b.scales.raw()};
  if (!names_own_kernel(args)) return ex.backend<GemmLibrary>().run(stream, problem, operands, source_of(args));
  if (!why_no_scaled_product(ex, problem).empty()) return false;
  const ScaledKernel form = args.kernel == ScaledKernel::own ? scaled_forms(ex, problem).front() : args.kernel;
  scaled_product(ex, stream, form, problem, operands);
  return true;
}

}  // namespace

std::string why_no_scaled_matmul(Exec& ex, const ScaledMatmul& args) {
  if (args.c.numel() == 0 || args.a.values.dim(1) == 0) return "";
  const GemmProblem problem = problem_of(ex, args);
  if (names_own_kernel(args)) return why_no_scaled_product(ex, problem);
  auto& library = ex.backend<GemmLibrary>();
  const bool is_hopper = megalith::cuda::gpu_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
  if (is_hopper && library.has_algorithm(problem, source_of(args))) return "";
  const GemmPlatform platform = library.current().platform;
  return str("[scaled_matmul] a ", args.a.values.shape(), ", b ", args.b.values.shape(), ", c ",
             name_of(args.c.dtype()), ": ", platform.text(),
             " has no FP8 GEMM with block scales for it: needs compute capability 9.0 (H100, H200), cuBLASLt 12.9 or "
             "later, K in multiples of 16, N of 8 and M of 4; use bf16 instead");
}

void scaled_matmul(Exec& ex, Stream stream, const ScaledMatmul& args) {
  if (args.c.numel() == 0) return;
  const bool is_empty_sum = args.a.values.dim(1) == 0;
  if (is_empty_sum && args.write == Write::overwrite) fill(stream, args.c, 0);
  if (!is_empty_sum) {
    const GemmProblem problem = problem_of(ex, args);
    if (args.bias) {
      GemmProblem with_bias = problem;
      with_bias.epilogue = GemmEpilogue::bias;
      with_bias.alignment = std::min(problem.alignment, common_alignment({args.bias.raw()}));
      if (run_scaled(ex, stream, args, with_bias, args.bias.raw())) return;
    }
    if (!run_scaled(ex, stream, args, problem, nullptr)) throw BackendError(cuda::why_no_scaled_matmul(ex, args));
  }
  if (args.bias) add_bias(stream, args.c, args.bias);
}

void batched_matmul(Exec& ex, Stream stream, const BatchedMatmul& args) {
  const Index count = args.c.dim(0);
  if (args.c.numel() == 0) return;
  const Matmul first = args.of(0);
  GemmProblem problem = problem_of(ex, first);
  if (problem.k == 0) return fill(stream, args.c, 0);
  const auto step = [](const Tensor& matrix) { return reinterpret_cast<const void*>(matrix.bytes()); };
  problem.alignment = std::min(problem.alignment, common_alignment({step(first.a), step(first.b), step(first.c)}));
  const GemmOperands operands{.a = args.a.raw(), .b = args.b.raw(), .c = args.c.raw()};
  if (!ex.backend<GemmLibrary>().run_batched(stream, problem, count, operands)) throw_no_kernel(first);
}

void run_all_group_sizes(Exec& ex, bool on) { ex.backend<GemmLibrary>().set_runs_all_sizes(on); }

void grouped_matmul(Exec& ex, Stream stream, const GroupedProduct& products) {
  SideStreams& lanes = ex.backend<GemmLibrary>().lanes();
  std::array<Index, SideStreams::kCount> rows{};  // rows of each lane
  lanes.fork(stream);
  if (run_all_sizes(ex, products)) lanes.fork(stream);
  for (Index g = 0; g < products.weights.dim(0); ++g) {
    if (!products.has_work(g)) continue;
    const Matmul one = products.of(g);
    if (one.c.numel() == 0) continue;
    if (one.b.numel() == 0) {
      if (one.write == Write::overwrite) fill(stream, one.c, 0);
      continue;
    }
    const auto lane = static_cast<std::size_t>(std::ranges::min_element(rows) - rows.begin());
    rows[lane] += products.size(g);
    run_passing(ex, lane, products, one);
  }
  lanes.join();
}

// The epilogues of our kernel and of cuBLASLt have the tanh form. The erf form is a pass of its own.
void matmul_gelu(Exec& ex, Stream stream, const MatmulGelu& args) {
  if (args.y.numel() == 0) return;
  const bool has_epilogue = args.form == GeluForm::tanh;
  if (has_epilogue && gelu_product(ex, stream, args, margin_of(ex, args.sm_margin))) return;
  Matmul product{.a = args.x, .b = args.w, .c = args.y, .transpose_b = Transpose::yes, .sm_margin = args.sm_margin};
  if (has_epilogue && has_gelu_epilogue(args.x) &&
      run(ex, stream, product, GemmEpilogue::bias_gelu, args.bias.raw(), args.z.raw()))
    return;
  product.c = args.z;
  matmul(ex, stream, product, {});
  bias_gelu(stream, {.x = args.z, .bias = args.bias, .y = args.y, .form = args.form});
}

void matmul_gelu_backward(Exec& ex, Stream stream, const MatmulGeluBackward& args, const Tensor& parts) {
  if (args.dz.numel() == 0) return;
  const bool has_epilogue = args.form == GeluForm::tanh;
  if (has_epilogue && gelu_product_backward(ex, stream, args, parts, margin_of(ex, args.sm_margin))) return;
  const Matmul product{.a = args.dy, .b = args.w, .c = args.dz, .sm_margin = args.sm_margin};
  const Tensor sums = parts.rows(0, 1).reshaped(args.bias_grad.shape());
  if (has_epilogue && has_gelu_epilogue(args.dy)) {
    if (run(ex, stream, product, GemmEpilogue::gelu_backward_bias_grad, sums.raw(), args.z.raw()))
      return add(stream, args.bias_grad, sums, args.bias_grad);
    if (run(ex, stream, product, GemmEpilogue::gelu_backward, nullptr, args.z.raw()))
      return bias_backward(stream, args.dz, args.bias_grad, parts);
  }
  matmul(ex, stream, product, {});
  gelu_backward(stream, {.z = args.z, .dy = args.dz, .dz = args.dz, .form = args.form});
  bias_backward(stream, args.dz, args.bias_grad, parts);
}

void matmul_swiglu(Exec& ex, Stream stream, const MatmulSwiglu& args, bool in_one) {
  if (args.y.numel() == 0) return;
  const TiledUp up{.x = args.x, .w = as_one_group(args.w), .z = args.z, .h = args.y};
  if (in_one && grouped_product(ex, stream, up, kOneGroup, margin_of(ex, args.sm_margin))) return;
  matmul(ex, stream,
         {.a = args.x, .b = args.w, .c = args.z, .transpose_b = Transpose::yes, .sm_margin = args.sm_margin}, {});
  swiglu(stream, {.gate_up = args.z, .y = args.y});
}

void matmul_swiglu_backward(Exec& ex, Stream stream, const MatmulSwigluBackward& args, const Tensor& dh) {
  if (args.dz.numel() == 0) return;
  if (dh) {
    matmul(ex, stream, {.a = args.dy, .b = args.w, .c = dh, .sm_margin = args.sm_margin}, {});
    if (args.y) swiglu(stream, {.gate_up = args.z, .y = args.y});
    return swiglu_backward(stream, {.gate_up = args.z, .dy = dh, .dgate_up = args.dz});
  }
  const TiledDownInputGrad down{.dy = args.dy, .w = as_one_group(args.w), .z = args.z, .dz = args.dz, .ph = args.y};
  if (!grouped_product(ex, stream, down, kOneGroup, margin_of(ex, args.sm_margin)))
    throw InternalError(str("[matmul_swiglu_backward] dy = ", args.dy.shape(), ": the kernel refuses what fits it"));
}

}  // namespace megalith::ops::cuda
