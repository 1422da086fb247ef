#include "megalith/data/input_files.h"

#include <algorithm>

#include <fnmatch.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/document_reader.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/reader.h"

namespace megalith::data {
namespace {

bool is_data(const std::string& name) {
  return name[0] != '.' && name[0] != '_' && !name.ends_with("report.json") && name != "removed.tsv";
}

bool is_pattern(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

void add_files_of(io::Fs& fs, const io::Path& folder, std::vector<io::Path>& files) {
  for (const std::string& name : fs.list(folder))
    if (is_data(name) && !fs.is_dir(folder / name)) files.push_back(folder / name);
}

/// Files that match the names from `part` on, below `folder`.
void add_matches(io::Fs& fs, const io::Path& folder, const io::Path& pattern, io::Path::iterator part,
                 std::vector<io::Path>& files) {
  const std::string wanted = part->string();
  const bool is_last = std::next(part) == pattern.end();
  const auto step_into = [&](const std::string& name) {
    const io::Path path = folder.empty() ? io::Path(name) : folder / name;
    if (!is_last) {
      if (fs.is_dir(path)) add_matches(fs, path, pattern, std::next(part), files);
    } else if (fs.exists(path) && !fs.is_dir(path)) {
      files.push_back(path);
    }
  };
  if (!is_pattern(wanted)) return step_into(wanted);
  for (const std::string& name : fs.list(folder.empty() ? io::Path(".") : folder))
    if (::fnmatch(wanted.c_str(), name.c_str(), FNM_PERIOD) == 0 && is_data(name)) step_into(name);
}

}  // namespace

std::vector<io::Path> input_files(io::Fs& fs, const std::vector<std::string>& arguments) {
  std::vector<io::Path> files;
  for (const std::string& argument : arguments) {
    const io::Path path(argument);
    const std::size_t before = files.size();
    if (fs.is_dir(path)) {
      add_files_of(fs, path, files);
      if (files.size() == before)
        throw InputError(str("[input] ", argument, ": the folder has no files", io::looked_for_in(path)));
    } else if (is_pattern(argument) && !fs.exists(path)) {
      auto first = path.begin();
      if (path.has_root_path()) ++first;
      add_matches(fs, path.root_path(), path, first, files);
      if (files.size() == before)
        throw InputError(str("[input] ", argument, ": no file matches the pattern", io::looked_for_in(path)));
    } else {
      require_file(fs, path, "input");
      files.push_back(path);
    }
  }
  return files;
}

void refuse_table(const io::Path& file) {
  std::string name = file.filename().string();
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  for (const std::string_view packed : {".gz", ".zst", ".xz"})
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  const bool is_csv = name.ends_with(".csv");
  if (!is_csv && !name.ends_with(".tsv") && !name.ends_with(".tab")) return;
  throw InputError(str("[", file.string(), "] is a table (", is_csv ? "CSV" : "TSV",
                       "), whose columns are not read: write its rows as lines of JSON, {\"text\": \"...\"}, to a "
                       ".jsonl file, or as Parquet; a file named .txt is taken as plain text"));
}

bool any_has_members(io::Fs& fs, const std::vector<io::Path>& files, CorpusFormat format) {
  return std::ranges::any_of(files,
                             [&](const io::Path& file) { return format_of(fs, file, format) != CorpusFormat::text; });
}

std::string files_text(const std::vector<io::Path>& files) {
  constexpr std::size_t kNamed = 3;
  std::string text = str(files.size(), files.size() == 1 ? " file: " : " files: ");
  for (std::size_t i = 0; i < std::min(kNamed, files.size()); ++i)
    text += str(i == 0 ? "" : ", ", io::printable(files[i].filename().string()));
  return files.size() > kNamed ? text + ", ..." : text;
}

}  // namespace megalith::data
