#include "megalith/tensor/gpu_pretence.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::device {
namespace {

Pretence of_process;

}  // namespace

Pretence parse_pretence(std::string_view text) {
  Pretence pretence;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (word == "no-cudnn-forward")
      pretence.no_library_forward = true;
    else if (word == "no-cudnn-backward")
      pretence.no_library_backward = true;
    else if (word == "pcie")
      pretence.links_are_pcie = true;
    else if (word == "ampere")
      pretence.is_ampere = true;
    else
      throw ConfigError(str("MEGALITH_GPU_PRETENCE: ", word,
                            ": must be no-cudnn-forward, no-cudnn-backward, pcie or ampere, with commas"));
  }
  return pretence;
}

void pretend(const Pretence& pretence) { of_process = pretence; }
const Pretence& pretended() { return of_process; }

}  // namespace megalith::device
