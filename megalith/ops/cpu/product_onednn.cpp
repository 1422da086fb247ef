#include <algorithm>
#include <compare>
#include <cstring>
#include <iterator>
#include <map>
#include <new>

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/product.h"
#include "megalith/ops/matmul_kernels.h"

namespace megalith::ops::cpu {
namespace {

constexpr Index kLines = 256, kColumns = 384, kPackedDepth = 256;  // sizes of a packed piece: 680 KiB of stack
constexpr Index kPackedGap = 16;   // between the rows of a panel, so that they start in different cache sets
constexpr Index kWorthwhile = 32;  // each packed element is used at least this often

/// oneDNN computes on as many threads as OpenMP has for the calling one, and might cut K by their number. A GEMM here
/// is a task of one thread. This limits OpenMP to one thread for as long as the calling thread lives.
void stay_on_this_thread() {
  thread_local const bool asked = (omp_set_num_threads(1), true);
  static_cast<void>(asked);
}

/// out[j][i] = x[i][j] of a 4 x 4 tile.
void transpose_tile(const float* x, Index stride, float* out, Index out_stride) {
  using Four = float __attribute__((vector_size(16)));
  using Order = std::int32_t __attribute__((vector_size(16)));
  constexpr Order kLow{0, 4, 1, 5}, kHigh{2, 6, 3, 7}, kFirst{0, 1, 4, 5}, kSecond{2, 3, 6, 7};
  Four row[4];
  for (Index i = 0; i < 4; ++i) std::memcpy(&row[i], x + i * stride, sizeof(Four));
  const Four a = __builtin_shuffle(row[0], row[1], kLow), b = __builtin_shuffle(row[2], row[3], kLow);
  const Four c = __builtin_shuffle(row[0], row[1], kHigh), d = __builtin_shuffle(row[2], row[3], kHigh);
  const Four column[4] = {__builtin_shuffle(a, b, kFirst), __builtin_shuffle(a, b, kSecond),
                          __builtin_shuffle(c, d, kFirst), __builtin_shuffle(c, d, kSecond)};
  for (Index i = 0; i < 4; ++i) std::memcpy(out + i * out_stride, &column[i], sizeof(Four));
}

/// out[line][l] = x[l][line], eight rows of x at a time. More would compete for the same sets of the first-level cache.
void transpose(const float* x, Index stride, Index depth, Index lines, float* out, Index out_stride) {
  const Index even_lines = lines / 4 * 4, even_depth = depth / 4 * 4;
  for (Index first = 0; first < even_depth; first += 8) {
    for (Index line = 0; line < even_lines; line += 4) {
      for (Index l = first; l < std::min(first + 8, even_depth); l += 4) {
        transpose_tile(x + l * stride + line, stride, out + line * out_stride + l, out_stride);
      }
    }
  }
  for (Index line = 0; line < lines; ++line) {
    for (Index l = line < even_lines ? even_depth : 0; l < depth; ++l)
      out[line * out_stride + l] = x[l * stride + line];
  }
}

/// A matrix in oneDNN's terms: its rows ('N') or its columns ('T') are contiguous, `stride` elements apart.
struct Layout {
  char transposed;
  Index stride;
  auto operator<=>(const Layout&) const = default;
};

/// The layout of a rows x columns matrix. The stride along a dimension of size 1 has no meaning and may be anything.
Layout layout_of(Index rows, Index columns, Index row, Index column) {
  const bool rows_together = (column == 1 || columns == 1) && (row >= columns || rows == 1);
  return rows_together ? Layout{'N', std::max({row, columns, Index{1}})}
                       : Layout{'T', std::max({column, rows, Index{1}})};
}

void call_sgemm(const Product<float>& p) {
  stay_on_this_thread();
  const Layout a = layout_of(p.m, p.k, p.a_row, p.a_column), b = layout_of(p.k, p.n, p.b_row, p.b_column);
  const dnnl_status_t status = dnnl_sgemm(a.transposed, b.transposed, p.m, p.n, p.k, 1.0f, p.a, a.stride, p.b, b.stride,
                                          p.beta, p.c, std::max(p.c_row, p.n));
  if (status == dnnl_success) return;
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  throw BackendError(str("[matmul] dnnl_sgemm failed with status ", static_cast<int>(status), " for M, N, K = ", p.m,
                         ", ", p.n, ", ", p.k));
}

/// One piece that fits the panels on the stack. A transposed a is transposed back, and a b whose rows are contiguous is
/// copied without gaps.
void packed_product(Product<float> p) {
  alignas(64) float a_panel[kLines * (kPackedDepth + kPackedGap)];
  alignas(64) float b_panel[kPackedDepth * (kColumns + kPackedGap)];
  if (p.a_column != 1) {
    transpose(p.a, p.a_column, p.k, p.m, a_panel, kPackedDepth + kPackedGap);
    p.a = a_panel;
    p.a_row = kPackedDepth + kPackedGap;
    p.a_column = 1;
  }
  if (p.b_column == 1) {
    for (Index l = 0; l < p.k; ++l) std::copy_n(p.b + l * p.b_row, p.n, b_panel + l * (kColumns + kPackedGap));
    p.b = b_panel;
    p.b_row = kColumns + kPackedGap;
  }
  call_sgemm(p);
}

}  // namespace

/// At the size of our blocks oneDNN 2.6 packs nothing on AVX2 and reads a and b in place. That is slow with planned
/// (aligned) tensors whose rows are a multiple of 1 KiB apart. 512 x 3072 x 768 gives 42 GFLOP/s per core instead of
/// 88. Packing pieces first gives 82-92. Rows times rows (weights^T) are fast without packing. On AVX-512 oneDNN packs
/// itself.
void run_product(const Product<float>& p) {
  const bool rows_times_rows = p.a_column == 1 && p.b_column != 1;
  if (rows_times_rows || p.m < kWorthwhile || p.n < kWorthwhile || is_available(Isa::avx512)) return call_sgemm(p);
  for (Index line = 0; line < p.m; line += kLines) {
    for (Index column = 0; column < p.n; column += kColumns) {
      for (Index l = 0; l < p.k; l += kPackedDepth) {
        Product<float> piece = p;
        piece.m = std::min(kLines, p.m - line);
        piece.n = std::min(kColumns, p.n - column);
        piece.k = std::min(kPackedDepth, p.k - l);
        piece.a = p.a + line * p.a_row + l * p.a_column;
        piece.b = p.b + l * p.b_row + column * p.b_column;
        piece.c = p.c + line * p.c_row + column;
        piece.beta = l == 0 ? p.beta : 1.0f;
        packed_product(piece);
      }
    }
  }
}

namespace {

/// What oneDNN makes a kernel for.
struct Bf16Shape {
  Index m, n, k;
  Layout a, b;
  Index c_row;
  bool adds;
  auto operator<=>(const Bf16Shape&) const = default;
};

const dnnl::engine& this_cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::desc description(Index rows, Index columns, const Layout& layout, dnnl::memory::data_type type) {
  const bool by_rows = layout.transposed == 'N';
  return {{rows, columns}, type, {by_rows ? layout.stride : 1, by_rows ? 1 : layout.stride}};
}

/// A kernel, and its operands without addresses: a call allocates nothing.
struct Bf16Kernel {
  dnnl::matmul matmul;
  dnnl::memory a, b, c;
};

Bf16Kernel make_kernel(const Bf16Shape& shape) {
  using Type = dnnl::memory::data_type;
  const auto a = description(shape.m, shape.k, shape.a, Type::bf16),
             b = description(shape.k, shape.n, shape.b, Type::bf16),
             c = description(shape.m, shape.n, {'N', shape.c_row}, Type::f32);
  dnnl::primitive_attr attributes;
  if (shape.adds) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const auto memory = [](const dnnl::memory::desc& of) { return dnnl::memory(of, this_cpu(), DNNL_MEMORY_NONE); };
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc kernel(this_cpu(), a, b, c, attributes);
#else
  const dnnl::matmul::primitive_desc kernel(dnnl::matmul::desc(a, b, c), attributes, this_cpu());
#endif
  return {dnnl::matmul(kernel), memory(a), memory(b), memory(c)};
}

/// A step repeats its shapes, and making a kernel takes longer than a small product.
const Bf16Kernel& kernel_of(const Bf16Shape& shape) {
  constexpr std::size_t kMaxKernels = 256;
  thread_local std::map<Bf16Shape, Bf16Kernel> kernels;
  const auto found = kernels.find(shape);
  if (found != kernels.end()) return found->second;
  if (kernels.size() == kMaxKernels) kernels.erase(kernels.begin());
  return kernels.emplace(shape, make_kernel(shape)).first->second;
}

void check(dnnl_status_t status) { dnnl::error::wrap_c_api(status, "dnnl_primitive_execute failed"); }

void multiply_piece(const Product<bfloat16>& p) {
  const Bf16Kernel& kernel = kernel_of({.m = p.m,
                                        .n = p.n,
                                        .k = p.k,
                                        .a = layout_of(p.m, p.k, p.a_row, p.a_column),
                                        .b = layout_of(p.k, p.n, p.b_row, p.b_column),
                                        .c_row = std::max(p.c_row, p.n),
                                        .adds = p.beta != 0});
  const auto at = [](const dnnl::memory& memory, const void* address) {
    check(dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(address)));
    return memory.get();
  };
  const dnnl_exec_arg_t operands[] = {
      {DNNL_ARG_SRC, at(kernel.a, p.a)}, {DNNL_ARG_WEIGHTS, at(kernel.b, p.b)}, {DNNL_ARG_DST, at(kernel.c, p.c)}};
  thread_local const dnnl::stream stream(this_cpu());
  check(dnnl_primitive_execute(kernel.matmul.get(), stream.get(), static_cast<int>(std::size(operands)), operands));
  check(dnnl_stream_wait(stream.get()));
}

/// The numbers of rows of experts differ in every step. Cut into whole units and a rest, most of them find a kernel
/// that is there.
constexpr Index kUnitOfRows = 16, kUnitOfDepth = 64;
Index whole_units(Index size, Index unit) { return size < unit ? size : size / unit * unit; }

}  // namespace

bool has_bf16_product() {
  static const bool has = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
  return has;
}

std::string bf16_unit() { return has_bf16_product() ? "AMX" : ""; }

void run_product(const Product<bfloat16>& p) {
  stay_on_this_thread();
  try {
    for (Index row = 0, rows = whole_units(p.m, kUnitOfRows); row < p.m; row += rows, rows = p.m - row) {
      for (Index l = 0, depth = whole_units(p.k, kUnitOfDepth); l < p.k; l += depth, depth = p.k - l) {
        Product<bfloat16> piece = p;
        piece.m = rows;
        piece.k = depth;
        piece.a += row * p.a_row + l * p.a_column;
        piece.b += l * p.b_row;
        piece.c += row * p.c_row;
        if (l > 0) piece.beta = 1;
        multiply_piece(piece);
      }
    }
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw BackendError(
        str("[matmul] oneDNN failed for bf16, M, N, K = ", p.m, ", ", p.n, ", ", p.k, ": ", error.what()));
  }
}

std::string product_library() {
  const dnnl_version_t& version = *dnnl_version();
  return str("oneDNN ", version.major, '.', version.minor, '.', version.patch);
}

}  // namespace megalith::ops::cpu
