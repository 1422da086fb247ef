#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace megalith::data {

/// Which setting names the member or column that holds the text.
inline constexpr std::string_view kKeySetting = "--key, or data.key of a recipe, names the one that holds the text";

/// Behind "KEY is missing": the nearest of the members or columns that are there, else the first of them, and the fix.
std::string instead_of(std::string_view key, const std::vector<std::string_view>& names,
                       std::string_view fix = kKeySetting);

}  // namespace megalith::data
