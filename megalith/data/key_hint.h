#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace megalith::data {

/// Behind "KEY is missing": the nearest of the members or columns that are there, else the first of them, and which
/// setting names the one that holds the text.
std::string instead_of(std::string_view key, const std::vector<std::string_view>& names);

}  // namespace megalith::data
