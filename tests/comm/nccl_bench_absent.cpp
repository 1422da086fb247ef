#include "megalith/base/error.h"

#include "tests/comm/nccl_bench.h"

namespace megalith::comm {

void nccl_bench(World&) { throw BackendError("[nccl-bench] this program was built without NCCL"); }

}  // namespace megalith::comm
