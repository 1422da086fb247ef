#include "megalith/ops/cpu/matmul.h"

namespace megalith::ops::cpu {

void run_product(const Product<float>& product) { kernels<float>().gemm.product(product); }

std::string product_library() { return {}; }

}  // namespace megalith::ops::cpu
