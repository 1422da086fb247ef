#include "megalith/base/error.h"
#include "megalith/comm/mpi/mpi_world.h"

namespace megalith::comm {

bool has_mpi() { return false; }
std::string mpi_version() { return {}; }

void run_mpi_rank(const std::function<void(World&)>&, const std::function<int(const std::exception&, int)>&,
                  const std::function<WorldOptions()>&) {
  throw BackendError(
      "[mpi] this program was built without MPI: build it where an MPI is installed (MEGALITH_MPI=ON prints what "
      "is missing), or run the ranks as threads with --ranks");
}

}  // namespace megalith::comm
