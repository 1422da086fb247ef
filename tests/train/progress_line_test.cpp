#include "megalith/train/progress_line.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/terminal_rows.h"

namespace megalith::train {
namespace {

using support::rows_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// What is written to a screen of so many columns, 0: to none.
class Page {
 public:
  explicit Page(int columns = 0) : columns_(columns), file_(::open_memstream(&text_, &size_)) {}
  ~Page() {
    std::fclose(file_);
    std::free(text_);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ProgressLine::Screen screen() {
    return {file_, [this] { return columns_; }};
  }
  std::string text() { return (std::fflush(file_), std::string(text_, size_)); }
  std::vector<std::string> lines() {
    std::istringstream in(text());
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
  int columns_;

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

StepMetrics metrics_of(Index step, double step_time_s) {
  StepMetrics m;
  m.step = step;
  m.result.loss = 5.25;
  m.result.grad_norm = 1.5;
  m.result.learning_rate = 6e-4;
  m.step_time_s = step_time_s;
  m.tokens_per_second = 1000 / step_time_s;
  m.model_tflops_per_s = 0.02 / step_time_s;
  return m;
}

TEST(ProgressLine, ElsewhereThanOnATerminalPrintsTheFirstEveryIntervalAndTheLast) {
  Page page;
  ProgressLine line(7, 3, page.screen());
  for (Index step = 1; step <= 7; ++step) line.step(metrics_of(step, 1));
  EXPECT_THAT(page.text(), Not(HasSubstr("\033")));
  EXPECT_THAT(page.text(), Not(HasSubstr("\r")));
  EXPECT_THAT(page.lines(), ElementsAre(HasSubstr("step 1/7  loss 5.2500  norm 1.500  lr 6.00e-04  1000 tokens/s  "
                                                  "20.0 GFLOP/s  ETA 0m06s"),
                                        HasSubstr("step 3/7"), HasSubstr("step 6/7"), HasSubstr("step 7/7")));
}

TEST(ProgressLine, SpeedAndEtaAreThoseOfTheLastInterval) {
  Page page;
  ProgressLine line(100, 4, page.screen());
  Index step = 1;
  for (const double s : {60.0, 2.0, 2.0, 8.0}) line.step(metrics_of(step++, s));
  // Steps 2 to 4 took 12 s, 4 each; the first one's minute is no measure.
  EXPECT_THAT(page.lines().back(), HasSubstr("250 tokens/s  5.00 GFLOP/s  ETA 6m24s"));
}

TEST(ProgressLine, ALineBetweenThoseThatStayCountsTheIntervalBefore) {
  Page page(200);
  ProgressLine line(100, 2, page.screen());
  Index step = 1;
  for (const double s : {9.0, 2.0, 2.0, 2.0, 5.0}) line.step(metrics_of(step++, s));
  EXPECT_THAT(rows_of(page.text(), 200).back(), HasSubstr("step 5/100"));
  EXPECT_THAT(rows_of(page.text(), 200).back(), HasSubstr("333 tokens/s  6.67 GFLOP/s  ETA 4m45s"));  // 2, 2, 5
}

TEST(ProgressLine, OnATerminalEveryIntervalsLineStaysAndTheOthersAreRewritten) {
  Page page(100);
  ProgressLine line(7, 3, page.screen());
  for (Index step = 1; step <= 5; ++step) line.step(metrics_of(step, 1));
  EXPECT_THAT(rows_of(page.text(), 100),
              ElementsAre(HasSubstr("step 1/7"), HasSubstr("step 3/7"), HasSubstr("step 5/7")));
  line.note("saved");
  for (Index step = 6; step <= 7; ++step) line.step(metrics_of(step, 1));
  EXPECT_THAT(rows_of(page.text(), 100),
              ElementsAre(HasSubstr("step 1/7"), HasSubstr("step 3/7"), HasSubstr("step 5/7"), "saved",
                          HasSubstr("step 6/7"), HasSubstr("step 7/7")));
}

TEST(ProgressLine, NeverWrapsWhateverTheWindow) {
  for (const int columns : {1, 10, 20, 40, 60, 79, 80, 81, 132}) {
    Page page(columns);
    ProgressLine line(1000000, 1000, page.screen());
    Index rows = 0;
    for (Index step = 1; step <= 5; ++step) {
      StepMetrics m = metrics_of(step * 500 + 123000, 1e-3 * static_cast<double>(step * step));
      m.result.grad_norm = 12345.678;
      m.result.skipped = step == 2;
      m.result.loss_scale = 65536;
      rows += step == 1 || m.step % 1000 == 0 ? 1 : 0;
      line.step(m);
    }
    const auto shown = rows_of(page.text(), static_cast<std::size_t>(columns));
    EXPECT_EQ(static_cast<Index>(shown.size()), rows + 1) << columns << " columns\n" << page.text();
    for (const std::string& row : shown) EXPECT_LT(static_cast<int>(row.size()), std::max(columns, 2)) << row;
  }
}

TEST(ProgressLine, A80ColumnWindowShowsASmallModelsSpeedWhole) {
  Page page(80);
  ProgressLine line(1000, 10, page.screen());
  line.step(metrics_of(10, 0.1));
  EXPECT_THAT(page.text(),
              HasSubstr("step 10/1000  loss 5.2500  norm 1.500  10000 tokens/s  200 GFLOP/s  ETA 1m39s\n"));
}

TEST(ProgressLine, TheUnitOfSpeedFollowsTheModel) {
  for (const auto& [tflops, text] : {std::pair{531.2, "531 TFLOP/s"},
                                     {1.0, "1.00 TFLOP/s"},
                                     {0.9996, "1000 GFLOP/s"},
                                     {0.0123, "12.3 GFLOP/s"},
                                     {0.00123, "1.23 GFLOP/s"},
                                     {0.00012, "120 MFLOP/s"}}) {
    Page page;
    ProgressLine line(10, 1, page.screen());
    StepMetrics m = metrics_of(1, 1);
    m.model_tflops_per_s = tflops;
    line.step(m);
    EXPECT_THAT(page.text(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace megalith::train
