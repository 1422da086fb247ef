#pragma once
#include <cstdint>
#include <string_view>

#include "megalith/base/types.h"

namespace megalith::data {

// For reader and writer of .idx. indexed_dataset.h describes the layout.
inline constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr Index kIndexHeaderBytes = 9 + 8 + 1 + 8 + 8;

}  // namespace megalith::data
