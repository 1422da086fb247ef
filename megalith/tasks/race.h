#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"
#include "megalith/tasks/task.h"

namespace megalith::tasks {

/// Of an article: by the begin of its id, else by the folder of its file.
enum class RaceLevel : std::uint8_t { middle, high, none };

constexpr int kRaceOptions = 4;

struct RaceQuestion {
  std::string id;  ///< "high19432.txt#0": of the article, and the question's number in it
  std::string text;
  std::array<std::string, kRaceOptions> options;
  int answer = 0;
  Index article = 0;
};

struct RaceArticle {
  std::string id, text;
  RaceLevel level = RaceLevel::none;
};

struct RaceSet {
  std::vector<RaceArticle> articles;
  std::vector<RaceQuestion> questions;  ///< one or more
};

/// Reads RACE: a folder, whose files NAME.txt have an article each, at any depth (the official layout: middle/ and
/// high/), or a file of JSON lines with an article each, packed or not. An article is an object with id, article,
/// questions, options (four each) and answers (A to D). Throws InputError with all problems.
/// Source: Lai et al. 2017, arXiv:1704.04683.
RaceSet read_race(io::Fs& fs, const io::Path& path, std::size_t max_line, std::string_view setting = kDataOption);

/// Answers by the id of their question: JSON lines {"id", "answers"} or files of RACE itself.
std::unordered_map<std::string, int> read_race_predictions(io::Fs& fs, const io::Path& path, std::size_t max_line);

/// Correct answers. Of all questions they are the sum over levels, not the mean of two fractions.
struct RaceScores {
  Correct middle, high, none;
  Correct all() const { return middle + high + none; }
};
template <class AnswerOf>
RaceScores score_race(const RaceSet& set, const AnswerOf& answer_of) {
  RaceScores scores;
  for (const RaceQuestion& question : set.questions) {
    const RaceLevel level = set.articles[static_cast<std::size_t>(question.article)].level;
    Correct& part = level == RaceLevel::middle ? scores.middle : level == RaceLevel::high ? scores.high : scores.none;
    part = part + Correct{.correct = answer_of(question) == question.answer ? 1 : 0, .total = 1};
  }
  return scores;
}

}  // namespace megalith::tasks
