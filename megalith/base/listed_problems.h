#pragma once
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"

namespace megalith {

/// The ConfigError of Problems::throw_if_any: its text has a line for each problem, and lines() has them apart.
class ListedProblems : public ConfigError {
 public:
  ListedProblems(const std::string& text, std::vector<std::string> lines)
      : ConfigError(text), lines_(std::move(lines)) {}
  /// A line may have line ends of its own.
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

}  // namespace megalith
