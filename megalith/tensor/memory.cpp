#include "megalith/tensor/memory.h"

#include <cstdlib>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith {

void Buffer::Free::operator()(std::byte* data) const { std::free(data); }

Buffer::Buffer(Index bytes, Device device) : bytes_(bytes) {
  if (device != Device::cpu) throw BackendError("[Buffer] device = cuda: this build has no CUDA backend");
  if (bytes == 0) return;
  const Index padded = round_up(bytes, kAlignment);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<std::size_t>(padded)));
  if (data == nullptr)
    throw IoError(str("[memory] cannot take ", human_bytes(bytes),
                      ": the system has no more memory. `megalith plan` shows what a recipe takes; a smaller "
                      "train.micro_batch or more parallel ranks take less each"));
  data_.reset(data);
  std::memset(data, 0, static_cast<std::size_t>(padded));
}

Tensor Buffer::view(const Shape& shape, DType dtype, Index offset) const {
  if (offset < 0 || offset + shape.numel() * size_of(dtype) > bytes_) {
    throw InternalError(str("[Buffer::view] shape ", shape, " ", name_of(dtype), " at byte ", offset, ": outside the ",
                            bytes_, " bytes of the buffer"));
  }
  return {data_.get() + offset, shape, dtype};
}

Index total(const BytesByOwner& bytes) {
  Index sum = 0;
  for (const auto& [owner, count] : bytes) sum += count;
  return sum;
}

Buffer MemoryLedger::take(std::string_view owner, Index bytes) {
  const auto entry = by_owner_.try_emplace(std::string(owner), 0).first;
  Buffer buffer(bytes, device_);
  entry->second += bytes;
  return buffer;
}

}  // namespace megalith
