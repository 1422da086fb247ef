#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class Align { left, right };

/// Rows of equally many cells as lines of text: columns as wide as their widest cell, two spaces between, aligned to
/// the right unless set otherwise. No spaces at the end of a line.
std::string text_table(const std::vector<std::vector<std::string>>& rows, Align align = Align::right);

/// "4+2"
std::string joined(const std::vector<int>& numbers, std::string_view separator = "+");

/// Ascending numbers as "0-3, 8-11"; of what is wider than about 20 characters the first ones, and how many more.
std::string stretches(const std::vector<int>& numbers);

}  // namespace megalith
