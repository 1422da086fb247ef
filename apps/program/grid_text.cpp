#include "apps/program/grid_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/reader.h"

namespace megalith::apps {
namespace {

constexpr std::array<std::string_view, 12> kGridKeys = {
    "tp", "pp", "dp", "ep", "etp", "cp", "ranks", "chunks", "order", "group_size", "sequence_parallel", "distributed"};

std::vector<std::string> words_of_grid(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ' ' || c == ',' || c == '\t') {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.back().empty() || words == std::vector<std::string>{"one"}) words.pop_back();
  return words;
}

/// "tp=2" as a setting of a recipe: "parallel.tp=2".
std::string setting_of(const std::string& key, const std::string& value) {
  if (key == "distributed") return "optimizer.distributed=" + value;
  return str("parallel.", key, "=", key == "order" ? str('"', value, '"') : value);
}

/// The value of dp. Nothing, with a problem, if it is no number from 1 on.
std::optional<Index> parse_dp(const std::string& value, Problems& problems) {
  Index dp = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), dp);
  if (error == std::errc() && end == value.data() + value.size() && dp >= 1 && dp <= 65536) return dp;
  problems.add("dp", io::printable(value), "must be a whole number from 1 to 65536");
  return std::nullopt;
}

}  // namespace

config::RunConfig on_grid(config::RunConfig recipe, std::string_view option, std::string_view text) {
  const std::string source = str(option, " = \"", io::printable(std::string(text)), '"');
  Problems problems;
  std::vector<std::string> settings, seen;
  std::optional<Index> dp;
  for (const std::string& word : words_of_grid(text)) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (std::ranges::find(kGridKeys, key) == kGridKeys.end() || equals == std::string::npos) {
      const std::string_view near = nearest(key, kGridKeys);
      problems.add_line(str(io::printable(word), ": is no KEY=VALUE of a grid",
                            near.empty() ? std::string() : str("; did you mean ", near, "=N?")));
      continue;
    }
    const std::string value = word.substr(equals + 1);
    if (std::ranges::find(seen, key) != seen.end()) problems.add_line(key + ": is there twice");
    seen.push_back(key);
    if (key == "dp")
      dp = parse_dp(value, problems);
    else
      settings.push_back(setting_of(key, value));
  }
  if (dp && std::ranges::find(seen, "ranks") != seen.end())
    problems.add("dp", *dp, "follows from ranks; give one of them");
  problems.throw_if_any(source);
  const config::RunConfig grid = config::parse_recipe("", source, settings);
  const config::RunConfig::Parallel given = recipe.parallel;
  recipe.parallel = grid.parallel;
  recipe.parallel.timeout_s = given.timeout_s;
  recipe.parallel.transfers = given.transfers;
  recipe.parallel.share_gpu_memory = given.share_gpu_memory;
  recipe.parallel.tp_overlap = given.tp_overlap;
  if (grid.optimizer.distributed) recipe.optimizer.distributed = grid.optimizer.distributed;
  if (dp) recipe.parallel.ranks = *dp * grid.parallel.tp.value_or(1) * grid.parallel.pp.value_or(1);
  recipe.source = str(source, " of ", recipe.source);
  return recipe;
}

}  // namespace megalith::apps
