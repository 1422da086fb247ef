#pragma once
#include <string_view>

namespace megalith::device {

/// Properties of this machine's GPUs that tests pretend, because no machine at hand has them.
struct Pretence {
  bool no_library_forward = false, no_library_backward = false;  ///< cuDNN has no kernel for attention's pass
  bool links_are_pcie = false;                                   ///< no two GPUs have NVLink between them
  bool is_ampere = false;                                        ///< compute capability 8
};
/// Parses a list of "no-cudnn-forward", "no-cudnn-backward", "pcie" and "ampere", with commas between. Throws
/// ConfigError.
Pretence parse_pretence(std::string_view text);
/// Sets it for the whole process, from here on. Call it before rank threads start.
void pretend(const Pretence& pretence);
const Pretence& pretended();

}  // namespace megalith::device
