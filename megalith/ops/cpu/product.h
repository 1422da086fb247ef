#pragma once
#include <string>

#include "megalith/ops/cpu/kernels.h"

namespace megalith::ops::cpu {

/// Runs on the calling thread only. f32: oneDNN where it is built in, otherwise the blocked loops of cpu/isa/gemm.cpp.
void run_product(const Product<float>& product);
void run_product(const Product<double>& product);
/// "oneDNN 2.6.0"; empty for our own loops.
std::string product_library();

/// Whether this CPU multiplies bf16 (AMX) and the library has GEMMs for it. They take denormal numbers as 0.
bool has_bf16_product();
/// Runs on the calling thread only. Precondition: has_bf16_product().
void run_product(const Product<bfloat16>& product);
/// What multiplies bf16: "AMX"; empty: it is widened to f32.
std::string bf16_unit();

/// The shape of the blocks of c. One thread computes one block at a time.
struct BlockShape {
  Index rows = 0, columns = 0;
};
/// Depends on the shape alone, so that the number of threads changes no bit.
BlockShape block_shape(Index m, Index n, Index k);

}  // namespace megalith::ops::cpu
