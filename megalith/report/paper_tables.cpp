#include "megalith/report/paper_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/eval/figures.h"
#include "megalith/io/json_reader.h"
#include "megalith/tasks/presets.h"
#include "megalith/tasks/task_file.h"

namespace megalith::apps {
namespace {

using Json = nlohmann::ordered_json;

/// A figure that the paper prints, or that a report has; none where it has none.
using Cell = std::optional<double>;

/// A row of table 5. MNLI: matched, mismatched. SQuAD: F1, EM. RACE: all, middle, high.
struct FineTuned {
  std::string model;
  Cell ratio;  ///< trained tokens, relative to the 336M model
  std::array<Cell, 2> mnli;
  Cell qqp;
  std::array<Cell, 2> squad1, squad2;
  std::array<Cell, 3> race;
};

constexpr Cell kNone;

const std::vector<FineTuned>& paper_table5() {
  static const std::vector<FineTuned> rows = {
      {"RoBERTa", 2, {90.2, 90.2}, 92.2, {94.6, 88.9}, {89.4, 86.5}, {83.2, 86.5, 81.8}},
      {"ALBERT", 3, {90.8, kNone}, 92.2, {94.8, 89.3}, {90.2, 87.4}, {86.5, 89.0, 85.5}},
      {"XLNet", 2, {90.8, 90.8}, 92.3, {95.1, 89.7}, {90.6, 87.9}, {85.4, 88.6, 84.0}},
      {"Megatron-336M", 1, {89.7, 90.0}, 92.3, {94.2, 88.0}, {88.1, 84.8}, {83.0, 86.9, 81.5}},
      {"Megatron-1.3B", 1, {90.9, 91.0}, 92.6, {94.9, 89.1}, {90.2, 87.1}, {87.3, 90.4, 86.1}},
      {"Megatron-3.9B", 1, {91.4, 91.4}, 92.7, {95.5, 90.0}, {91.2, 88.5}, {89.5, 91.8, 88.6}},
      {"ALBERT ensemble", kNone, {}, kNone, {95.5, 90.1}, {91.4, 88.9}, {89.4, 91.2, 88.6}},
      {"Megatron-3.9B ensemble", kNone, {}, kNone, {95.8, 90.5}, {91.7, 89.0}, {90.9, 93.1, 90.0}}};
  return rows;
}

std::string decimals(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}
std::string cell_text(const Cell& cell, int digits) { return cell ? decimals(*cell, digits) : "-"; }
/// "90.2/90.1", or the one that there is.
std::string pair_text(const std::array<Cell, 2>& pair) {
  return str(cell_text(pair[0], 1), pair[1] ? str("/", cell_text(pair[1], 1)) : "");
}

Cell figure_of(const GivenRow& row, const char* column, const char* name) {
  const auto found = row.figures.find(column);
  if (found == row.figures.end()) return kNone;
  const auto figure = found->second.find(name);
  return figure == found->second.end() ? kNone : Cell(figure->second);
}

FineTuned fine_tuned(const GivenRow& row) {
  const auto squad = [&](const char* column) {
    return std::array<Cell, 2>{figure_of(row, column, "f1"), figure_of(row, column, "exact")};
  };
  return {.model = row.name,
          .ratio = kNone,
          .mnli = {figure_of(row, "mnli", "accuracy"), figure_of(row, "mnli_mm", "accuracy")},
          .qqp = figure_of(row, "qqp", "accuracy"),
          .squad1 = squad("squad1"),
          .squad2 = squad("squad2"),
          .race = {figure_of(row, "race", "accuracy"), figure_of(row, "race", "middle_accuracy"),
                   figure_of(row, "race", "high_accuracy")}};
}

std::string race_text(const std::array<Cell, 3>& race) {
  if (!race[0]) return "-";
  return str(decimals(*race[0], 1), race[1] || race[2] ? str(" (", pair_text({race[1], race[2]}), ")") : "");
}

Json cell_json(const Cell& cell) { return cell ? Json(*cell) : Json(); }
Json fine_tuned_json(const FineTuned& row) {
  return {{"model", row.model},
          {"trained_tokens_ratio", cell_json(row.ratio)},
          {"mnli", {{"matched", cell_json(row.mnli[0])}, {"mismatched", cell_json(row.mnli[1])}}},
          {"qqp", cell_json(row.qqp)},
          {"squad1", {{"f1", cell_json(row.squad1[0])}, {"exact", cell_json(row.squad1[1])}}},
          {"squad2", {{"f1", cell_json(row.squad2[0])}, {"exact", cell_json(row.squad2[1])}}},
          {"race",
           {{"all", cell_json(row.race[0])}, {"middle", cell_json(row.race[1])}, {"high", cell_json(row.race[2])}}}};
}

std::vector<std::string> fine_tuned_cells(const FineTuned& row) {
  return {row.model,
          cell_text(row.ratio, 0),
          pair_text(row.mnli),
          cell_text(row.qqp, 1),
          pair_text(row.squad1),
          pair_text(row.squad2),
          race_text(row.race)};
}

std::string table3_text(std::span<const GivenRow> given) {
  std::vector<std::vector<std::string>> rows = {{"model", "WikiText103 perplexity", "LAMBADA accuracy, %"}};
  for (const eval::PaperRow& row : eval::paper_rows())
    rows.push_back(
        {std::string(row.model), decimals(row.wikitext_perplexity, 2), decimals(100 * row.lambada_accuracy, 2)});
  for (const GivenRow& row : given)
    rows.push_back({row.name, cell_text(figure_of(row, "wikitext", "adjusted_perplexity"), 2),
                    cell_text(figure_of(row, "lambada", "accuracy"), 2)});
  return str(
      "Shoeybi et al. 2019, table 3: zero-shot results\n\n", text_table(rows, Align::left),
      "\nThe abstract rounds the previous best to 15.8 and 63.2. No number of correct passages of 5,153 rounds to "
      "66.51: 3,427 are\n66.50, 3,428 are 66.52.\n");
}

std::string table5_text(std::span<const GivenRow> given) {
  std::vector<std::vector<std::string>> rows = {
      {"model", "tokens", "MNLI m/mm", "QQP", "SQuAD 1.1 F1/EM", "SQuAD 2.0 F1/EM", "RACE all (middle/high)"}};
  for (const FineTuned& row : paper_table5()) rows.push_back(fine_tuned_cells(row));
  for (const GivenRow& row : given) rows.push_back(fine_tuned_cells(fine_tuned(row)));
  return str(
      "Shoeybi et al. 2019, table 5: fine-tuned models; development sets, but for RACE the test set; accuracy, F1 "
      "and EM in\npercent. The median of 5 seeds, ensembles of 5. tokens: trained on, relative to Megatron-336M\n\n",
      text_table(rows, Align::left),
      "\nBy table 4, Megatron-3.9B trained for 1.5 of 2 million iterations: 0.75 of the tokens, not 1. RACE's all "
      "counts questions:\n1,436 of middle and 3,498 of high.\n");
}

std::string table6_text(std::span<const GivenRow> given) {
  std::vector<std::vector<std::string>> rows = {
      {"task", given.empty() ? "preset" : "preset or report", "batch", "learning rate", "epochs"}};
  for (const tasks::Preset& preset : tasks::presets())
    rows.push_back({std::string(tasks::title_of(preset.task)), std::string(preset.size), std::to_string(preset.batch),
                    exact(preset.lr), std::to_string(preset.epochs)});
  for (const GivenRow& row : given)
    for (const auto& [task, tuning] : row.tunings)
      rows.push_back({std::string(tasks::title_of(*tasks::task_named(task))), row.name, std::to_string(tuning.batch),
                      exact(tuning.lr), std::to_string(tuning.epochs)});
  return str("Shoeybi et al. 2019, table 6: how each model is fine-tuned\n\n", text_table(rows, Align::left),
             "\nThe paper prints 3.8B here for the model that its tables 4 and 5 call 3.9B.\n");
}

/// The column of a report; "" if the table has none.
std::string column_of(PaperTable table, const std::string& task, const std::string& data_file) {
  constexpr std::string_view kZeroShot[] = {"wikitext", "lambada"};
  if (table == PaperTable::table3) return std::ranges::find(kZeroShot, task) != std::end(kZeroShot) ? task : "";
  if (!tasks::task_named(task)) return "";
  const bool is_mismatched =
      task == "mnli" && io::Path(data_file).filename().string().find("mismatched") != std::string::npos;
  return is_mismatched ? "mnli_mm" : task;
}

[[noreturn]] void refuse_report(const io::Path& file, const std::string& rule) {
  throw InputError(str("[", file.string(), "] ", rule));
}

constexpr const char* kTasks = "mnli, qqp, squad1, squad2 or race";

[[noreturn]] void refuse_second(const io::Path& file, const std::string& task, const GivenRow& row) {
  refuse_report(file, str("task = ", tasks::shown(task), ": ", row.name, " has two of it"));
}

GivenRow& row_of(const std::string& name, std::vector<GivenRow>& rows) {
  const auto row = std::ranges::find(rows, name, &GivenRow::name);
  return row != rows.end() ? *row : rows.emplace_back(GivenRow{.name = name, .figures = {}});
}

/// A report of `eval`.
void add_eval_report(const Json& json, const std::string& file, PaperTable table, GivenRow& row) {
  if (!json.is_object() || !json.contains("task") || !json["task"].is_string() || !json.contains("results") ||
      !json["results"].is_object())
    refuse_report(
        file, "must be a report of `megalith eval --format json` or of `finetune`: an object with task and results");
  const auto task = json["task"].get<std::string>();
  std::string data_file;
  if (const auto data = json.find("data"); data != json.end() && data->is_object())
    if (const auto found = data->find("file"); found != data->end() && found->is_string()) data_file = *found;
  const std::string column = column_of(table, task, data_file);
  if (column.empty())
    refuse_report(file,
                  str("task = ", tasks::shown(task), ": must be ",
                      table == PaperTable::table3 ? "wikitext or lambada, for table3" : str(kTasks, ", for table5")));
  if (column == "wikitext" && (!json.contains("protocol") || json["protocol"] != "paper"))
    refuse_report(file, "protocol: must be paper: table 3 has the perplexity per original word");
  if (row.figures.contains(column)) refuse_second(file, task, row);
  std::map<std::string, double>& figures = row.figures[column];
  for (const auto& [key, value] : json["results"].items()) {
    if (!value.is_number()) continue;
    const bool is_fraction = key == "accuracy" || key.ends_with("_accuracy");
    figures[key] = (is_fraction ? 100 : 1) * value.get<double>();
  }
  constexpr std::array kFigures = {"accuracy", "f1", "adjusted_perplexity"};
  if (std::ranges::none_of(kFigures, [&](const char* key) { return figures.contains(key); }))
    refuse_report(file, "results: has no number accuracy, f1 or adjusted_perplexity");
}

/// The scores of a median run or of an ensemble: {"dev": [...], "test": [...]}.
void add_tuned_scores(const Json& scores, bool is_race, const std::string& file, GivenRow& row) {
  const auto has_any = [&](const char* set) {
    return scores.contains(set) && scores[set].is_array() && !scores[set].empty();
  };
  const char* const set = is_race && has_any("test") ? "test" : "dev";
  if (!has_any(set)) refuse_report(file, "dev: must be a list of reports on the files of data.valid");
  for (const Json& report : scores[set]) add_eval_report(report, file, PaperTable::table5, row);
}

/// Batch, rate and epochs of the best run of a report of `finetune`.
void add_tuning(const Json& report, const std::string& file, GivenRow& row) {
  const std::string task =
      report.contains("task") && report["task"].is_string() ? report["task"].get<std::string>() : "";
  if (!tasks::task_named(task)) refuse_report(file, str("task = ", tasks::shown(task), ": must be ", kTasks));
  const Json best = report.contains("best") && report["best"].is_object() ? report["best"] : Json::object();
  const auto count = [&](const char* name, const char* fix) {
    constexpr std::uint64_t kMax = std::numeric_limits<std::int32_t>::max();
    const bool is_count = best.contains(name) && best[name].is_number_unsigned();
    if (!is_count || best[name].get<std::uint64_t>() < 1 || best[name].get<std::uint64_t>() > kMax)
      refuse_report(file, str("best.", name, ": must be a whole number from 1 on", fix));
    return best[name].get<Index>();
  };
  const double lr = best.contains("lr") && best["lr"].is_number() ? best["lr"].get<double>() : 0;
  if (!(lr > 0) || !std::isfinite(lr)) refuse_report(file, "best.lr: must be a number above 0");
  const GivenTuning tuning{
      .batch = count("batch", ""),
      .lr = lr,
      .epochs = count("epochs", "; the same `megalith finetune` writes its report again, without training again")};
  if (!row.tunings.emplace(task, tuning).second) refuse_second(file, task, row);
}

}  // namespace

void add_given_report(const nlohmann::ordered_json& report, const std::string& file, PaperTable table,
                      const std::string& name, std::vector<GivenRow>& rows) {
  const bool is_tuned = report.is_object() && report.contains("report") && report["report"] == "finetune";
  if (table == PaperTable::table6) {
    if (!is_tuned) refuse_report(file, "must be a report of `megalith finetune`, which has batch, rate and epochs");
    return add_tuning(report, file, row_of(name, rows));
  }
  if (!is_tuned) return add_eval_report(report, file, table, row_of(name, rows));
  if (table != PaperTable::table5) refuse_report(file, "is a report of `finetune`, which is for table5 and table6");
  const bool is_race = report.contains("task") && report["task"] == "race";
  add_tuned_scores(report, is_race, file, row_of(name, rows));
  if (const auto ensemble = report.find("ensemble"); ensemble != report.end() && ensemble->is_object())
    add_tuned_scores(*ensemble, is_race, file, row_of(name + " ensemble", rows));
}

void read_given_report(io::Fs& fs, const io::Path& file, PaperTable table, const std::string& name,
                       std::vector<GivenRow>& rows) {
  const std::string text = tasks::read_whole_file(fs, file, "report");
  add_given_report(io::read_json(text, {.name = file.string()}), file.string(), table, name, rows);
}

std::string paper_table_text(PaperTable table, std::span<const GivenRow> given) {
  if (table == PaperTable::table3) return table3_text(given);
  return table == PaperTable::table5 ? table5_text(given) : table6_text(given);
}

std::string paper_table_json(PaperTable table, std::span<const GivenRow> given) {
  Json json = {{"table", table == PaperTable::table3 ? 3 : table == PaperTable::table5 ? 5 : 6}};
  if (table == PaperTable::table6) {
    for (const tasks::Preset& preset : tasks::presets())
      json["paper"].push_back({{"task", tasks::name_of(preset.task)},
                               {"preset", preset.size},
                               {"batch", preset.batch},
                               {"lr", preset.lr},
                               {"epochs", preset.epochs}});
    json["given"] = Json::array();
    for (const GivenRow& row : given)
      for (const auto& [task, tuning] : row.tunings)
        json["given"].push_back({{"model", row.name},
                                 {"task", task},
                                 {"batch", tuning.batch},
                                 {"lr", tuning.lr},
                                 {"epochs", tuning.epochs}});
    return json.dump(2) + '\n';
  }
  json["paper"] = Json::array();
  json["given"] = Json::array();
  if (table == PaperTable::table5) {
    for (const FineTuned& row : paper_table5()) json["paper"].push_back(fine_tuned_json(row));
    for (const GivenRow& row : given) json["given"].push_back(fine_tuned_json(fine_tuned(row)));
    return json.dump(2) + '\n';
  }
  for (const eval::PaperRow& row : eval::paper_rows())
    json["paper"].push_back({{"model", row.model},
                             {"wikitext_perplexity", row.wikitext_perplexity},
                             {"lambada_accuracy_percent", 100 * row.lambada_accuracy}});
  for (const GivenRow& row : given)
    json["given"].push_back({{"model", row.name},
                             {"wikitext_perplexity", cell_json(figure_of(row, "wikitext", "adjusted_perplexity"))},
                             {"lambada_accuracy_percent", cell_json(figure_of(row, "lambada", "accuracy"))}});
  return json.dump(2) + '\n';
}

}  // namespace megalith::apps
