#include "megalith/base/host.h"

#include <array>
#include <fstream>

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

}  // namespace megalith
