#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/types.h"

namespace megalith::io {

/// Throws InputError("[FILE] N problems\n  ...") if a file has problems; a single one is not counted. `more`: problems
/// that are counted and not listed. `last`: the error that ended the reading, if any.
inline void throw_file_problems(std::string_view file, std::span<const std::string> listed, Index more = 0,
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

/// Broken rules of a file, each as "[FILE:LINE] KEY = VALUE: RULE". The first of them are kept and the rest is counted.
class FileProblems {
 public:
  void add(std::string problem) {
    constexpr std::size_t kMaxListed = 20;
    if (listed_.size() < kMaxListed)
      listed_.push_back(std::move(problem));
    else
      ++more_;
  }
  bool empty() const { return listed_.empty(); }
  /// `last`: the error that ended the reading, if any.
  void throw_if_any(std::string_view file, std::string_view last = {}) const {
    throw_file_problems(file, listed_, more_, last);
  }

 private:
  std::vector<std::string> listed_;
  Index more_ = 0;
};

/// Files that are read one after the other. What breaks their rules is reported of all of them together.
class SeveralFiles {
 public:
  /// What read() returns; nothing, where it throws InputError.
  template <class Read>
  auto read(Read&& read) -> std::optional<decltype(read())> {
    try {
      return read();
    } catch (const InputError& error) {
      errors_ += (errors_.empty() ? "" : "\n") + std::string(error.what());
      return std::nullopt;
    }
  }
  /// For a check of what was read, which throws InputError.
  template <class Check>
  void check(Check&& check) {
    read([&] {
      check();
      return true;
    });
  }
  /// Throws InputError.
  void throw_if_any() const {
    if (!errors_.empty()) throw InputError(errors_);
  }

 private:
  std::string errors_;
};

}  // namespace megalith::io
