#pragma once
#include <functional>
#include <string>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Whether MPI was built in.
bool has_mpi();
/// "Open MPI v4.1.4"; empty without it.
std::string mpi_version();

/// Runs `body` as this process's rank of MPI_COMM_WORLD. Initialises and finalises MPI (MPI_THREAD_FUNNELED; all calls
/// on this thread; Isend, Irecv and Test with back-off only). The rank computes with its share of the allowed cores, as
/// OpenMP threads.
///
/// If `body` throws, the other processes are notified, and their waits throw AbortedError. The rank that failed first
/// calls `report` with the exception, whose text begins "rank N: ". MPI_Abort ends the job with the exit code that
/// `report` returns. This function does not return then. A body that catches an error of communication cannot
/// communicate any more: it may write its call log, and rethrows. `options` runs before the body, and its exceptions
/// count as the body's.
///
/// Throws BackendError when MPI was not built in or does not start.
void run_mpi_rank(const std::function<void(World&)>& body,
                  const std::function<int(const std::exception&, int rank)>& report,
                  const std::function<WorldOptions()>& options);

}  // namespace megalith::comm
