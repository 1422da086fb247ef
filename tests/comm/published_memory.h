#pragma once
#include "megalith/comm/world.h"

namespace megalith::comm {

/// Processes publish memory to each other (PeerMemory), and write into each other's under the same addresses. Memory of
/// files stands for that of GPUs. Throws at the first difference. Collective; ranks are processes of one host.
void write_into_published_memory(World& world);

}  // namespace megalith::comm
