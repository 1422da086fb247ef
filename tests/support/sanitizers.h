#pragma once

namespace megalith::support {

/// The sanitizer that this build has. Both keep freed memory for a while and start slowly, so that tests of memory and
/// address space cannot measure what the program itself takes.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline constexpr bool kSanitizer = kAddressSanitizer || kThreadSanitizer;

}  // namespace megalith::support
