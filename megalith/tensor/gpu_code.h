#pragma once
#include <string>
#include <string_view>

namespace megalith::device {

// The GPUs for which a program has code. Architectures are named as in CMAKE_CUDA_ARCHITECTURES, in a list as "80,
// 90a". "80" is machine code for compute capability 8.0 to 8.9 and PTX for all later ones. "80-real" and "80-virtual"
// are one of the two. "100f" is for 10.0 to 10.9, "90a" for 9.0 alone.

/// Whether code for one of them runs on a GPU of this compute capability, "9.0". Yes for names without a capability, as
/// "native".
bool has_code_for(std::string_view capability, std::string_view architectures);

/// The lack of a program without code for such a GPU, and the fix: "this program has code for 90a only; ...".
std::string lack_of_code(std::string_view capability, std::string_view architectures);

}  // namespace megalith::device
