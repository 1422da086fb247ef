#include "megalith/capture/memory_copy.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::capture {
namespace {

Index size_of_all(std::span<const MemoryLedger::Block> pieces) {
  Index bytes = 0;
  for (const MemoryLedger::Block& piece : pieces) bytes += static_cast<Index>(piece.memory.size());
  return bytes;
}

}  // namespace

MemoryCopy::MemoryCopy(Device device, std::vector<MemoryLedger::Block> pieces)
    : pieces_(std::move(pieces)),
      kept_(size_of_all(pieces_), device, Side::host, Contents::undefined),
      staged_(kStagedBytes, device, Side::host, Contents::undefined) {}

Index MemoryCopy::host_bytes(std::span<const MemoryLedger::Block> pieces) { return size_of_all(pieces) + kStagedBytes; }

template <class Use>
void MemoryCopy::for_blocks(Use&& use) {
  std::byte* kept = kept_.data();
  for (const MemoryLedger::Block& piece : pieces_) {
    for (std::span<std::byte> rest = piece.memory; !rest.empty();) {
      const std::span<std::byte> block = rest.first(std::min(rest.size(), static_cast<std::size_t>(kStagedBytes)));
      use(block, kept);
      kept += block.size();
      rest = rest.subspan(block.size());
    }
  }
}

void MemoryCopy::keep(Exec& ex) {
  for_blocks([&](std::span<std::byte> memory, std::byte* kept) {
    ex.copy(kept, memory.data(), static_cast<Index>(memory.size()));
  });
  ex.synchronize();
}

std::span<const std::byte> MemoryCopy::read(Exec& ex, std::span<const std::byte> memory) {
  ex.copy(staged_.data(), memory.data(), static_cast<Index>(memory.size()));
  ex.synchronize();
  return {staged_.data(), memory.size()};
}

void MemoryCopy::exchange(Exec& ex) {
  for_blocks([&](std::span<std::byte> memory, std::byte* kept) {
    const std::span<const std::byte> present = read(ex, memory);
    ex.copy(memory.data(), kept, static_cast<Index>(memory.size()));
    ex.synchronize();
    std::ranges::copy(present, kept);
  });
}

bool MemoryCopy::equals(Exec& ex) {
  bool equal = true;
  for_blocks([&](std::span<std::byte> memory, const std::byte* kept) {
    equal = equal && std::ranges::equal(read(ex, memory), std::span(kept, memory.size()));
  });
  return equal;
}

std::optional<Index> MemoryCopy::first_difference_in(Exec& ex, const std::byte* begin, Index bytes) {
  const std::byte* kept = kept_.data();
  for (const MemoryLedger::Block& piece : pieces_) {
    if (lies_in(piece.memory, begin, bytes)) {
      kept += begin - piece.memory.data();
      for (Index done = 0; done < bytes; done += kStagedBytes) {
        const auto count = static_cast<std::size_t>(std::min(kStagedBytes, bytes - done));
        const std::span<const std::byte> present = read(ex, {begin + done, count});
        const auto [at, kept_at] = std::ranges::mismatch(present, std::span(kept + done, count));
        if (at != present.end()) return done + (at - present.begin());
      }
      return std::nullopt;
    }
    kept += piece.memory.size();
  }
  throw InternalError(str("[MemoryCopy] ", bytes, " bytes that have a name lie outside the planned memory"));
}

std::optional<MemoryCopy::Difference> MemoryCopy::first_of(Exec& ex, MemoryNames names) {
  for (const MemoryLedger::Block& piece : pieces_) {
    names.push_back({piece.memory.data(),
                     static_cast<Index>(piece.memory.size()),
                     {StepOrder::Part::anywhere, static_cast<Index>(names.size())},
                     piece.owner});
  }
  std::ranges::stable_sort(names, {}, &NamedMemory::order);
  for (const NamedMemory& named : names) {
    if (const std::optional<Index> at = first_difference_in(ex, named.begin, named.bytes))
      return Difference{named.order, str(named.name, " at byte ", *at, " of ", named.bytes)};
  }
  return std::nullopt;
}

}  // namespace megalith::capture
