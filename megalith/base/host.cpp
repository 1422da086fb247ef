#include "megalith/base/host.h"

#include <array>

#include <unistd.h>

namespace megalith {

std::string host_name() {
  std::array<char, 256> name{};  // zeros to the end, whatever the system leaves there
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace megalith
