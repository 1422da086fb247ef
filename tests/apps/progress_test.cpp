#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include "tests/apps/program.h"
#include "tests/support/terminal_rows.h"

// What a person sees of a run.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::rows_of;
using support::run_shell;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Runs a shell command on a terminal of so many columns. `out`: all that the terminal was given.
Finished on_terminal(unsigned short columns, const std::string& command) {
  const winsize window{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &window);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    ::execl("/bin/bash", "bash", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  if (child < 0) throw std::runtime_error("forkpty");
  Finished finished;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(terminal, buffer.data(), buffer.size())) > 0;)
    finished.out.append(buffer.data(), static_cast<std::size_t>(n));
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

/// The rows, or lines, that tell of a step's training.
std::vector<std::string> of_steps(const std::vector<std::string>& rows) {
  std::vector<std::string> found;
  for (const std::string& row : rows) {
    if (row.starts_with("step ") && row.find('/') < row.find(' ', 5)) found.push_back(row);
  }
  return found;
}

class ProgressOf : public Program {
 protected:
  std::string run(const std::string& name) const { return train_process(name, "--set log.interval=3"); }
};

TEST_F(ProgressOf, ARunOnA80ColumnTerminalNeverWrapsAndLeavesALineAnInterval) {
  const Finished run_here = on_terminal(80, run("a"));
  ASSERT_EQ(run_here.code, 0) << run_here.out;
  const std::vector<std::string> rows = of_steps(rows_of(run_here.out, 80));
  // A note, of the evaluation after step 4, leaves the line of that step, too.
  ASSERT_THAT(rows, ElementsAre(StartsWith("step 1/8  "), StartsWith("step 3/8  "), StartsWith("step 4/8  "),
                                StartsWith("step 6/8  "), StartsWith("step 8/8  ")))
      << run_here.out;
  for (const std::string& row : rows) {
    EXPECT_LT(row.size(), 80u) << row;
    EXPECT_THAT(row, HasSubstr("tokens/s"));
    EXPECT_THAT(row, HasSubstr("ETA "));
  }
}

TEST_F(ProgressOf, ARunIntoAPipeGivesPlainWholeLines) {
  const auto check = [](const std::string& text) {
    EXPECT_THAT(text, Not(HasSubstr("\r")));
    EXPECT_THAT(text, Not(HasSubstr("\033")));
    EXPECT_THAT(of_steps(rows_of(text, 1000)), ElementsAre(StartsWith("step 1/8  "), StartsWith("step 3/8  "),
                                                           StartsWith("step 6/8  "), StartsWith("step 8/8  ")));
    EXPECT_THAT(text, ::testing::ContainsRegex("lr [0-9.e-]+  [0-9]+ tokens/s  [0-9.]+ [MG]FLOP/s  ETA 0m00s\n"));
  };
  check(run_shell(run("a") + " 2>&1 | tee " + out("log_a")).out);
  check(read_all(out("log_a")));
  const Finished on_screen = on_terminal(80, run("b") + " | tee " + out("log_b"));
  ASSERT_EQ(on_screen.code, 0) << on_screen.out;
  EXPECT_THAT(on_screen.out, Not(HasSubstr("\033")));
  check(read_all(out("log_b")));
}

TEST_F(ProgressOf, ATerminalThatCannotRewriteALineGetsPlainLines) {
  const Finished dumb = on_terminal(80, "TERM=dumb " + run("a"));
  ASSERT_EQ(dumb.code, 0) << dumb.out;
  EXPECT_THAT(dumb.out, Not(HasSubstr("\033")));
  EXPECT_EQ(of_steps(rows_of(dumb.out, 1000)).size(), 4u) << dumb.out;
}

}  // namespace
}  // namespace megalith
