#pragma once
#include <string>

#include "megalith/ops/cpu/kernels.h"

namespace megalith::ops::cpu {

/// Runs on the calling thread only. f32: oneDNN where it is built in, otherwise the blocked loops of cpu/isa/gemm.cpp.
void run_product(const Product<float>& product);
void run_product(const Product<double>& product);
/// "oneDNN 2.6.0"; empty for our own loops.
std::string product_library();

/// As Product, with a and b in bf16 and c in f32. beta is 0 or 1.
struct Bf16Product {
  Index m = 0, n = 0, k = 0;
  const bfloat16* a = nullptr;
  Index a_row = 0, a_column = 0;
  const bfloat16* b = nullptr;
  Index b_row = 0, b_column = 0;
  float* c = nullptr;
  Index c_row = 0;
  float beta = 0;
};
/// Whether this CPU multiplies bf16 (AMX) and the library has GEMMs for it. They take denormal numbers as 0.
bool has_bf16_product();
/// Runs on the calling thread only. Precondition: has_bf16_product().
void run_product(const Bf16Product& product);
/// What multiplies bf16: "AMX"; empty: it is widened to f32.
std::string bf16_unit();

/// The shape of the blocks of c. One thread computes one block at a time.
struct BlockShape {
  Index rows = 0, columns = 0;
};
/// Depends on the shape alone, so that the number of threads changes no bit.
BlockShape block_shape(Index m, Index n, Index k);

}  // namespace megalith::ops::cpu
