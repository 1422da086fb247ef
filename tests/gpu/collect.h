#pragma once
#include <cstring>

#include "megalith/train/gather.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/support/gathered.h"

namespace megalith::support {

/// Where ranks are processes, and each has put its own slices: rank 0's has everybody's afterwards. Collective.
inline void collect(comm::World& world, Gathered& gathered) {
  if (!comm::ranks_are_processes()) return;
  // Names and values one after the other, each after its size.
  std::vector<std::byte> mine;
  const auto append = [&](const void* data, std::size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(data);
    const auto* const size = reinterpret_cast<const std::byte*>(&bytes);
    mine.insert(mine.end(), size, size + sizeof bytes);
    mine.insert(mine.end(), begin, begin + bytes);
  };
  for (const auto& [name, values] : gathered.tensors()) {
    append(name.data(), name.size());
    append(values.data(), values.size() * sizeof(double));
  }
  const std::vector<std::vector<std::byte>> everybody = train::gather_bytes(world, mine);
  for (std::size_t rank = 1; rank < everybody.size(); ++rank) {
    const std::byte* next = everybody[rank].data();
    const std::byte* const end = next + everybody[rank].size();
    const auto take = [&] {
      std::size_t bytes = 0;
      std::memcpy(&bytes, next, sizeof bytes);
      const std::byte* const begin = next + sizeof bytes;
      next = begin + bytes;
      return std::span(begin, bytes);
    };
    while (next != end) {
      const std::span<const std::byte> name = take(), bytes = take();
      std::vector<double> values(bytes.size() / sizeof(double));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      gathered.merge({reinterpret_cast<const char*>(name.data()), name.size()}, values);
    }
  }
}

}  // namespace megalith::support
