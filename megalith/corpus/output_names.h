#pragma once
#include <array>
#include <cstdio>
#include <string>

#include "megalith/io/fs.h"

namespace megalith::corpus {

/// The name of a command's file for its input number `file`: "00007-NAME.jsonl", NAME up to its first point. In name
/// order such files are in the order of the inputs.
inline std::string output_name(std::size_t file, const io::Path& input) {
  const std::string name = input.filename().string();
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "%05zu-", file);
  return number.data() + name.substr(0, name.find('.', 1)) + ".jsonl";
}

/// The name of a file of a run that is not complete.
inline io::Path unpublished(const io::Path& output) {
  return output.parent_path() / ("." + output.filename().string() + ".whole");
}

}  // namespace megalith::corpus
