#include "megalith/base/error.h"
#include "megalith/comm/nccl/nccl_world.h"

namespace megalith::comm {
namespace {

[[noreturn]] void throw_no_nccl() {
  throw BackendError(
      "device.type = cuda: ranks on several GPUs communicate over NCCL, which this program was built without: install "
      "libnccl-dev beside the CUDA toolkit and build again (MEGALITH_NCCL=ON prints what is missing), run on one GPU "
      "(parallel.ranks = 1), or use device.type = \"cpu\"");
}

}  // namespace

bool has_nccl() { return false; }
void require_nccl() { throw_no_nccl(); }
int nccl_version_number() { return 0; }
std::string nccl_version() { return {}; }
std::unique_ptr<World> nccl_world(World&, const WorldOptions&, Transport) { throw_no_nccl(); }

}  // namespace megalith::comm
