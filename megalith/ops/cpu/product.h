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
/// A matrix by its strides, as in Product.
template <class T>
struct GemmOperand {
  const T* data;
  Index row, column;
  GemmOperand transposed() const { return {data, column, row}; }
};
struct ProductShape {
  Index m, n, k;
};
/// The result of a product, and the factor of what it holds before.
template <class T>
struct ProductSums {
  Arithmetic<T>* c;
  Index c_row;
  Arithmetic<T> beta;
};
/// c [m, n] = beta c + a b, by run_product().
template <class T>
void multiply(const ProductShape& shape, const GemmOperand<T>& a, const GemmOperand<T>& b, const ProductSums<T>& sums) {
  run_product(Product<T>{.m = shape.m,
                         .n = shape.n,
                         .k = shape.k,
                         .a = a.data,
                         .a_row = a.row,
                         .a_column = a.column,
                         .b = b.data,
                         .b_row = b.row,
                         .b_column = b.column,
                         .c = sums.c,
                         .c_row = sums.c_row,
                         .beta = sums.beta});
}

/// What multiplies bf16: "AMX"; empty: it is widened to f32.
std::string bf16_unit();

/// The shape of the blocks of c. One thread computes one block at a time.
struct BlockShape {
  Index rows = 0, columns = 0;
};
/// Depends on the shape alone, so that the number of threads changes no bit.
BlockShape block_shape(Index m, Index n, Index k);

}  // namespace megalith::ops::cpu
