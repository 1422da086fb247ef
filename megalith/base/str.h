#pragma once
#include <sstream>
#include <string>

namespace megalith {

/// Joins its arguments as an ostream prints them: str("tp = ", 3). For messages, not for hot code.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace megalith
