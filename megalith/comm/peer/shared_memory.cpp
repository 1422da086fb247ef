#include "megalith/comm/peer/shared_memory.h"

#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/driver.h"

namespace megalith::comm {
namespace {

CUmemLocation location(int gpu) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = gpu;
  return location;
}

CUdeviceptr native(std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

bool SharedMemory::is_possible() {
  return MEGALITH_DRIVER(cuMemCreate) != nullptr && MEGALITH_DRIVER(cuMemSetAccess) != nullptr &&
         cuda::has_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
}

SharedMemory::SharedMemory(Index bytes, std::span<const int> gpus) : SharedMemory() {
  int own = 0;
  cuda::check(cudaGetDevice(&own));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location(own);
  std::size_t page = 0;
  cuda::check_driver(
      MEGALITH_DRIVER(cuMemGetAllocationGranularity)(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  bytes_ = static_cast<std::size_t>(round_up(bytes, static_cast<Index>(page)));

  CUdeviceptr address = 0;
  cuda::check_driver(MEGALITH_DRIVER(cuMemAddressReserve)(&address, bytes_, page, 0, 0));
  data_ = reinterpret_cast<std::byte*>(address);
  CUmemGenericAllocationHandle memory = 0;
  const CUresult created = MEGALITH_DRIVER(cuMemCreate)(&memory, bytes_, &properties, 0);
  if (created == CUDA_ERROR_OUT_OF_MEMORY)
    throw IoError(str("[memory] cannot take ", human_bytes(bytes), " of the GPU for messages between GPUs: use a ",
                      "smaller model or microbatch, or set parallel.transfers = \"kernels\", which takes less"));
  cuda::check_driver(created);
  const CUresult mapped = MEGALITH_DRIVER(cuMemMap)(address, bytes_, 0, memory, 0);
  is_mapped_ = mapped == CUDA_SUCCESS;
  cuda::check_driver(MEGALITH_DRIVER(cuMemRelease)(memory));  // it lives as long as it is mapped
  cuda::check_driver(mapped);
  std::vector<CUmemAccessDesc> access;
  for (const int gpu : gpus) access.push_back({location(gpu), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  cuda::check_driver(MEGALITH_DRIVER(cuMemSetAccess)(address, bytes_, access.data(), access.size()));
  cuda::check(cudaMemset(data_, 0, bytes_));
  cuda::check(cudaStreamSynchronize(nullptr));  // before others write
}

SharedMemory::~SharedMemory() {
  if (is_mapped_) static_cast<void>(MEGALITH_DRIVER(cuMemUnmap)(native(data_), bytes_));
  if (data_ != nullptr) static_cast<void>(MEGALITH_DRIVER(cuMemAddressFree)(native(data_), bytes_));
}

}  // namespace megalith::comm
