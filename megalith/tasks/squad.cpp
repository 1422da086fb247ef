#include "megalith/tasks/squad.h"

#include <unordered_map>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/json_reader.h"
#include "megalith/tasks/task_file.h"

namespace megalith::tasks {
namespace {

using Json = nlohmann::json;

/// The byte at which character number `character` begins, or the size of the text if it has no more; -1 beyond that.
Index byte_of(std::string_view text, std::uint64_t character) {
  std::size_t at = 0;
  for (; character > 0 && at < text.size(); --character) at += utf8_front(text.substr(at)).length;
  return character > 0 ? -1 : static_cast<Index>(at);
}
Index characters_before(std::string_view text, std::size_t byte) {
  Index count = 0;
  for (std::size_t at = 0; at < byte; ++count) at += utf8_front(text.substr(at)).length;
  return count;
}

/// Reads the tree and keeps all problems.
class SquadReader {
 public:
  SquadReader(const std::string& file, Task task) : file_(file), task_(task) {}

  SquadSet read(const Json& root) {
    if (const Json* const articles = list(root, "", "data")) {
      for (std::size_t a = 0; a < articles->size(); ++a) {
        const std::string path = str("data[", a, "]");
        const Json* const paragraphs = list((*articles)[a], path, "paragraphs");
        for (std::size_t p = 0; paragraphs != nullptr && p < paragraphs->size(); ++p)
          paragraph((*paragraphs)[p], str(path, ".paragraphs[", p, "]"));
      }
    }
    if (problems_.empty() && set_.questions.empty())
      problems_.add(str("[", file_, "] has no questions: must be SQuAD's JSON, {\"data\": [{\"paragraphs\": [...]}]}"));
    problems_.throw_if_any(file_);
    return std::move(set_);
  }

 private:
  void refuse(const std::string& path, std::string_view value, const std::string& rule) {
    problems_.add(str("[", file_, "] ", path, value.empty() ? "" : " = ", value, ": ", rule));
  }
  static std::string value_of(const Json& json) {
    return json.is_string() ? shown(json.get_ref<const std::string&>()) : json.is_structured() ? "" : json.dump();
  }
  static std::string member_path(const std::string& path, const char* key) {
    return path.empty() ? key : str(path, '.', key);
  }

  const Json* member(const Json& object, const std::string& path, const char* key) {
    if (!object.is_object()) {
      refuse(path.empty() ? "the file" : path, value_of(object), str("must be an object with \"", key, "\""));
      return nullptr;
    }
    const auto found = object.find(key);
    if (found != object.end()) return &*found;
    refuse(member_path(path, key), "", "is missing");
    return nullptr;
  }
  const Json* list(const Json& object, const std::string& path, const char* key) {
    const Json* const json = member(object, path, key);
    if (json == nullptr || json->is_array()) return json;
    refuse(member_path(path, key), value_of(*json), "must be an array");
    return nullptr;
  }
  const std::string* text(const Json& object, const std::string& path, const char* key) {
    const Json* const json = member(object, path, key);
    if (json == nullptr) return nullptr;
    if (json->is_string()) return &json->get_ref<const std::string&>();
    refuse(member_path(path, key), value_of(*json), "must be a string");
    return nullptr;
  }

  void paragraph(const Json& json, const std::string& path) {
    const std::string* const context = text(json, path, "context");
    if (context == nullptr) return;
    const Json* const questions = list(json, path, "qas");
    if (questions == nullptr) return;
    set_.contexts.push_back(*context);
    for (std::size_t q = 0; q < questions->size(); ++q) question((*questions)[q], str(path, ".qas[", q, "]"));
  }

  void question(const Json& json, const std::string& path) {
    const std::string* const id = text(json, path, "id");
    if (id == nullptr) return;
    const std::string* const asked = text(json, path, "question");
    const Json* const answers = list(json, path, "answers");
    if (asked == nullptr || answers == nullptr) return;
    if (const auto [first, is_first] = paths_.emplace(*id, path); !is_first)
      refuse(path + ".id", shown(*id), str("must be unique; ", first->second, " has it, too"));
    if (answers->empty() && task_ == Task::squad1)
      refuse(path + ".answers", "",
             str("is empty, id ", shown(*id),
                 ": SQuAD 1.1 answers every question; "
                 "questions without an answer are for squad2"));
    SquadQuestion question{.id = *id, .text = *asked, .context = std::ssize(set_.contexts) - 1, .answers = {}};
    for (std::size_t a = 0; a < answers->size(); ++a) answer((*answers)[a], str(path, ".answers[", a, "]"), question);
    set_.questions.push_back(std::move(question));
  }

  void answer(const Json& json, const std::string& path, SquadQuestion& question) {
    const std::string* const answer_text = text(json, path, "text");
    if (answer_text == nullptr) return;
    const Json* const start = member(json, path, "answer_start");
    if (start == nullptr) return;
    if (!start->is_number_unsigned()) {
      refuse(path + ".answer_start", value_of(*start), "must be a whole number from 0 on");
      return;
    }
    const std::string& context = set_.contexts.back();
    const Index begin = byte_of(context, start->get<std::uint64_t>());
    if (begin < 0 || !std::string_view(context).substr(static_cast<std::size_t>(begin)).starts_with(*answer_text)) {
      const std::size_t found = context.find(*answer_text);
      refuse(
          path + ".text", shown(*answer_text),
          str("must stand in the context at answer_start = ", start->get<std::uint64_t>(), ", id ", shown(question.id),
              found == std::string::npos ? "; it stands nowhere in it"
                                         : str("; it stands at ", characters_before(context, found))));
      return;
    }
    const auto ambiguous = json.find("start_ambiguous");
    question.answers.push_back({.text = *answer_text,
                                .range = {begin, begin + std::ssize(*answer_text)},
                                .is_ambiguous = ambiguous != json.end() && *ambiguous == true});
  }

  const std::string& file_;
  Task task_;
  SquadSet set_;
  std::unordered_map<std::string, std::string> paths_;  // of the questions, by id
  io::FileProblems problems_;
};

}  // namespace

SquadSet parse_squad(std::string_view text, const std::string& file, Task task) {
  const Json root = io::read_json(text, {.name = file});
  return SquadReader(file, task).read(root);
}

SquadSet read_squad(io::Fs& fs, const io::Path& file, Task task, std::string_view setting) {
  return parse_squad(read_whole_file(fs, file, setting), file.string(), task);
}

}  // namespace megalith::tasks
