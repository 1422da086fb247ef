#include "megalith/base/error.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/product.h"
#include "megalith/ops/matmul_kernels.h"

namespace megalith::ops::cpu {

void run_product(const Product<float>& product) { kernels<float>().gemm.product(product); }

std::string product_library() { return {}; }

bool has_bf16_product() { return false; }
void run_product(const Product<bfloat16>&) { throw InternalError("[matmul] this build has no GEMM of bf16"); }
std::string bf16_unit() { return {}; }

}  // namespace megalith::ops::cpu
