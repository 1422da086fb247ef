#include "megalith/corpus/line_repair.h"

#include <gtest/gtest.h>

#include "megalith/base/philox.h"

namespace megalith::corpus {
namespace {

std::string repaired(std::string_view text) {
  std::string out;
  repair_lines(text, out);
  return out;
}

TEST(LineRepair, JoinsLinesThatWereBroken) {
  EXPECT_EQ(repaired("It was a dark\nand stormy\r\nnight.\n"), "It was a dark and stormy night.\n");
  EXPECT_EQ(repaired("one\ntwo"), "one two");
  EXPECT_EQ(repaired("one\n\ntwo\nthree\n"), "one\n\ntwo three\n");
  EXPECT_EQ(repaired("one\n \t\n\r\n\n\ntwo"), "one\n\ntwo");
  EXPECT_EQ(repaired("\n\n\none\n\n\n"), "\none\n\n");
  EXPECT_EQ(repaired(""), "");
  EXPECT_EQ(repaired("\n"), "\n");
}

TEST(LineRepair, LeavesWhatStandsAlone) {
  for (const std::string line : {"  indented", "\tindented", "\u3000indented", "- item", "* item", "1. item",
                                 "12. item", "= Heading =", "== Heading ==", "-", "="}) {
    const std::string text = "one\n" + line + "\nmore\n";
    EXPECT_EQ(repaired(text), "one\n" + line + " more\n");
  }
  for (const std::string line : {"1 item", ".5", "1,5", "a. item", "\u2014 dash", "1"})
    EXPECT_EQ(repaired("one\n" + line), "one " + line);
}

TEST(LineRepair, ASecondRunChangesNothing) {
  const RandomSite site{.seed = 9};
  const std::string_view pieces[] = {"\n", "\n", "\r\n", " ", "a",  "b c",    "-",
                                     "*",  "1",  ".",    "=", "\t", "\u00A0", "\r"};
  for (std::uint64_t round = 0; round < 20000; ++round) {
    std::string text;
    for (std::uint64_t i = 0; i < 12; ++i) text += pieces[site.word(12 * round + i) % std::size(pieces)];
    const std::string once = repaired(text);
    ASSERT_EQ(repaired(once), once) << ::testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace megalith::corpus
