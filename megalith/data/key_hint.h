#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace megalith::data {

/// The setting that names the member or column of the text.
inline constexpr std::string_view kKeySetting = "--key, or data.key of a recipe, names the one that holds the text";

/// Follows "KEY is missing" in an error: the nearest of the existing members or columns, else the first of them, and
/// the fix.
std::string instead_of(std::string_view key, const std::vector<std::string_view>& names,
                       std::string_view fix = kKeySetting);

}  // namespace megalith::data
