// Files of fine-tuning tasks and of predictions: megalith/tasks. What is read is compared with a plain reading, or with
// what the format promises.
#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "megalith/base/utf8.h"
#include "megalith/tasks/glue.h"
#include "megalith/tasks/race.h"
#include "megalith/tasks/squad_score.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/one_file.h"

namespace megalith::fuzz {
namespace {

constexpr std::size_t kMaxLine = 1 << 16;

void require(bool holds, const char* promise) {
  if (!holds) throw BrokenPromise(promise);
}

std::vector<std::string> plain_columns(const std::string& line) {
  std::vector<std::string> columns(1);
  for (const char c : line) {
    if (c == '\t')
      columns.emplace_back();
    else
      columns.back() += c;
  }
  return columns;
}

/// The rows of a .tsv of QQP with as many columns as its first line, each with the values of these columns.
std::vector<std::vector<std::string>> plain_rows(std::string_view input, const std::vector<std::string>& names) {
  std::vector<std::string> lines(1);
  for (const char c : input) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = lines[i];
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line.back() == '\r') line.pop_back();
    if (i == 0 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.empty()) continue;
    const std::vector<std::string> columns = plain_columns(line);
    if (header.empty()) {
      header = columns;
      continue;
    }
    if (columns.size() != header.size()) continue;
    std::vector<std::string>& row = rows.emplace_back();
    for (const std::string& name : names) {
      const auto found = std::ranges::find(header, name);
      row.push_back(found == header.end() ? "" : columns[static_cast<std::size_t>(found - header.begin())]);
    }
  }
  return rows;
}

/// An article or passage with these answers, as lines of JSON.
std::string race_line(const std::string& id, const std::string& answers) {
  return R"({"id": ")" + id +
         R"(", "article": "t \u00e9", "questions": ["q _", "r"], "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]], "answers": )" +
         answers + "}\n";
}

}  // namespace

bool read_glue(std::string_view input) {
  const io::Path path = "/folder/dev.tsv";
  OneFile fs(path, input);
  tasks::PairSet set;
  try {
    set = tasks::read_pairs(fs, path, tasks::Task::qqp, tasks::Labels::required, kMaxLine);
  } catch (const InputError&) {
    return false;
  }
  const auto rows = plain_rows(input, {"question1", "question2", "is_duplicate"});
  require(rows.size() == set.examples.size(), "another number of rows is read");
  std::set<std::string> ids;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const tasks::PairExample& example = set.examples[i];
    require(is_utf8(example.id + example.first + example.second), "text is not UTF-8");
    require(ids.insert(example.id).second, "an id comes twice");
    require(rows[i] == std::vector<std::string>{example.first, example.second, std::to_string(example.label)},
            "a row differs from the plain reading");
  }
  return true;
}

std::vector<std::string> glue_seeds() {
  return {
      "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t1\t2\tWhy?\tHow \xC3\xA9?\t0\n8\t3\t4\tA \"b\"\t\t1\n"
      "9\t5\tbroken\n10\t1\t2\tx\ty\t1\r\n",
      "question2\tis_duplicate\tquestion1\na\t0\tb\nc\t1\td\n",
      "\xEF\xBB\xBFid\tquestion1\tquestion2\tis_duplicate\n\n1\tone\ttwo\t1\n2\tone\ttwo\t0"};
}

bool read_squad(std::string_view input) {
  const std::string file = "dev.json";
  tasks::SquadSet set;
  try {
    set = tasks::parse_squad(input, file, tasks::Task::squad1);
  } catch (const InputError&) {
    return false;
  }
  std::set<std::string> ids;
  tasks::TextPredictions predictions;
  for (const tasks::SquadQuestion& question : set.questions) {
    require(ids.insert(question.id).second, "an id comes twice");
    require(!question.answers.empty(), "a question of SQuAD 1.1 has no answer");
    const std::string& context = set.contexts.at(static_cast<std::size_t>(question.context));
    for (const tasks::SquadAnswer& answer : question.answers)
      require(context.substr(static_cast<std::size_t>(answer.range.begin),
                             static_cast<std::size_t>(answer.range.size())) == answer.text,
              "an answer is not at its place");
    predictions[question.id] = question.answers.back().text;
  }
  require(tasks::score_squad(set, tasks::Task::squad1, predictions).all.exact == 100, "answers are not exact");
  return true;
}

std::vector<std::string> squad_seeds() {
  return {
      R"({"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "The caf\u00e9 of Ann.", "qas": [{"id":
"a", "question": "Whose?", "answers": [{"text": "Ann", "answer_start": 12}, {"text": "caf\u00e9", "answer_start": 4}]}]}]}]})",
      R"({"data": [{"paragraphs": [{"qas": [{"answers": [{"answer_start": 0, "text": "x", "start_ambiguous": true}], "question":
"q", "id": "1", "is_impossible": false}, {"answers": [{"answer_start": 2, "text": "\u4e2d x"}], "question": "q", "id": "2"}],
"context": "x \u4e2d x"}, {"qas": [], "context": ""}]}, {"paragraphs": []}]})"};
}

bool read_race(std::string_view input) {
  const io::Path path = "/folder/dev.jsonl";
  OneFile fs(path, input);
  tasks::RaceSet set;
  try {
    set = tasks::read_race(fs, path, kMaxLine);
  } catch (const InputError&) {
    return false;
  }
  std::set<std::string> ids;
  for (const tasks::RaceArticle& article : set.articles) require(ids.insert(article.id).second, "an id comes twice");
  for (const tasks::RaceQuestion& question : set.questions)
    require(question.answer >= 0 && question.answer < tasks::kRaceOptions, "an answer is none of four");
  const auto predictions = tasks::read_race_predictions(fs, path, kMaxLine);
  const tasks::Correct all =
      tasks::score_race(set, [&](const auto& question) { return predictions.at(question.id); }).all();
  require(all.correct == all.total && all.total == std::ssize(set.questions), "its own answers are wrong");
  return true;
}

std::vector<std::string> race_seeds() {
  return {race_line("middle1.txt", R"(["A", "D"])") + race_line("high2.txt", R"(["B", "C"])"),
          "\n" + race_line("sat0", R"(["C", "C"])")};
}

bool read_predictions(std::string_view input) {
  const io::Path path = "/folder/predictions";
  OneFile fs(path, input);
  try {
    if (!input.starts_with('{')) {
      const auto classes = tasks::read_class_predictions(fs, path, tasks::Task::mnli, kMaxLine);
      for (const auto& [id, number] : classes) require(number >= 0 && number < 3, "a class is none of three");
      return true;
    }
    const tasks::TextPredictions texts = tasks::read_text_predictions(fs, path);
    require(nlohmann::json(texts) == nlohmann::json::parse(input), "texts differ from the plain reading");
    return true;
  } catch (const InputError&) {
  }
  try {
    const tasks::NoAnswerScores scores = tasks::read_no_answer_scores(fs, path);
    const nlohmann::json json = nlohmann::json::parse(input);
    require(json.size() == scores.size(), "another number of scores is read");
    for (const auto& [id, number] : scores) require(json.at(id).get<double>() == number, "a score differs");
    return true;
  } catch (const InputError&) {
    return false;
  }
}

std::vector<std::string> predictions_seeds() {
  return {R"({"56be": "an answer", "56bf": "", "x \u00e9": "caf\u00e9 \ud83d\ude00"})",
          R"({"a": 0.25, "b": -3e2, "c": 4, "d": 0})", "index\tprediction\n0\tneutral\n1\tentailment\n",
          "31\tcontradiction\r\n77\tneutral"};
}

}  // namespace megalith::fuzz
