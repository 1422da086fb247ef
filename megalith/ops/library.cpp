#include "megalith/ops/library.h"

#include "megalith/ops/cpu/product.h"
#include "megalith/ops/cross_entropy_kernels.h"
#include "megalith/ops/cuda/cudnn_attention.h"
#include "megalith/ops/cuda/gelu_product.h"
#include "megalith/ops/cuda/gemm.h"
#include "megalith/ops/cuda/grouped_product.h"
#include "megalith/ops/cuda/scaled_product.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith::ops {

Index library_workspace_bytes(Device device) { return device == Device::cuda ? cuda::kGemmWorkspaceBytes : 0; }

void start_libraries(Exec& ex, int multiprocessors_for_communication) {
  if constexpr (build::has_cuda) {
    if (ex.device() == Device::cpu) return;
    cuda::set_sm_margin(ex, multiprocessors_for_communication);
    cuda::prepare_cross_entropy();
    cuda::prepare_gelu_product(ex);
    cuda::prepare_grouped_product(ex);
    cuda::prepare_scaled_product(ex);
  }
}

std::string cpu_product_library() { return cpu::product_library(); }
std::string cpu_bf16_unit() { return cpu::bf16_unit(); }

std::vector<std::pair<std::string, std::string>> library_versions() {
  if constexpr (build::has_cuda)
    return {{"cuBLASLt", cuda::gemm_version()}, {"cuDNN", cuda::cudnn_version()}};
  else
    return {};
}

}  // namespace megalith::ops
