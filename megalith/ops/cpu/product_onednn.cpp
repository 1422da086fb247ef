#include <algorithm>
#include <cstring>

#include <oneapi/dnnl/dnnl.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/matmul.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace megalith::ops::cpu {
namespace {

/// oneDNN runs on one thread inside an active parallel region. Outside one, where a team would be its own (and might
/// cut K by the number of threads), this asks it for one thread.
class OneThread {
 public:
#ifdef _OPENMP
  OneThread() : threads_(omp_in_parallel() ? 1 : omp_get_max_threads()) {
    if (threads_ > 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (threads_ > 1) omp_set_num_threads(threads_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
#endif
};

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

/// out[line][l] = x[l][line], eight rows of x at a time: more would compete for the same sets of the first-level cache.
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

void call_sgemm(const Product<float>& p) {
  const OneThread one_thread;
  const bool a_rows = p.a_column == 1, b_rows = p.b_column == 1;
  const dnnl_status_t status =
      dnnl_sgemm(a_rows ? 'N' : 'T', b_rows ? 'N' : 'T', p.m, p.n, p.k, 1.0f, p.a, a_rows ? p.a_row : p.a_column, p.b,
                 b_rows ? p.b_row : p.b_column, p.beta, p.c, p.c_row);
  if (status == dnnl_success) return;
  throw BackendError(str("[matmul] dnnl_sgemm failed with status ", static_cast<int>(status), " for M, N, K = ", p.m,
                         ", ", p.n, ", ", p.k));
}

}  // namespace

/// A transposed a (weight gradients) is turned over in pieces on the stack first: at the size of our blocks oneDNN 2.6
/// runs such products without packing on AVX2, which costs 5 to 30 % (66-81 against 75-88 GFLOP/s a core). On AVX-512
/// it packs.
void run_product(const Product<float>& p) {
  constexpr Index kLines = 256, kDepth = 256, kRow = kDepth + 16;  // + 16: rows start in different cache sets
  constexpr Index kWorthwhile = 32;
  if (p.a_column == 1 || p.a_row != 1 || p.n < kWorthwhile || is_available(Isa::avx512)) return call_sgemm(p);
  alignas(64) float a_rows[kLines * kRow];
  for (Index line = 0; line < p.m; line += kLines) {
    for (Index l = 0; l < p.k; l += kDepth) {
      Product<float> piece = p;
      piece.m = std::min(kLines, p.m - line);
      piece.k = std::min(kDepth, p.k - l);
      transpose(p.a + l * p.a_column + line, p.a_column, piece.k, piece.m, a_rows, kRow);
      piece.a = a_rows;
      piece.a_row = kRow;
      piece.a_column = 1;
      piece.b = p.b + l * p.b_row;
      piece.c = p.c + line * p.c_row;
      piece.beta = l == 0 ? p.beta : 1.0f;
      call_sgemm(piece);
    }
  }
}

}  // namespace megalith::ops::cpu
