#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/apps/program.h"
#include "tests/support/sanitizers.h"

// What `megalith score` takes and prints.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;

/// The most memory that a child of this process has held so far.
std::int64_t peak_bytes_of_children() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return std::int64_t{1024} * usage.ru_maxrss;
}

TEST_F(Program, ScoreTakesOneListAtATime) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const auto score = [&](const std::string& lists) {
    write_all(dir_ / "lists.json", lists);
    return run_shell("megalith score --checkpoint " + out("a") + " --tokens " + (dir_ / "lists.json").string());
  };
  const Finished none = score("[]");
  EXPECT_EQ(none.out, "{\"logprobs\":[]}\n");
  EXPECT_NE(none.err.find("fp32 on cpu, tp 1 pp 1 dp 1"), std::string::npos) << none.err;
  EXPECT_NE(none.err.find("step_00000008 ("), std::string::npos) << none.err;
  const Finished both = score("[[116, 104], [5]]"), one = score("[[116, 104]]");
  EXPECT_EQ(both.out, one.out.substr(0, one.out.size() - 3) + ",[null]]}\n");
  for (const auto& [lists, error] :
       {std::pair{"[[1], []]", "list 1 of 0 tokens: must be a list of 1 to 16 ids"},
        {"[[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]]", "list 0 of 17 tokens: must be a list of 1 to 16 ids"},
        {"[[1], [2, -1]]", "list 1, token 1 = -1: must be a whole number from 0 to 255"},
        {"[[1, [2]]]", "list 0, token 1 = a list: must be a whole number from 0 to 255"},
        {"[[1.5]]", "list 0, token 0 = 1.5: must be a whole number from 0 to 255"},
        {"[[], 7, [1, {\"a\": [[3]]}, 999], [1], [300]]", "lists.json] 4 problems\n"},
        {"[[], 7, [1, {\"a\": [[3]]}, 999], [1], [300]]", "list 0 of 0 tokens"},
        {"[[], 7, [1, {\"a\": [[3]]}, 999], [1], [300]]", "list 1 = 7: must be a list"},
        {"[[], 7, [1, {\"a\": [[3]]}, 999], [1], [300]]", "list 2, token 1 = an object: must be"},
        {"[[], 7, [1, {\"a\": [[3]]}, 999], [1], [300]]", "list 4, token 0 = 300: must be"},
        {"[[300], [2", "2 problems"},
        {"[\"a\"]", "list 0 = \"a\": must be a list"},
        {"{}", "must be a list of lists of token ids"},
        {"7", "must be a list of lists of token ids"},
        {"[[1]] [[2]]", "line 1, column 7, not valid JSON"},
        {"[[1], [2", "not valid JSON"}}) {
    const Finished got = score(lists);
    EXPECT_EQ(got.code, 65) << lists;
    EXPECT_EQ(got.out, "") << lists << ": nothing is printed before all of it is known to be right";
    EXPECT_NE(got.err.find(error), std::string::npos) << got.err;
  }
  EXPECT_NE(score(std::string(100'000, '[')).err.find("token 0 = a list"), std::string::npos);

  constexpr int kLists = 2'000'000;
  std::string many = "[[1]";
  for (int i = 1; i < kLists; ++i) many += ",[1]";
  const std::int64_t before = peak_bytes_of_children();
  const Finished got = score(many + "]");
  EXPECT_EQ(got.out.size(),
            std::string("{\"logprobs\":[[null]]}\n").size() + (kLists - 1) * std::string(",[null]").size());
  if (!support::kAddressSanitizer) {  // it keeps up to 256 MiB of freed memory
    EXPECT_LT(peak_bytes_of_children() - before, 100'000'000) << "as a tree the file's 8 MB would take 250";
  }
}

}  // namespace
}  // namespace megalith
