#include "megalith/tasks/race.h"

#include <algorithm>
#include <functional>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/json_reader.h"
#include "megalith/tasks/task_file.h"

namespace megalith::tasks {
namespace {

using Json = nlohmann::json;

/// An article of a file: its JSON, and where it is.
struct RaceText {
  std::string_view json;
  std::string file;
  std::string where;  // "[FILE] ", "[FILE:LINE] "
  Index line = 1;
  std::string_view folder{};  // the name of its folder, of a file of its own
};

void add_files_below(io::Fs& fs, const io::Path& folder, std::vector<io::Path>& files, int depth) {
  constexpr int kMaxDepth = 8;  // links may lead back
  for (const std::string& name : fs.list(folder)) {
    if (name.starts_with('.')) continue;
    if (fs.is_dir(folder / name)) {
      if (depth < kMaxDepth) add_files_below(fs, folder / name, files, depth + 1);
    } else if (name.ends_with(".txt")) {
      files.push_back(folder / name);
    }
  }
}

/// Calls use() for each article of a folder or file.
void for_each_article(io::Fs& fs, const io::Path& path, std::string_view what, std::size_t max_line,
                      const std::function<void(const RaceText&)>& use) {
  if (!fs.is_dir(path)) {
    for_each_line(fs, path, what, max_line, [&](const FileLine& line) {
      use({.json = line.text,
           .file = path.string(),
           .where = at_line(path.string(), line.number),
           .line = line.number});
    });
    return;
  }
  std::vector<io::Path> files;
  add_files_below(fs, path, files, 0);
  if (files.empty())
    throw InputError(
        str("[", path.string(), "] has no files NAME.txt: must be a folder of RACE, or a file of JSON lines"));
  for (const io::Path& file : files) {
    const std::string text = read_whole_file(fs, file, what);
    const std::string folder = file.parent_path().filename().string();
    use({.json = text, .file = file.string(), .where = str("[", file.string(), "] "), .folder = folder});
  }
}

RaceLevel level_of(std::string_view id, std::string_view folder) {
  for (const std::string_view text : {id, folder}) {
    if (text.starts_with("middle")) return RaceLevel::middle;
    if (text.starts_with("high")) return RaceLevel::high;
  }
  return RaceLevel::none;
}

std::string question_id(std::string_view article, std::size_t question) { return str(article, '#', question); }

/// One article's members. Problems are kept.
class ArticleReader {
 public:
  ArticleReader(const RaceText& source, io::FileProblems& problems) : source_(source), problems_(problems) {
    try {
      json_ = io::read_json(source.json, {.name = source.file, .first_line = static_cast<std::size_t>(source.line)});
    } catch (const InputError& error) {
      problems_.add(error.what());
      is_good_ = false;
      return;
    }
    if (!json_.is_object()) refuse("", "must be an object with id, article, questions, options and answers");
  }
  bool is_good() const { return is_good_; }
  void refuse(const std::string& what, std::string_view rule) {
    problems_.add(str(source_.where, what, what.empty() ? "" : ": ", rule));
    is_good_ = false;
  }

  const std::string* text(const char* key) {
    const Json* const json = member(key);
    if (json == nullptr) return nullptr;
    if (json->is_string()) return &json->get_ref<const std::string&>();
    refuse(key, "must be a string");
    return nullptr;
  }
  /// The element of an array of strings; nullptr and a problem if it is none.
  const std::string* element(const Json& array, const std::string& path, std::size_t i) {
    if (array[i].is_string()) return &array[i].get_ref<const std::string&>();
    refuse(str(path, '[', i, ']'), "must be a string");
    return nullptr;
  }
  const Json* array(const char* key) {
    const Json* const json = member(key);
    if (json == nullptr || json->is_array()) return json;
    refuse(key, "must be an array");
    return nullptr;
  }
  /// The class of answers[i]; -1 and a problem if it is none.
  int answer(const Json& answers, std::size_t i) {
    const std::string* const letter = element(answers, "answers", i);
    if (letter == nullptr) return -1;
    const std::span<const std::string_view> classes = classes_of(Task::race);
    const auto found = std::ranges::find(classes, *letter);
    if (found != classes.end()) return static_cast<int>(found - classes.begin());
    refuse(str("answers[", i, "] = ", shown(*letter)), "must be A, B, C or D");
    return -1;
  }

 private:
  const Json* member(const char* key) {
    if (!json_.is_object()) return nullptr;  // refused already
    const auto found = json_.find(key);
    if (found != json_.end()) return &*found;
    refuse(key, "is missing");
    return nullptr;
  }

  const RaceText& source_;
  io::FileProblems& problems_;
  Json json_;
  bool is_good_ = true;
};

void add_article(const RaceText& source, RaceSet& set, std::unordered_map<std::string, std::string>& places,
                 io::FileProblems& problems) {
  ArticleReader reader(source, problems);
  if (!reader.is_good()) return;
  const std::string* const id = reader.text("id");
  const std::string* const text = reader.text("article");
  const Json* const questions = reader.array("questions");
  const Json* const options = reader.array("options");
  const Json* const answers = reader.array("answers");
  if (!reader.is_good()) return;
  if (const auto [first, is_first] = places.emplace(*id, source.where); !is_first)
    reader.refuse(str("id = ", shown(*id)), str("must be unique; ", first->second, "has it, too"));
  if (questions->size() != options->size() || questions->size() != answers->size())
    reader.refuse(
        str("questions, options, answers = ", questions->size(), ", ", options->size(), ", ", answers->size()),
        "must be equally many");
  set.articles.push_back({.id = *id, .text = *text, .level = level_of(*id, source.folder)});
  const std::size_t whole = std::min({questions->size(), options->size(), answers->size()});
  for (std::size_t q = 0; q < whole; ++q) {
    RaceQuestion question{
        .id = question_id(*id, q), .text = {}, .options = {}, .article = std::ssize(set.articles) - 1};
    if (const std::string* const asked = reader.element(*questions, "questions", q)) question.text = *asked;
    const Json& list = (*options)[q];
    if (!list.is_array() || list.size() != kRaceOptions) {
      reader.refuse(str("options[", q, "]"), "must be an array of 4 strings");
    } else {
      for (std::size_t o = 0; o < kRaceOptions; ++o)
        if (const std::string* const option = reader.element(list, str("options[", q, "]"), o))
          question.options[o] = *option;
    }
    question.answer = reader.answer(*answers, q);
    set.questions.push_back(std::move(question));
  }
}

}  // namespace

RaceSet read_race(io::Fs& fs, const io::Path& path, std::size_t max_line, std::string_view setting) {
  RaceSet set;
  std::unordered_map<std::string, std::string> places;
  io::FileProblems problems;
  for_each_article(fs, path, setting, max_line,
                   [&](const RaceText& source) { add_article(source, set, places, problems); });
  if (problems.empty() && set.questions.empty())
    problems.add(str("[", path.string(), "] has no questions; is it the right file?"));
  problems.throw_if_any(path.string());
  return set;
}

std::unordered_map<std::string, int> read_race_predictions(io::Fs& fs, const io::Path& path, std::size_t max_line) {
  std::unordered_map<std::string, int> predictions;
  io::FileProblems problems;
  for_each_article(fs, path, "--score", max_line, [&](const RaceText& source) {
    ArticleReader reader(source, problems);
    if (!reader.is_good()) return;
    const std::string* const id = reader.text("id");
    const Json* const answers = reader.array("answers");
    if (!reader.is_good()) return;
    for (std::size_t q = 0; q < answers->size(); ++q) {
      if (const int answer = reader.answer(*answers, q); answer < 0)
        continue;
      else if (!predictions.emplace(question_id(*id, q), answer).second)
        return reader.refuse(str("id = ", shown(*id)), "must be unique; an earlier article has it, too");
    }
  });
  problems.throw_if_any(path.string());
  return predictions;
}

}  // namespace megalith::tasks
