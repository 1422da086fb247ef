#include "megalith/tensor/gpu_code.h"

#include <algorithm>
#include <charconv>

#include "megalith/base/str.h"

namespace megalith::device {
namespace {

/// "90" for "9.0"
std::string without_dot(std::string_view capability) {
  std::string digits(capability);
  std::erase(digits, '.');
  return digits;
}

/// Whether code for this architecture runs on a GPU of capability 90, which is 9.0.
bool runs_on(int capability, std::string_view architecture) {
  int number = 0;
  const char* const end = architecture.data() + architecture.size();
  const std::string_view kind(std::from_chars(architecture.data(), end, number).ptr, end);
  if (kind.starts_with('a')) return number == 0 || number == capability;  // "all"
  if (kind.starts_with('f') || kind == "-real") return number / 10 == capability / 10 && number <= capability;
  return number <= capability;
}

}  // namespace

bool has_code_for(std::string_view capability, std::string_view architectures) {
  const std::string digits = without_dot(capability);
  int number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  while (!architectures.empty()) {
    const std::size_t end = std::min(architectures.find(", "), architectures.size());
    if (runs_on(number, architectures.substr(0, end))) return true;
    architectures.remove_prefix(std::min(end + 2, architectures.size()));
  }
  return false;
}

std::string lack_of_code(std::string_view capability, std::string_view architectures) {
  const std::string number = without_dot(capability);
  return str("this program has code for ", architectures,
             " only; build it by scripts/build cuda-all, which is for A100, H100, H200 and B200, or with "
             "-DCMAKE_CUDA_ARCHITECTURES=",
             number, number == "90" ? "a" : "");  // the code of our kernels for Hopper
}

}  // namespace megalith::device
