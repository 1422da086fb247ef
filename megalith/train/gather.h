#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "megalith/comm/world.h"

namespace megalith::train {

/// Everybody's bytes, of any length, in rank order on rank 0; nothing elsewhere. Collective, over world.all(): an
/// all_gather of the lengths, then a message from each other rank that has any.
std::vector<std::vector<std::byte>> gather_bytes(comm::World& world, std::span<const std::byte> mine);

}  // namespace megalith::train
