#include "megalith/report/finetune_report.h"

#include <algorithm>
#include <random>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"
#include "megalith/report/paper_tables.h"

#include "tests/io/temp_dir.h"

namespace megalith::apps {
namespace {

using tasks::Task;
using ::testing::HasSubstr;
using ::testing::Not;

FileScore accuracy_of(const std::string& file, Index correct) {
  return {.file = file,
          .checksum = "00ff",
          .counts = {{"examples", Index{8}}, {"left_out", Index{1}}},
          .results = {{"accuracy", static_cast<double>(correct) / 8}, {"correct", correct}, {"total", Index{8}}}};
}

TunedRun tuned_run(double lr, std::uint64_t seed, Index matched, Index mismatched) {
  TunedRun run{.name = "lr_" + std::to_string(seed), .lr = lr, .batch = 16, .seed = seed, .digest = "d"};
  run.dev = {accuracy_of("dev_matched.tsv", matched), accuracy_of("dev_mismatched.tsv", mismatched)};
  run.score = dev_score(Task::mnli, run.dev);
  return run;
}

FinetuneReport mnli_report() {
  FinetuneReport report{.task = Task::mnli, .recipe = "mnli.toml", .inference = "fp32 on cpu", .epochs = 3};
  report.search = {tuned_run(1e-5, 1, 2, 3), tuned_run(2e-5, 1, 4, 5)};
  report.best = 1;
  report.seeds = {tuned_run(2e-5, 1, 4, 5), tuned_run(2e-5, 2, 8, 7), tuned_run(2e-5, 3, 1, 2)};
  report.median = 0;
  report.test = {accuracy_of("test_matched.tsv", 6)};
  report.ensemble.emplace();
  report.ensemble->dev = {accuracy_of("dev_matched.tsv", 6), accuracy_of("dev_mismatched.tsv", 8)};
  report.ensemble->score = dev_score(Task::mnli, report.ensemble->dev);
  return report;
}

class FinetuneReportFile : public ::testing::Test {
 protected:
  std::vector<GivenRow> rows_of(const std::string& contents, PaperTable table = PaperTable::table5) const {
    write_all(dir_ / "report.json", contents);
    std::vector<GivenRow> rows;
    read_given_report(*io::posix_fs(), dir_ / "report.json", table, "mine", rows);
    return rows;
  }
  TempDir dir_;
};

TEST_F(FinetuneReportFile, TheDevScoreIsTheMeanOfTheFiles) {
  EXPECT_EQ(dev_score(Task::mnli, mnli_report().seeds[1].dev), 7.5 / 8);
  const FileScore squad{.file = "s", .checksum = "", .counts = {}, .results = {{"exact", 50.0}, {"f1", 60.5}}};
  EXPECT_EQ(dev_score(Task::squad2, {&squad, 1}), 60.5);
  const FileScore none{.file = "s", .checksum = "", .counts = {}, .results = {{"exact", 50.0}}};
  EXPECT_THROW(dev_score(Task::squad2, {&none, 1}), InternalError);
}

TEST_F(FinetuneReportFile, JsonHasRunsMedianTestAndEnsemble) {
  const nlohmann::json whole = nlohmann::json::parse(finetune_json(mnli_report()));
  EXPECT_EQ(whole.at("report"), "finetune");
  EXPECT_EQ(whole.at("task"), "mnli");
  EXPECT_EQ(whole.at("deciding_figure"), "accuracy");
  EXPECT_EQ(whole.at("search").size(), 2U);
  EXPECT_EQ(whole.at("search")[0].at("dev_score"), 2.5 / 8);
  EXPECT_EQ(whole.at("best").at("lr"), 2e-5);
  EXPECT_EQ(whole.at("best").at("batch"), 16);
  EXPECT_EQ(whole.at("seeds").size(), 3U);
  EXPECT_EQ(whole.at("seeds")[2].at("dev")[1].at("results").at("correct"), 2);
  EXPECT_EQ(whole.at("median").at("seed"), 1);
  EXPECT_EQ(whole.at("dev")[1].at("data").at("file"), "dev_mismatched.tsv");
  EXPECT_EQ(whole.at("test")[0].at("results").at("accuracy"), 0.75);
  EXPECT_EQ(whole.at("ensemble").at("models"), 3);
  EXPECT_EQ(whole.at("ensemble").at("dev_score"), 0.875);
}

TEST_F(FinetuneReportFile, StandsBesideTable5) {
  const std::vector<GivenRow> rows = rows_of(finetune_json(mnli_report()));
  const std::string text = paper_table_text(PaperTable::table5, rows);
  EXPECT_THAT(text, HasSubstr("\nmine                    -       50.0/62.5 "));
  EXPECT_THAT(text, HasSubstr("\nmine ensemble           -       75.0/100.0 "));
  const std::string page = finetune_markdown(mnli_report());
  EXPECT_THAT(page, HasSubstr("| lr_1 | 2e-05 | 16 | 1 | 56.25 | best |\n"));
  EXPECT_THAT(page, HasSubstr("| lr_1 | 2e-05 | 16 | 1 | 56.25 | median |\n| lr_2 | 2e-05 | 16 | 2 | 93.75 |  |\n"));
  EXPECT_THAT(page, HasSubstr("Median dev score: 56.25. Ensemble of 3: 87.50."));
  EXPECT_THAT(page, HasSubstr("| median, test | test_matched.tsv | accuracy | 0.75 |\n"));
  EXPECT_THAT(page, HasSubstr("\nMegatron-3.9B           1       91.4/91.4 "));
  EXPECT_THAT(page, HasSubstr("\nthis recipe             -       50.0/62.5 "));
  EXPECT_THAT(page, HasSubstr("\nthis recipe ensemble    -       75.0/100.0 "));
}

TEST_F(FinetuneReportFile, StandsBesideTable6) {
  const std::vector<GivenRow> rows = rows_of(finetune_json(mnli_report()), PaperTable::table6);
  EXPECT_THAT(paper_table_text(PaperTable::table6, rows),
              HasSubstr("\nMNLI       mine              16     2e-05          3\n"));
  EXPECT_THAT(finetune_markdown(mnli_report()), HasSubstr("of the checkpoint after the last of at most 3 epochs."));
}

TEST_F(FinetuneReportFile, RaceStandsWithItsTestSet) {
  FinetuneReport report{.task = Task::race, .recipe = "race.toml", .inference = "fp32 on cpu"};
  TunedRun run{.name = "r", .lr = 1e-5, .batch = 4, .seed = 1};
  run.dev = {accuracy_of("dev", 4)};
  report.search = report.seeds = {run};
  EXPECT_THAT(paper_table_text(PaperTable::table5, rows_of(finetune_json(report))), HasSubstr(" 50.0\n"));
  EXPECT_THAT(finetune_markdown(report), HasSubstr("without `data.test` the last rows have the development set"));
  report.test = {accuracy_of("test", 6)};
  EXPECT_THAT(paper_table_text(PaperTable::table5, rows_of(finetune_json(report))), HasSubstr(" 75.0\n"));
  EXPECT_THAT(finetune_markdown(report), Not(HasSubstr("without `data.test`")));
  EXPECT_THAT(finetune_markdown(report), Not(HasSubstr("## Search")));
}

TEST_F(FinetuneReportFile, ScoresOfFilesAreReadAsTheyWereWritten) {
  const FileScore score = accuracy_of("dev.tsv", 3);
  const FileScore read = file_score_of(json_of(Task::mnli, score), "s.json");
  EXPECT_EQ(read.file, score.file);
  EXPECT_EQ(read.checksum, score.checksum);
  EXPECT_EQ(read.counts, score.counts);
  EXPECT_EQ(read.results, score.results);
  const auto refused = [](const char* text) {
    return error_of<InputError>([&] { file_score_of(nlohmann::ordered_json::parse(text), "s.json"); });
  };
  EXPECT_EQ(refused("{}"), "[s.json] data.file: must be a text");
  EXPECT_EQ(refused("[1]"), "[s.json] data.file: must be a text");
  EXPECT_EQ(refused(R"({"data": {"file": "a"}, "counts": {}})"), "[s.json] results: must be an object");
  EXPECT_EQ(refused(R"({"data": {"file": "a"}, "counts": {"total": "8"}, "results": {}})"),
            "[s.json] counts.total: must be a number");
}

TEST_F(FinetuneReportFile, OtherFormsAreRefused) {
  const auto refused = [&](const std::string& text, PaperTable table = PaperTable::table5) {
    return error_of<InputError>([&] { rows_of(text, table); });
  };
  EXPECT_THAT(refused(finetune_json(mnli_report()), PaperTable::table3), HasSubstr("which is for table5"));
  EXPECT_THAT(refused(R"({"report": "finetune", "task": "mnli"})"), HasSubstr("dev: must be a list of reports"));
  EXPECT_THAT(refused(R"({"report": "finetune", "dev": [3]})"), HasSubstr("an object with task and results"));
  EXPECT_THAT(refused(R"({"report": "finetune", "dev": [{"task": "mnli", "results": {}}], "ensemble": {"dev": 1}})"),
              HasSubstr("results: has no number accuracy"));
}

/// 3,000 changes of a good report: bytes that are replaced, left out or doubled. Each is read or refused.
TEST_F(FinetuneReportFile, ChangedReportsAreReadOrRefused) {
  const std::string whole = finetune_json(mnli_report());
  std::mt19937 random(7);
  const auto below = [&](std::size_t end) { return random() % end; };
  const std::string_view pieces[] = {"\"", "{", "}", "[", "]", ",", ":", "null", "-1", "1e999", "\"dev\"", "\xff"};
  int read = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = whole;
    for (std::size_t change = 0; change <= below(3); ++change) {
      const std::size_t at = below(text.size()), length = std::min(below(12), text.size() - at);
      if (below(3) == 0)
        text.insert(at, text.substr(at, length));
      else
        text.replace(at, length, pieces[below(std::size(pieces))]);
    }
    try {
      std::vector<GivenRow> rows;
      const nlohmann::ordered_json tree = io::read_json(text, {.name = "r.json"});
      add_given_report(tree, "r.json", PaperTable::table5, "mine", rows);
      EXPECT_FALSE(paper_table_text(PaperTable::table5, rows).empty());
      if (tree.contains("dev") && tree["dev"].is_array() && !tree["dev"].empty())
        file_score_of(tree["dev"][0], "r.json");
      ++read;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace megalith::apps
