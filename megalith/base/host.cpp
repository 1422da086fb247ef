#include "megalith/base/host.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include <sched.h>
#include <unistd.h>

#include "megalith/base/hash.h"

namespace megalith {

std::string host_name() {
  std::array<char, 256> name{};  // zeros to the end, whatever the system leaves there
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::uint64_t host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return hash_combine(fnv1a(boot), fnv1a(host_name()));
}

std::uint64_t random_word() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random() | 1;
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &mask)) cores.push_back(core);
    }
  }
  if (cores.empty()) {
    cores.resize(std::max(1u, std::thread::hardware_concurrency()));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

}  // namespace megalith
