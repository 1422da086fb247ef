#include "megalith/report/finetune_report.h"

#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/report/paper_tables.h"

namespace megalith::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;

tasks::Figures figures_of(const OrderedJson& json, const char* member, const std::string& file) {
  tasks::Figures figures;
  const auto found = json.find(member);
  if (found == json.end() || !found->is_object()) throw InputError(str("[", file, "] ", member, ": must be an object"));
  for (const auto& [name, value] : found->items()) {
    if (value.is_number_float())
      figures.emplace_back(name, value.get<double>());
    else if (value.is_number_integer())
      figures.emplace_back(name, value.get<Index>());
    else
      throw InputError(str("[", file, "] ", member, '.', name, ": must be a number"));
  }
  return figures;
}

OrderedJson json_of_files(tasks::Task task, const std::vector<FileScore>& scores) {
  OrderedJson list = OrderedJson::array();
  for (const FileScore& score : scores) list.push_back(json_of(task, score));
  return list;
}

OrderedJson json_of_run(const TunedRun& run) {
  OrderedJson json = {{"run", run.name}, {"lr", run.lr}, {"batch", run.batch}, {"seed", run.seed}};
  if (!run.not_finite.empty()) {
    json["not_finite"] = run.not_finite;
    return json;
  }
  json["digest"] = run.digest;
  json["dev_score"] = run.score;
  return json;
}

OrderedJson report_tree(const FinetuneReport& report) {
  const TunedRun& median = report.seeds.at(report.median);
  OrderedJson json = {{"report", "finetune"},
                      {"task", tasks::name_of(report.task)},
                      {"recipe", report.recipe},
                      {"inference", report.inference},
                      {"deciding_figure", tasks::deciding_figure(report.task)},
                      {"search", OrderedJson::array()},
                      {"best", {{"lr", median.lr}, {"batch", median.batch}, {"epochs", report.epochs}}},
                      {"seeds", OrderedJson::array()}};
  for (const TunedRun& run : report.search) json["search"].push_back(json_of_run(run));
  for (const TunedRun& run : report.seeds) {
    json["seeds"].push_back(json_of_run(run));
    json["seeds"].back()["dev"] = json_of_files(report.task, run.dev);
  }
  json["median"] = json_of_run(median);
  json["dev"] = json_of_files(report.task, median.dev);
  json["test"] = json_of_files(report.task, report.test);
  if (report.ensemble) {
    json["ensemble"] = {{"models", report.seeds.size()},
                        {"dev_score", report.ensemble->score},
                        {"dev", json_of_files(report.task, report.ensemble->dev)},
                        {"test", json_of_files(report.task, report.ensemble->test)}};
  }
  return json;
}

/// In percent, with two decimals.
std::string percent_text(tasks::Task task, double score) {
  const bool is_fraction = tasks::deciding_figure(task) == "accuracy";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", (is_fraction ? 100 : 1) * score);
  return text.data();
}

std::string run_rows(tasks::Task task, const std::vector<TunedRun>& runs, std::size_t chosen, const char* mark) {
  std::string text = "| run | learning rate | batch | seed | dev score | |\n|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const TunedRun& run = runs[i];
    text += str("| ", run.name, " | ", exact(run.lr), " | ", run.batch, " | ", run.seed, " | ",
                run.not_finite.empty() ? percent_text(task, run.score) : "not finite", " | ", i == chosen ? mark : "",
                " |\n");
  }
  for (const TunedRun& run : runs)
    if (!run.not_finite.empty()) text += str("\n", run.name, ": ", run.not_finite, ".\n");
  return text;
}

/// A row for each figure of each file.
std::string figure_rows(const std::string& of, const std::vector<FileScore>& files) {
  std::string text;
  for (const FileScore& file : files) {
    for (const auto& [name, value] : file.results) {
      const std::string number = std::visit(
          [](auto n) -> std::string {
            if constexpr (std::is_same_v<decltype(n), Index>)
              return std::to_string(n);
            else
              return exact(n);
          },
          value);
      text += str("| ", of, " | ", file.file, " | ", name, " | ", number, " |\n");
    }
  }
  return text;
}

}  // namespace

nlohmann::ordered_json json_of(const tasks::Figures& figures) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, value] : figures) std::visit([&](auto number) { json[name] = number; }, value);
  return json;
}

nlohmann::ordered_json json_of(tasks::Task task, const FileScore& score) {
  OrderedJson json = {{"task", tasks::name_of(task)}, {"data", {{"file", score.file}}}};
  if (!score.checksum.empty()) json["data"]["xxh3_128"] = score.checksum;
  json["counts"] = json_of(score.counts);
  json["results"] = json_of(score.results);
  return json;
}

FileScore file_score_of(const nlohmann::ordered_json& json, const std::string& file) {
  const auto text = [&](const OrderedJson& object, const char* member) {
    const auto found = object.find(member);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto data = json.find("data");
  if (data == json.end() || !data->is_object() || text(*data, "file").empty())
    throw InputError(str("[", file, "] data.file: must be a text"));
  return {.file = text(*data, "file"),
          .checksum = text(*data, "xxh3_128"),
          .counts = figures_of(json, "counts", file),
          .results = figures_of(json, "results", file)};
}

double dev_score(tasks::Task task, std::span<const FileScore> files) {
  double sum = 0;
  for (const FileScore& file : files) sum += tasks::deciding_score(task, file.results);
  return sum / static_cast<double>(files.size());
}

std::string finetune_json(const FinetuneReport& report) { return report_tree(report).dump(2) + '\n'; }

std::string finetune_markdown(const FinetuneReport& report) {
  const tasks::Task task = report.task;
  const TunedRun& median = report.seeds.at(report.median);
  std::string text = str("# ", tasks::title_of(task), ", fine-tuned by ", report.recipe, "\n\nThe dev score is ",
                         tasks::deciding_figure(task),
                         " in percent, the mean over the files of `data.valid`, of the checkpoint after the last of at "
                         "most ",
                         report.epochs, " epochs. Scored in ", report.inference, ".\n");
  if (report.search.size() > 1)
    text += str("\n## Search, one seed\n\n", run_rows(task, report.search, report.best, "best"));
  text += str("\n## Seeds\n\n", run_rows(task, report.seeds, report.median, "median"));
  text += str("\nMedian dev score: ", percent_text(task, median.score), ".");
  if (report.ensemble)
    text += str(" Ensemble of ", report.seeds.size(), ": ", percent_text(task, report.ensemble->score), ".");
  text += "\n\n## Figures\n\n| of | file | figure | value |\n|---|---|---|---|\n";
  text += figure_rows("median, dev", median.dev) + figure_rows("median, test", report.test);
  if (report.ensemble)
    text += figure_rows("ensemble, dev", report.ensemble->dev) + figure_rows("ensemble, test", report.ensemble->test);
  std::vector<GivenRow> rows;
  add_given_report(report_tree(report), "report.json", PaperTable::table5, "this recipe", rows);
  text += str("\n## Beside the paper\n\n```text\n", paper_table_text(PaperTable::table5, rows), "```\n");
  if (task == tasks::Task::race && report.test.empty())
    text += "\nThe paper has RACE's test set; without `data.test` the last rows have the development set.\n";
  return text;
}

}  // namespace megalith::apps
