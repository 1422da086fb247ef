#pragma once
#include <span>
#include <string>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/types.h"

namespace megalith::apps {

/// Throws InputError("[FILE] N problems\n  ...") if a file has problems; a single one is not counted. `more`: problems
/// that are counted and not listed. `last`: the error that ended the reading, if any.
inline void throw_file_problems(const std::string& file, std::span<const std::string> listed, Index more = 0,
                                std::string_view last = {}) {
  const Index count = std::ssize(listed) + more + (last.empty() ? 0 : 1);
  if (count == 0) return;
  if (count == 1) throw InputError(last.empty() ? listed.front() : std::string(last));
  std::string all = str("[", file, "] ", count, " problems");
  for (const std::string& problem : listed) all += "\n  " + problem;
  if (more > 0) all += str("\n  and ", more, " more");
  if (!last.empty()) all += str("\n  ", last);
  throw InputError(all);
}

}  // namespace megalith::apps
