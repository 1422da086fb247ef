#pragma once
#include <string>
#include <string_view>

namespace megalith::corpus {

/// Joins lines that were broken for their width: a newline between two lines that are not blank becomes a space, unless
/// the second begins with white space, '-', '*', '=' or a number and a point. Runs of blank lines become one empty
/// line. A line ends with "\n", carriage returns before it go. What is repaired stays as it is when it is repaired
/// again. Appends to `out`.
void repair_lines(std::string_view text, std::string& out);

}  // namespace megalith::corpus
