#include "megalith/base/problems.h"

#include "megalith/base/listed_problems.h"

namespace megalith {

bool Problems::positive(std::initializer_list<std::pair<std::string_view, Index>> values) {
  bool all = true;
  for (const auto& [key, value] : values) {
    if (value >= 1) continue;
    add(key, value, "must be at least 1");
    all = false;
  }
  return all;
}

void Problems::throw_if_any(std::string_view source) const {
  if (empty()) return;
  std::string text = str(source, ": ", lines_.size(), lines_.size() == 1 ? " problem" : " problems");
  for (const std::string& line : lines_) text += "\n  " + line;
  throw ListedProblems(text, lines_);
}

}  // namespace megalith
