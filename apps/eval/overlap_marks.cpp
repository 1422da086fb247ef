#include "apps/eval/overlap_marks.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/problem_text.h"

namespace megalith::apps {

std::vector<bool> read_overlap_marks(io::Fs& fs, const io::Path& folder, const std::string& data,
                                     std::size_t examples) {
  const io::Path path = folder / "per_document.jsonl";
  if (!fs.exists(path)) {
    throw InputError(str("--overlap = ", folder.string(),
                         ": has no per_document.jsonl: must be a folder that `megalith data overlap --output` wrote",
                         io::looked_for_in(folder)));
  }
  const io::MappedFile file = fs.map(path);
  const std::string name = io::Path(data).filename().string();
  std::vector<bool> marks;
  std::set<std::string> others;
  std::size_t number = 1;
  for (std::string_view rest = file.text(); !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    try {
      const nlohmann::json document = nlohmann::json::parse(line);
      const std::string of = io::Path(document.at("file").get<std::string>()).filename().string();
      if (of == name)
        marks.push_back(document.at("found").get<std::uint64_t>() > 0);
      else
        others.insert(of);
    } catch (const nlohmann::json::exception& error) {
      throw InputError(
          str("[", path.string(), "] line ", number, ": is not a line of `megalith data overlap`: ", error.what()));
    }
  }
  if (marks.size() == examples) return marks;
  std::string has = marks.empty() ? "has no document of " + name : str("has ", marks.size(), " documents of ", name);
  for (const std::string& other : others)
    has += str(marks.empty() && other == *others.begin() ? ", but of " : ", ", other);
  throw InputError(str("[", path.string(), "] ", has, ": must have one for each of the ", examples, " examples of ",
                       data, "; run `megalith data overlap --test ", data, "`"));
}

}  // namespace megalith::apps
