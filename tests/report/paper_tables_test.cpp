#include "megalith/report/paper_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"

namespace megalith::apps {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class PaperTables : public ::testing::Test {
 protected:
  io::Path file(const std::string& name, const std::string& contents) const {
    write_all(dir_ / name, contents);
    return dir_ / name;
  }
  std::string refusal(PaperTable table, const std::string& contents) const {
    const io::Path path = file("r.json", contents);
    std::vector<GivenRow> rows;
    std::string text = error_of<InputError>([&] { read_given_report(*fs_, path, table, "mine", rows); });
    if (const std::size_t at = text.find(path.string()); at != std::string::npos)
      text.replace(at, path.string().size(), "r.json");
    return text;
  }

  TempDir dir_;
  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
};

TEST_F(PaperTables, Table3HasGivenRowsBelow) {
  std::vector<GivenRow> rows;
  read_given_report(*fs_, file("w.json", R"({"task": "wikitext", "protocol": "paper", "data": {"file": "w"},
    "results": {"adjusted_perplexity": 269.613675, "sum_loss": 1.5}})"),
                    PaperTable::table3, "mine", rows);
  read_given_report(*fs_, file("l.json", R"({"task": "lambada", "results": {"accuracy": 0.4518}})"), PaperTable::table3,
                    "mine", rows);
  const std::string text = paper_table_text(PaperTable::table3, rows);
  EXPECT_THAT(text, HasSubstr("model          WikiText103 perplexity  LAMBADA accuracy, %\n"
                              "355M           19.31                   45.18\n"
                              "2.5B           12.76                   61.73\n"
                              "8.3B           10.81                   66.51\n"
                              "previous best  15.79                   63.24\n"
                              "mine           269.61                  45.18\n"));
  const json all = json::parse(paper_table_json(PaperTable::table3, rows));
  EXPECT_EQ(all.at("paper").size(), 4U);
  EXPECT_EQ(all.at("given")[0].at("wikitext_perplexity"), 269.613675);
}

TEST_F(PaperTables, Table5HasGivenRowsBelow) {
  std::vector<GivenRow> rows;
  const auto add = [&](const char* report) {
    read_given_report(*fs_, file("r.json", report), PaperTable::table5, "mine", rows);
  };
  add(R"({"task": "mnli", "data": {"file": "x/dev_matched.tsv"}, "results": {"accuracy": 0.5}})");
  add(R"({"task": "mnli", "data": {"file": "x/dev_mismatched.tsv"}, "results": {"accuracy": 0.625}})");
  add(R"({"task": "squad2", "results": {"exact": 50.07, "f1": 51.5, "total": 11873}})");
  add(R"({"task": "race", "results": {"accuracy": 0.875, "middle_accuracy": 0.9, "high_accuracy": 0.25}})");
  read_given_report(*fs_, file("q.json", R"({"task": "qqp", "results": {"accuracy": 0.75}})"), PaperTable::table5,
                    "other", rows);
  const std::string text = paper_table_text(PaperTable::table5, rows);
  EXPECT_THAT(
      text,
      HasSubstr(
          "RoBERTa                 2       90.2/90.2  92.2  94.6/88.9        89.4/86.5        83.2 (86.5/81.8)\n"
          "ALBERT                  3       90.8       92.2  94.8/89.3        90.2/87.4        86.5 (89.0/85.5)\n"
          "XLNet                   2       90.8/90.8  92.3  95.1/89.7        90.6/87.9        85.4 (88.6/84.0)\n"
          "Megatron-336M           1       89.7/90.0  92.3  94.2/88.0        88.1/84.8        83.0 (86.9/81.5)\n"
          "Megatron-1.3B           1       90.9/91.0  92.6  94.9/89.1        90.2/87.1        87.3 (90.4/86.1)\n"
          "Megatron-3.9B           1       91.4/91.4  92.7  95.5/90.0        91.2/88.5        89.5 (91.8/88.6)\n"
          "ALBERT ensemble         -       -          -     95.5/90.1        91.4/88.9        89.4 (91.2/88.6)\n"
          "Megatron-3.9B ensemble  -       -          -     95.8/90.5        91.7/89.0        90.9 (93.1/90.0)\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "\nmine                    -       50.0/62.5  -     -                51.5/50.1        87.5 (90.0/25.0)\n"));
  EXPECT_THAT(text,
              HasSubstr("\nother                   -       -          75.0  -                -                -\n"));
  const json all = json::parse(paper_table_json(PaperTable::table5, rows));
  EXPECT_EQ(all.at("given")[0].at("squad2").at("f1"), 51.5);
  EXPECT_EQ(all.at("given")[0].at("squad1").at("f1"), json());
  EXPECT_EQ(all.at("paper")[5].at("race").at("all"), 89.5);
}

TEST_F(PaperTables, Table6ListsThePresets) {
  const std::string text = paper_table_text(PaperTable::table6, {});
  EXPECT_THAT(text, HasSubstr("QQP        3.9b    256    4e-05          12\n"));
  EXPECT_EQ(json::parse(paper_table_json(PaperTable::table6, {})).at("paper").size(), 15U);
}

TEST_F(PaperTables, Table6HasGivenRowsBelow) {
  std::vector<GivenRow> rows;
  const io::Path path = file("r.json", R"({"report": "finetune", "task": "qqp",
    "best": {"lr": 5e-05, "batch": 32, "epochs": 3}})");
  read_given_report(*fs_, path, PaperTable::table6, "mine", rows);
  EXPECT_THAT(error_of<InputError>([&] { read_given_report(*fs_, path, PaperTable::table6, "mine", rows); }),
              HasSubstr("task = \"qqp\": mine has two of it"));
  read_given_report(*fs_, path, PaperTable::table6, "other", rows);
  const std::string text = paper_table_text(PaperTable::table6, rows);
  EXPECT_THAT(text, HasSubstr("task       preset or report  batch  learning rate  epochs\n"));
  EXPECT_THAT(text, HasSubstr("QQP        mine              32     5e-05          3\n"
                              "QQP        other             32     5e-05          3\n"));
  const json all = json::parse(paper_table_json(PaperTable::table6, rows));
  EXPECT_EQ(all.at("given").at(1),
            json::parse(R"({"model": "other", "task": "qqp", "batch": 32, "lr": 5e-05, "epochs": 3})"));
  EXPECT_EQ(refusal(PaperTable::table6, R"({"task": "qqp", "results": {"accuracy": 1}})"),
            "[r.json] must be a report of `megalith finetune`, which has batch, rate and epochs");
  const auto of_best = [&](const std::string& best) {
    return refusal(PaperTable::table6, R"({"report": "finetune", "task": "qqp", "best": )" + best + "}");
  };
  EXPECT_EQ(of_best(R"({"lr": 1, "batch": 2})"),
            "[r.json] best.epochs: must be a whole number from 1 on; the same `megalith finetune` writes its report "
            "again, without training again");
  for (const char* const batch : {"16.5", "-1", "0", "1e300", "9223372036854775807", "\"8\""})
    EXPECT_EQ(of_best(R"({"lr": 1, "epochs": 2, "batch": )" + std::string(batch) + "}"),
              "[r.json] best.batch: must be a whole number from 1 on");
  for (const char* const best : {R"({"batch": 2, "epochs": 2})", R"({"lr": 0, "batch": 2, "epochs": 2})", "3"})
    EXPECT_EQ(of_best(best), "[r.json] best.lr: must be a number above 0");
  EXPECT_EQ(refusal(PaperTable::table6, R"({"report": "finetune", "task": "cola", "best": {}})"),
            "[r.json] task = \"cola\": must be mnli, qqp, squad1, squad2 or race");
}

TEST_F(PaperTables, OtherReportsAreRefused) {
  EXPECT_EQ(
      refusal(PaperTable::table5, "[]"),
      "[r.json] must be a report of `megalith eval --format json` or of `finetune`: an object with task and results");
  EXPECT_EQ(refusal(PaperTable::table5, R"({"task": "lambada", "results": {}})"),
            "[r.json] task = \"lambada\": must be mnli, qqp, squad1, squad2 or race, for table5");
  EXPECT_EQ(refusal(PaperTable::table3, R"({"task": "mnli", "results": {}})"),
            "[r.json] task = \"mnli\": must be wikitext or lambada, for table3");
  EXPECT_EQ(refusal(PaperTable::table3, R"({"task": "wikitext", "protocol": "harness", "results": {}})"),
            "[r.json] protocol: must be paper: table 3 has the perplexity per original word");
  std::vector<GivenRow> rows;
  const io::Path path = file("r.json", R"({"task": "qqp", "results": {"accuracy": 1}})");
  read_given_report(*fs_, path, PaperTable::table5, "mine", rows);
  EXPECT_THAT(error_of<InputError>([&] { read_given_report(*fs_, path, PaperTable::table5, "mine", rows); }),
              HasSubstr("task = \"qqp\": mine has two of it"));
}

}  // namespace
}  // namespace megalith::apps
