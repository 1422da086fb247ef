#include "megalith/tensor/cuda/shared_memory.h"

#include <vector>

#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/driver.h"

namespace megalith::cuda {
namespace {

CUmemLocation location(int gpu) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = gpu;
  return location;
}

bool is_out_of_memory(CUresult status) {
  if (status == CUDA_ERROR_OUT_OF_MEMORY) return true;
  check_driver(status);
  return false;
}

/// A range of addresses, with memory mapped to it once there is some.
class Mapping {
 public:
  Mapping(std::size_t bytes, std::size_t page) : bytes_(bytes) {
    check_driver(MEGALITH_DRIVER(cuMemAddressReserve)(&address_, bytes, page, 0, 0));
  }
  ~Mapping() {
    if (is_mapped_) static_cast<void>(MEGALITH_DRIVER(cuMemUnmap)(address_, bytes_));
    static_cast<void>(MEGALITH_DRIVER(cuMemAddressFree)(address_, bytes_));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Maps memory of `own`, the calling thread's GPU, which all `gpus` can access. False when there is no more memory,
  /// even for page tables.
  bool fill(const CUmemAllocationProp& own, std::span<const int> gpus) {
    CUmemGenericAllocationHandle memory = 0;
    if (is_out_of_memory(MEGALITH_DRIVER(cuMemCreate)(&memory, bytes_, &own, 0))) return false;
    const CUresult mapped = MEGALITH_DRIVER(cuMemMap)(address_, bytes_, 0, memory, 0);
    is_mapped_ = mapped == CUDA_SUCCESS;
    check_driver(MEGALITH_DRIVER(cuMemRelease)(memory));  // it lives as long as it is mapped
    if (is_out_of_memory(mapped)) return false;
    std::vector<CUmemAccessDesc> access;
    for (const int gpu : gpus) access.push_back({location(gpu), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    return !is_out_of_memory(MEGALITH_DRIVER(cuMemSetAccess)(address_, bytes_, access.data(), access.size()));
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

 private:
  std::size_t bytes_;
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
};

}  // namespace

bool can_share_memory() {
  return MEGALITH_DRIVER(cuMemCreate) != nullptr && MEGALITH_DRIVER(cuMemSetAccess) != nullptr &&
         has_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
}

std::shared_ptr<std::byte> take_shared_memory(Index bytes, std::span<const int> gpus) {
  int own = 0;
  check(cudaGetDevice(&own));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location(own);
  std::size_t page = 0;
  check_driver(
      MEGALITH_DRIVER(cuMemGetAllocationGranularity)(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  const auto whole = static_cast<std::size_t>(round_up(bytes, static_cast<Index>(page)));

  const auto mapping = std::make_shared<Mapping>(whole, page);
  if (!mapping->fill(properties, gpus)) return nullptr;
  check(cudaMemset(mapping->data(), 0, whole));
  check(cudaStreamSynchronize(nullptr));  // before others write, and our streams do not wait for that one
  return {mapping, mapping->data()};
}

}  // namespace megalith::cuda
