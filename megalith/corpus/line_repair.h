#pragma once
#include <string>
#include <string_view>

namespace megalith::corpus {

/// Joins lines that were broken for their width. A newline between two lines that are not blank becomes a space. It
/// stays when the second begins with white space, '-', '*', '=' or a number and a point. Consecutive blank lines become
/// one empty line. A line ends with "\n"; carriage returns before it are removed. A second repair changes nothing.
/// Appends to `out`.
void repair_lines(std::string_view text, std::string& out);

}  // namespace megalith::corpus
