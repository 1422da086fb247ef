#pragma once
#include <cstdint>

#include "megalith/tensor/device.h"

namespace megalith::support {

/// A kernel of one thread in `stream` that ends after 0 to `max_us`, another time in each launch, also from a graph.
void spin(Stream stream, std::uint64_t seed, int max_us);
/// Loads it on the GPU of the calling thread. Call it before work of other ranks is awaited.
void load_spin();

}  // namespace megalith::support
