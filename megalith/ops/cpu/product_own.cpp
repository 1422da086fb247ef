#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/product.h"
#include "megalith/ops/matmul_kernels.h"

namespace megalith::ops::cpu {

void run_product(const Product<float>& product) { kernels<float>().gemm.product(product); }

std::string product_library() { return {}; }

}  // namespace megalith::ops::cpu
