#pragma once
#include "megalith/tensor/exec.h"

namespace megalith::ops {

enum class Write : std::uint8_t { overwrite, accumulate };
enum class Transpose : std::uint8_t { no, yes };

/// c = op(a) op(b), or c += for Write::accumulate. op transposes where asked.
///   op(a) [M, K], op(b) [K, N], c [M, N]; all of one dtype (f64, f32). M, N, K may be 0 (K = 0 gives zeros).
/// Bits do not depend on the number of threads: the product is cut into blocks by its shape alone.
/// Throws ShapeError.
struct Matmul {
  Tensor a, b;  // in
  Tensor c;     // out
  Transpose transpose_a = Transpose::no, transpose_b = Transpose::no;
  Write write = Write::overwrite;
};
void matmul(Exec& ex, const Matmul& args);

}  // namespace megalith::ops
