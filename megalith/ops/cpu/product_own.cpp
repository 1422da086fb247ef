#include "megalith/ops/cpu/matmul.h"

namespace megalith::ops::cpu {

void run_product(const Product<float>& product) { kernels<float>().gemm.product(product); }

}  // namespace megalith::ops::cpu
