// Under mpirun the ranks of grids are processes, which may share a GPU (scripts/gpu-check --only shared).
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/mpi/mpi_world.h"
#include "megalith/comm/nccl/gpus.h"

#include "tests/comm/gpu_ranks.h"

int main(int argc, char** argv) {
  using namespace megalith;
  ::testing::InitGoogleTest(&argc, argv);
  comm::set_kernel_loading(comm::KernelLoading::at_start);  // pipelines are among the tests
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    comm::set_gpu_environment();
    return RUN_ALL_TESTS();
  }
  constexpr int kQueuesOfProcessesThatShareAGpu = 16;
  comm::set_gpu_environment(kQueuesOfProcessesThatShareAGpu);
  int failed = 0;
  comm::run_mpi_rank(
      [&](comm::World& host) {
        host.share_memory();
        comm::use_processes(&host);
        failed = RUN_ALL_TESTS();
        comm::use_processes(nullptr);
      },
      [](const std::exception& error, int) {
        std::fprintf(stderr, "%s\n", error.what());
        return static_cast<int>(ExitCode::internal);
      },
      [] { return comm::WorldOptions{.timeout_s = 120}; });
  return failed;
}
