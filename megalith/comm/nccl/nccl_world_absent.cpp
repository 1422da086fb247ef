#include "megalith/base/error.h"
#include "megalith/comm/nccl/nccl_world.h"

namespace megalith::comm {

bool has_nccl() { return false; }
std::string nccl_version() { return {}; }

std::unique_ptr<World> nccl_world(World&, const WorldOptions&) {
  throw BackendError(
      "[nccl] this program was built without NCCL: install libnccl-dev beside the CUDA toolkit and build again "
      "(MEGALITH_NCCL=ON says what is missing), run on one GPU, or use device.type = \"cpu\"");
}

}  // namespace megalith::comm
