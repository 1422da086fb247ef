#pragma once
#include <memory>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// The links to ranks that do not exist.
struct AloneLinks {
  double bytes_per_s = 0;  ///< of a rank, in and out at the same time; 0: calls take no time but for their copies
};

/// One rank of a world of which no other rank exists: to measure what a rank computes, in the shapes of any grid, on
/// one device. Calls return at once, or take the time that their bytes need on the links. Their results are not those
/// of a run:
///  - The others hold the same data as this rank. So a gather, an all_to_all or a row collective gives this rank's data
///    from every member.
///  - Their terms of sums are 0; of max and min they are equal.
///  - A receive gives made-up numbers, equal in every step: of either sign, from 0.125 to 0.5 in bf16 and f32. A send
///    takes no time, as it goes out beside other calls. A broadcast of another rank leaves the tensor as it is.
/// A receive never waits for another stage, so a pipeline has no bubble. Groups of a GPU have a stream each, and the
/// row collectives of up to kMaxSummed members, as between GPUs with NVLink. GEMMs beside calls get the same SM margin
/// as there. all() is between host memories. Memory: 4 MiB for a group that has received.
/// Throws InternalError for a rank outside the world; BackendError
/// without the device, and on a GPU in a program without NCCL.
std::unique_ptr<World> alone_world(int rank, int size, Device device, const AloneLinks& links = {});

}  // namespace megalith::comm
