#pragma once
#include <cstddef>
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

}  // namespace megalith::train
