#pragma once

/// What this build contains. Facts for `if constexpr`: both branches are parsed in every build, only one is linked.
namespace megalith::build {

inline constexpr bool has_cuda = MEGALITH_HAS_CUDA != 0;
#ifdef NDEBUG
inline constexpr bool is_debug = false;
#else
inline constexpr bool is_debug = true;
#endif

}  // namespace megalith::build
