#include "megalith/tensor/cuda/shared_memory.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <unistd.h>

#include "megalith/base/error.h"
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

CUresult allow_access(CUdeviceptr address, std::size_t bytes, std::span<const int> gpus) {
  std::vector<CUmemAccessDesc> access;
  for (const int gpu : gpus) access.push_back({location(gpu), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  return MEGALITH_DRIVER(cuMemSetAccess)(address, bytes, access.data(), access.size());
}

int own_gpu() {
  int gpu = 0;
  check(cudaGetDevice(&gpu));
  return gpu;
}

/// Reserved addresses.
class Addresses {
 public:
  /// `wanted`: where, or 0. They may be elsewhere.
  Addresses(std::size_t bytes, std::size_t alignment, CUdeviceptr wanted = 0) : bytes_(bytes) {
    check_driver(MEGALITH_DRIVER(cuMemAddressReserve)(&begin_, bytes, alignment, wanted, 0));
  }
  ~Addresses() { static_cast<void>(MEGALITH_DRIVER(cuMemAddressFree)(begin_, bytes_)); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  CUdeviceptr begin() const { return begin_; }

 private:
  CUdeviceptr begin_ = 0;
  std::size_t bytes_;
};

/// A range of addresses, with memory mapped to it once there is some.
class Mapping {
 public:
  Mapping(std::size_t bytes, std::size_t page, std::shared_ptr<MemoryPublisher> publisher)
      : bytes_(bytes), publisher_(std::move(publisher)) {
    if (publisher_ != nullptr) {
      address_ = reinterpret_cast<CUdeviceptr>(publisher_->take_addresses(static_cast<Index>(bytes)));
    } else {
      address_ = addresses_.emplace(bytes, page).begin();
    }
  }
  ~Mapping() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (is_mapped_) static_cast<void>(MEGALITH_DRIVER(cuMemUnmap)(address_, bytes_));
    if (publisher_ != nullptr) publisher_->withdraw(data(), static_cast<Index>(bytes_), published_);
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
    CUresult exported = CUDA_SUCCESS;
    if (is_mapped_ && publisher_ != nullptr)
      exported = MEGALITH_DRIVER(cuMemExportToShareableHandle)(&descriptor_, memory,
                                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    check_driver(MEGALITH_DRIVER(cuMemRelease)(memory));  // it lives as long as it is mapped
    if (is_out_of_memory(mapped)) return false;
    check_driver(exported);
    return !is_out_of_memory(allow_access(address_, bytes_, gpus));
  }
  void publish() {
    if (publisher_ == nullptr) return;
    published_ = MemoryPublisher::Published::yes;  // from here on others may have it
    publisher_->publish(data(), static_cast<Index>(bytes_), descriptor_);
    ::close(std::exchange(descriptor_, -1));
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

 private:
  std::size_t bytes_;
  std::shared_ptr<MemoryPublisher> publisher_;
  std::optional<Addresses> addresses_;  // none: the publisher's
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
  int descriptor_ = -1;
  MemoryPublisher::Published published_ = MemoryPublisher::Published::no;
};

thread_local std::shared_ptr<MemoryPublisher> publisher_of_thread;

}  // namespace

bool can_share_memory() {
  return MEGALITH_DRIVER(cuMemCreate) != nullptr && MEGALITH_DRIVER(cuMemSetAccess) != nullptr &&
         has_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
}

bool can_export_memory() {
  return can_share_memory() && MEGALITH_DRIVER(cuMemExportToShareableHandle) != nullptr &&
         has_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}

void publish_memory_by(std::shared_ptr<MemoryPublisher> publisher) { publisher_of_thread = std::move(publisher); }
const std::shared_ptr<MemoryPublisher>& memory_publisher() { return publisher_of_thread; }

std::shared_ptr<void> reserve_addresses(std::byte* begin, Index bytes) {
  const auto wanted = reinterpret_cast<CUdeviceptr>(begin);
  try {
    auto addresses = std::make_shared<Addresses>(static_cast<std::size_t>(bytes), std::size_t{2} << 20, wanted);
    return addresses->begin() == wanted ? std::move(addresses) : nullptr;
  } catch (const BackendError&) {  // the driver may refuse a place, too
    return nullptr;
  }
}

void map_published(std::byte* address, Index bytes, int descriptor) {
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  const auto size = static_cast<std::size_t>(bytes);
  CUmemGenericAllocationHandle memory = 0;
  check_driver(MEGALITH_DRIVER(cuMemImportFromShareableHandle)(
      &memory, reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUresult mapped = MEGALITH_DRIVER(cuMemMap)(at, size, 0, memory, 0);
  static_cast<void>(MEGALITH_DRIVER(cuMemRelease)(memory));
  check_driver(mapped);
  const int gpu = own_gpu();
  const CUresult allowed = allow_access(at, size, {&gpu, 1});
  if (allowed != CUDA_SUCCESS) unmap_published(address, bytes);
  check_driver(allowed);
}

void unmap_published(std::byte* address, Index bytes) noexcept {
  static_cast<void>(
      MEGALITH_DRIVER(cuMemUnmap)(reinterpret_cast<CUdeviceptr>(address), static_cast<std::size_t>(bytes)));
}

std::shared_ptr<std::byte> take_shared_memory(Index bytes, std::span<const int> gpus) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location(own_gpu());
  if (memory_publisher() != nullptr) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::size_t page = 0;
  check_driver(
      MEGALITH_DRIVER(cuMemGetAllocationGranularity)(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  const auto whole = static_cast<std::size_t>(round_up(bytes, static_cast<Index>(page)));

  const auto mapping = std::make_shared<Mapping>(whole, page, memory_publisher());
  if (!mapping->fill(properties, gpus)) return nullptr;
  check(cudaMemset(mapping->data(), 0, whole));
  check(cudaStreamSynchronize(nullptr));  // before others write, and our streams do not wait for that one
  mapping->publish();
  return {mapping, mapping->data()};
}

}  // namespace megalith::cuda
