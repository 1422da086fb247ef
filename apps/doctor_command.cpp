#include <cstdio>

#include <sys/utsname.h>
#include <unistd.h>

#include "megalith/base/text.h"
#include "megalith/comm/mpi/mpi_world.h"
#include "megalith/comm/threads/thread_world.h"

#include "apps/command.h"

namespace megalith::apps {
namespace {

void line(const char* what, const char* state, const char* note = "") {
  std::printf("%-22s %-10s %s\n", what, state, note);
}

void run_doctor() {
  utsname system{};
  uname(&system);
  const Index memory = static_cast<Index>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::printf("%-22s %s %s %s\n", "system", system.sysname, system.release, system.machine);
  std::printf("%-22s %d\n", "cores allowed", comm::allowed_cores());
  std::printf("%-22s %s\n", "memory", human_bytes(memory).c_str());
  std::printf("%-22s AVX2 %s, AVX-512 %s\n", "instructions", __builtin_cpu_supports("avx2") ? "yes" : "no",
              __builtin_cpu_supports("avx512f") ? "yes" : "no");
  line("ranks as threads", "yes");
  line("ranks as processes", comm::has_mpi() ? "yes" : "no",
       comm::has_mpi() ? "MPI" : "install OpenMPI's headers (libopenmpi-dev) and build again");
#ifdef MEGALITH_WITH_OPENMP
  line("threads in a rank", "yes", "OpenMP");
#else
  line("threads in a rank", "no", "every rank computes on one core: build with a compiler that has OpenMP");
#endif
#ifdef MEGALITH_WITH_ONEDNN
  line("f32 products", "oneDNN");
#else
  line("f32 products", "own loops", "several times slower: install libdnnl-dev and build again");
#endif
  line("GPU", "no", "this build has no CUDA backend");
}

}  // namespace

void add_doctor(CLI::App& program) {
  program.add_subcommand("doctor", "Say what this machine has, what was built in and what is missing")
      ->callback(run_doctor);
}

}  // namespace megalith::apps
