#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/utsname.h>
#include <unistd.h>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/mpi/mpi_world.h"
#include "megalith/comm/threads/thread_world.h"

#include "apps/command.h"

namespace megalith::apps {
namespace {

struct Finding {
  std::string what, state, note;
};

const char* yes_if(bool holds) { return holds ? "yes" : "no"; }

std::vector<Finding> findings() {
  utsname system{};
  uname(&system);
  const Index memory = static_cast<Index>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::vector<Finding> all = {
      {"system", str(system.sysname, " ", system.release, " ", system.machine), ""},
      {"cores allowed", str(comm::allowed_cores()), ""},
      {"memory", human_bytes(memory), ""},
      {"AVX2", yes_if(__builtin_cpu_supports("avx2") != 0), ""},
      {"AVX-512", yes_if(__builtin_cpu_supports("avx512f") != 0), ""},
      {"ranks as threads", "yes", ""},
      {"ranks as processes", yes_if(comm::has_mpi()),
       comm::has_mpi() ? "MPI" : "install OpenMPI's headers (libopenmpi-dev) and build again"},
  };
#ifdef MEGALITH_WITH_OPENMP
  all.push_back({"threads in a rank", "yes", "OpenMP"});
#else
  all.push_back({"threads in a rank", "no", "every rank computes on one core: build with a compiler that has OpenMP"});
#endif
#ifdef MEGALITH_WITH_ONEDNN
  all.push_back({"f32 products", "oneDNN", ""});
#else
  all.push_back({"f32 products", "own loops", "several times slower: install libdnnl-dev and build again"});
#endif
  all.push_back({"GPU", "no", "this build has no CUDA backend"});
  return all;
}

void run_doctor(const std::string& format) {
  if (format == "json") {
    nlohmann::ordered_json out;
    for (const Finding& one : findings()) {
      out[one.what]["state"] = one.state;
      if (!one.note.empty()) out[one.what]["note"] = one.note;
    }
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  for (const Finding& one : findings())
    std::printf("%-20s %-10s %s\n", one.what.c_str(), one.state.c_str(), one.note.c_str());
}

}  // namespace

void add_doctor(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("doctor", "Say what this machine has, what was built in and what is missing");
  const auto format = std::make_shared<std::string>("text");
  command->add_option("--format", *format, "text or json")->check(CLI::IsMember({"text", "json"}));
  command->callback([format] { run_doctor(*format); });
}

}  // namespace megalith::apps
