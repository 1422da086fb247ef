#pragma once
#include <functional>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Runs `body` on `size` threads of this process (rank 0 on the calling one), each a rank with its own World. Returns
/// when all have ended. Every rank computes with max(1, usable_cores() / size) threads. Rethrows the first failure, as
/// its class and with "rank N: " in front (rethrow_with_rank); the others are released from their waits at once. Waits
/// yield the core or block when the other ranks need it. A wait for a rank whose body has returned is a HangError at
/// once.
///
/// With `report` a rank that does not end, whatever it does, cannot block the job. A second after the first failure
/// `report` is called with it on the failed rank's thread. The process ends with the exit code that it returns when all
/// ranks have ended, or after 5 s more. Without `report` this waits for ever.
void run_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options = {},
               const std::function<int(const std::exception&, int rank)>& report = nullptr);

}  // namespace megalith::comm
