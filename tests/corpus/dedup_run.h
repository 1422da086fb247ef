#pragma once
#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/corpus/dedup.h"

#include "tests/io/temp_dir.h"

namespace megalith::support {

/// `count` words that no other call with another `seed` gives.
inline std::string words(const std::string& seed, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += str(i == 0 ? "" : " ", seed, "w", i);
  return text;
}

/// Two texts of which `shared` of `either` shingles of 5 words are shared, in exactly that number.
inline std::pair<std::string, std::string> pair_of_texts(const std::string& seed, int shared, int either) {
  const std::string common = words(seed + "c", shared + 4);
  const int own = either - shared;
  return {common + " " + words(seed + "a", own / 2), common + " " + words(seed + "b", own - own / 2)};
}

inline std::string line(const std::string& text) { return "{\"text\": \"" + text + "\"}\n"; }

/// The files of a folder by name, without what report.json holds (it has seconds).
inline std::map<std::string, std::string> files_of(const io::Path& folder) {
  std::map<std::string, std::string> files;
  if (!std::filesystem::exists(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename() != "report.json")
      files[entry.path().filename().string()] = read_all(entry.path());
  return files;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one);) lines.push_back(one);
  return lines;
}

}  // namespace megalith::support
