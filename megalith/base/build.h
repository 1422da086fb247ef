#pragma once

/// What this build is. Facts for `if constexpr`: both branches are parsed in every build, only one is linked.
namespace megalith::build {

#ifdef NDEBUG
inline constexpr bool is_debug = false;
#else
inline constexpr bool is_debug = true;
#endif

}  // namespace megalith::build
