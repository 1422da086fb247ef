#include "megalith/base/problems.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/listed_problems.h"

namespace megalith {
namespace {

TEST(Problems, ReportsEveryBrokenRuleAtOnce) {
  Problems problems;
  EXPECT_FALSE(problems.positive({{"parallel.tp", 0}, {"parallel.pp", 2}, {"parallel.cp", -1}}));
  problems.require(16 % 3 == 0, "parallel.tp", 3, "must divide model.num_heads = 16");
  try {
    problems.throw_if_any("a.toml");
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "a.toml: 3 problems\n  parallel.tp = 0: must be at least 1\n  parallel.cp = -1: must be at least 1\n"
                 "  parallel.tp = 3: must divide model.num_heads = 16");
    EXPECT_EQ(error.code(), ExitCode::usage);
  }
}

TEST(Problems, TheErrorHasItsLinesApart) {
  Problems problems;
  problems.add_line("data.train = x: must be text\n  not a folder");
  problems.add("train.steps", 0, "must be at least 1");
  try {
    problems.throw_if_any("a.toml");
    FAIL() << "nothing was thrown";
  } catch (const ListedProblems& error) {
    EXPECT_EQ(error.lines(), problems.lines());
  }
}

TEST(Problems, EmptyThrowsNothing) { EXPECT_NO_THROW(Problems().throw_if_any("a.toml")); }

TEST(Errors, OneCodePerClass) {
  EXPECT_EQ(HangError("x").code(), ExitCode::hang);
  EXPECT_EQ(CheckpointError(CheckpointError::Kind::refused, "x").code(), ExitCode::checkpoint_refused);
  EXPECT_EQ(CheckpointError(CheckpointError::Kind::none_valid, "x").code(), ExitCode::no_checkpoint);
  EXPECT_EQ(code_name(ExitCode::hang), "E72");
}

}  // namespace
}  // namespace megalith
