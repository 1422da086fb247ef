#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "megalith/base/types.h"

namespace megalith {

/// Levenshtein distance in bytes.
Index edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name`, or "" when none is near enough to be a likely slip of the fingers.
std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates);

/// 1536 -> "1.50 KiB". For people; files hold plain bytes.
std::string human_bytes(Index bytes);

/// 52.4e-6 -> "52 us". For people.
std::string microseconds(double seconds);

/// The shortest decimal text that reads back as the same double ("nan", "inf" for those).
std::string exact(double value);
/// Of the same float: at most 9 digits.
std::string exact(float value);

/// 64 bits as 16 lower-case hex digits.
std::string hex64(std::uint64_t value);

}  // namespace megalith
