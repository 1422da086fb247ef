#include "megalith/tensor/memory.h"

#include <functional>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith {

Buffer::Buffer(Index bytes, Device device, Side side, Contents contents)
    : data_(side == Side::device ? device::allocate(device, bytes) : device::allocate_host(device, bytes, contents)),
      bytes_(bytes) {}

Tensor Buffer::view(const Shape& shape, DType dtype, Index offset) const {
  if (offset < 0 || offset + shape.numel() * size_of(dtype) > bytes_) {
    throw InternalError(str("[Buffer::view] shape ", shape, " ", name_of(dtype), " at byte ", offset, ": outside the ",
                            bytes_, " bytes of the buffer"));
  }
  return {data_.get() + offset, shape, dtype};
}

bool lies_in(std::span<const std::byte> memory, const void* begin, Index bytes) {
  const std::less_equal<const std::byte*> at_or_before;
  const auto* const first = static_cast<const std::byte*>(begin);
  return at_or_before(memory.data(), first) && at_or_before(first + bytes, memory.data() + memory.size());
}

Index total(const BytesByOwner& bytes) {
  Index sum = 0;
  for (const auto& [owner, count] : bytes) sum += count;
  return sum;
}

std::string owners_text(const BytesByOwner& bytes) {
  std::string text;
  for (const auto& [owner, count] : bytes) text += str(text.empty() ? "" : ", ", owner, ' ', human_bytes(count));
  return text;
}

Buffer MemoryLedger::take(std::string_view owner, Index bytes) { return take(owner, bytes, owner, 0); }

Buffer MemoryLedger::take(std::string_view first, Index first_bytes, std::string_view second, Index second_bytes) {
  Buffer buffer(first_bytes + second_bytes, device_);
  const std::span memory(buffer.data(), static_cast<std::size_t>(buffer.bytes()));
  memory_.emplace_back(memory);
  const auto add = [this](std::string_view owner, std::span<std::byte> piece) {
    note(owner, static_cast<Index>(piece.size()));
    if (!piece.empty()) blocks_.push_back({std::string(owner), piece});
  };
  add(first, memory.first(static_cast<std::size_t>(first_bytes)));
  add(second, memory.subspan(static_cast<std::size_t>(first_bytes)));
  return buffer;
}

void MemoryLedger::note(std::string_view owner, Index bytes) {
  by_owner_.try_emplace(std::string(owner), 0).first->second += bytes;
}

}  // namespace megalith
