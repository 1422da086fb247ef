#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace megalith::support {
namespace {

using ::testing::HasSubstr;

TEST_F(Program, APageShowsARunAndItsFaults) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const std::string more = "--resume --set optimizer.decay_steps=8 ";
  EXPECT_EQ(run_shell("MEGALITH_FAULT='0:sync_dir:3+:ENOSPC' " + train("a", more + "--set train.steps=12")).code, 74);
  ASSERT_EQ(run_shell(train("a", more + "--set train.steps=10 --set parallel.tp=2")).code, 0);
  const Finished made = run_shell("megalith report " + out("a"));
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr(out("a") + "/report.html: "));
  const std::string page = read_all(out("a") + "/report.html");
  EXPECT_NE(page.find("{\"kind\":\"fault\",\"step\":12,\"time\":\"20"), std::string::npos);
  EXPECT_NE(page.find("\"text\":\"tp 2 pp 1 dp 1, 2 ranks (threads); "), std::string::npos);
  EXPECT_NE(page.find("\"last_step\":10,"), std::string::npos);
}

TEST_F(Program, ReportTellsFoldersAndTablesApart) {
  EXPECT_THAT(run_shell("megalith report table6").out, HasSubstr("learning rate"));
  const struct {
    std::string arguments, text;
    int code;
  } cases[] = {
      {"", "A folder of a run, or a subcommand", 64},
      {"table33", "did you mean megalith report table3?", 64},
      {out("a") + " table6", "a page about folders, or the table table6, not both; a folder of that name is ./table6",
       64},
      {out("a"), "a] no such folder", 65},
      {out("a") + " --serve 0.0.0.0:8000", "--serve = 0.0.0.0:8000: must be 127.0.0.1:PORT", 64},
      {dir_.path().string(), "metrics.jsonl] no such file: no run has begun in this folder", 65},
  };
  for (const auto& one : cases) {
    const Finished got = run_shell("megalith report " + one.arguments);
    EXPECT_EQ(got.code, one.code) << one.arguments << '\n' << got.err;
    EXPECT_THAT(got.err, HasSubstr(one.text)) << one.arguments;
  }
}

}  // namespace
}  // namespace megalith::support
