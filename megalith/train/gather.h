#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megalith/comm/world.h"

namespace megalith::train {

/// The bytes of all ranks, of any length, in rank order on rank 0; nothing on other ranks. Collective over world.all():
/// an all_gather of the lengths, then a message from each other rank that has any bytes.
std::vector<std::vector<std::byte>> gather_bytes(comm::World& world, std::span<const std::byte> mine);

/// The text of rank `root`, on every rank. Collective over world.all(): broadcasts of its length and of its bytes.
std::string share_text(comm::World& world, std::string text, int root = 0);

/// The text of the lowest rank whose text is not empty, on every rank; empty if there is none. Collective over
/// world.all(): an all-reduce of 8 bytes, and share_text() if there is one.
std::string share_first_text(comm::World& world, const std::string& mine);

/// A rank's finding, and its place among those of all ranks. An empty text: it has none.
struct Finding {
  std::int64_t order = 0;
  std::string text = {};
};
/// The text of the least order, of the lowest rank that has it, on every rank; empty if no rank has one. Collective
/// over world.all(): an all-gather of 8 bytes, and share_text() if there is one.
std::string share_least_text(comm::World& world, const Finding& mine);

}  // namespace megalith::train
