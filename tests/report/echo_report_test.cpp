#include "megalith/report/echo_report.h"

#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/report/echo_counts_file.h"
#include "megalith/report/echo_loads.h"

#include "tests/test_data.h"

namespace megalith::apps {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

json echo_vectors() {
  std::ifstream file(MEGALITH_TEST_DATA "/echo/echo.json");
  return json::parse(file).at("cases");
}

json echo_vector(const std::string& id) {
  for (const json& entry : echo_vectors()) {
    if (entry.at("id") == id) return entry;
  }
  throw InputError("no case " + id);
}

EchoResult planned_counts(const std::string& text) {
  const EchoFile file = read_echo_counts(text, "counts.json", {});
  return run_echo(file.counts, {.slots = file.asked.slots.value_or(1),
                                .balance = file.asked.balance.value_or(ops::EchoBalance::greedy),
                                .min_pairs = file.asked.min_pairs.value_or(0)});
}

std::string stage_text(const EchoResult& plan, EchoStage stage, const EchoCosts& costs = {}) {
  return echo_report(plan, EchoFormat::text, stage, costs);
}

TEST(EchoReport, JsonIsAnEntryOfTheVectors) {
  int compared = 0;
  for (const json& entry : echo_vectors()) {
    if (entry.at("op") != "plan") continue;
    SCOPED_TRACE(entry.at("id").get<std::string>());
    const std::string text = echo_report(planned_counts(entry.dump(1)), EchoFormat::json, EchoStage::all, {});
    json got = json::parse(text);
    EXPECT_EQ(got.at("op"), "plan");
    const json input = got.at("input");
    for (const auto& [field, want] : entry.at("input").items()) EXPECT_EQ(input.at(field), want) << field;
    EXPECT_EQ(input.at("min_pairs"), 0);
    EXPECT_EQ(input.at("balance"), "greedy");
    json expect = got.at("expect");
    EXPECT_GE(expect.at("plan_dropped").get<int>(), 0);
    expect.erase("plan_dropped");
    EXPECT_EQ(expect, entry.at("expect"));
    EXPECT_EQ(echo_report(planned_counts(text), EchoFormat::json, EchoStage::all, {}), text) << "it can be read again";
    ++compared;
  }
  EXPECT_EQ(compared, 17);
}

TEST(EchoReport, AnEntryKeepsItsBalanceAndItsFewestPairs) {
  json entry = echo_vector("D-12");
  entry["input"]["min_pairs"] = 60;
  const EchoResult plan = planned_counts(entry.dump());
  EXPECT_EQ(plan.settings.min_pairs, 60);
  EXPECT_EQ(plan.dropped, 50);
  entry["input"]["min_pairs"] = 0;
  entry["input"]["balance"] = "exact";
  EXPECT_EQ(planned_counts(entry.dump()).settings.balance, ops::EchoBalance::exact);
}

TEST(EchoReport, TextOfEveryStage) {
  const EchoResult plan = planned_counts(echo_vector("D-12").dump());
  EXPECT_EQ(stage_text(plan, EchoStage::all),
            R"(4 ranks, 16 experts, 2 slots a rank; balance greedy, min_pairs 0
1000 pairs, a mean of 250 a rank

spill: what a rank has above the mean leaves its largest experts; spare: what it has below the mean
rank  load  spare  spill  experts that spill
   0   500      0    250  3: 200 of 200, 2: 50 of 150
   1   350      0    100  7: 100 of 120
   2   100    150      0
   3    50    200      0

assign: the largest spill to the largest spare, as overlaps of intervals
expert  from rank  to rank  pairs
     3          0        3    200
     7          1        2    100
     2          0        2     50

slots: the largest of what arrives at a rank gets a clone; 8 slots, 3 in use
slot  rank  expert  from rank  pairs
   4     2       7          1    100
   5     2       2          0     50
   6     3       3          0    200
stay home: 0 pairs

shares: pairs of a slot by source rank, in proportion (floor) + what floors left, in rank order
slot  expert  pairs  rank 0  rank 1  rank 2  rank 3
   4       7    100      25      25      25      25
   5       2     50    12+2      12      12      12
   6       3    200      50      50      50      50

plan: pairs that ranks compute
rank  load  after  of them in slots
   0   500    250                 0
   1   350    250                 0
   2   100    250               150
   3    50    250               200
max/mean 2.000 before, 1.000 after; 3 clones, 350 of 1000 pairs moved
hash 1910af4141f40ec7
)");
  EXPECT_THAT(stage_text(plan, EchoStage::slots), Not(HasSubstr("shares:")));
}

TEST(EchoReport, TextStatesWhyPairsStayHome) {
  json entry = echo_vector("D-04a");
  EXPECT_THAT(stage_text(planned_counts(entry.dump()), EchoStage::slots),
              HasSubstr("stay home: 100 pairs, for want of slots (2 a rank would do)\n"));
  entry["input"]["balance"] = "exact";
  EXPECT_THAT(stage_text(planned_counts(entry.dump()), EchoStage::slots),
              HasSubstr("pairs, for want of slots (2 or more a rank would do)\n"));
  entry["input"].erase("balance");
  entry["input"]["min_pairs"] = 101;
  EXPECT_THAT(stage_text(planned_counts(entry.dump()), EchoStage::slots),
              HasSubstr("stay home: 200 pairs, in parts below min_pairs = 101 (--min-pairs 0 moves them)\n"));
}

TEST(EchoReport, AClonePaysByLinkAndRate) {
  const EchoCosts costs{.link_gbps = 400, .tflops = 600, .hidden = 7168, .ffn = 2048};
  EXPECT_DOUBLE_EQ(costs.forward(), 1500);
  EXPECT_DOUBLE_EQ(costs.redispatch(), 2000);
  EXPECT_DOUBLE_EQ(costs.keep(), 1500);
  EXPECT_DOUBLE_EQ(costs.weights_bytes(), 88080384);
  EXPECT_DOUBLE_EQ(costs.gradient_bytes(), 176160768);
  const std::string text = stage_text(planned_counts("[[4000, 0, 0, 0], [0, 0, 0, 0]]"), EchoStage::plan, costs);
  EXPECT_THAT(text, HasSubstr("A clone pays above 1500 pairs, where nothing hides its transfer (weights sent again for "
                              "backward: 2000; forward only: 1500).\n1 of the 1 clones has more\n"));
  EXPECT_THAT(text, HasSubstr("weights sent: 84.00 MiB; gradients: 168.00 MiB\n"));
  EXPECT_THAT(stage_text(planned_counts("[[3000, 0, 0, 0], [0, 0, 0, 0]]"), EchoStage::plan, costs),
              HasSubstr("0 of the 1 clones have more\n"))
      << "1500 pairs are not more than 1500";
}

TEST(EchoReport, ThePictureHasAnArrowForEachClone) {
  const EchoResult plan = planned_counts(echo_vector("D-12").dump());
  const std::string picture = echo_report(plan, EchoFormat::svg, EchoStage::all, {});
  EXPECT_THAT(picture, HasSubstr("max/mean 2.000 before, 1.000 after 3 clones"));
  const auto count = [&](const std::string& words) {
    Index found = 0;
    for (std::size_t i = picture.find(words); i != std::string::npos; i = picture.find(words, i + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("marker-end"), 3);
  EXPECT_EQ(count("class=\"moves\""), 2 + 3) << "two ranks that lose pairs, three clones that get them";
  EXPECT_EQ(count("class=\"stays\""), 4 + 4);
  EXPECT_THAT(picture, HasSubstr(">e3: 200<"));
}

/// The text of the error, for a grid that was asked for.
std::string counts_refusal(const std::string& text, const EchoGrid& grid = {}) {
  try {
    read_echo_counts(text, "f", grid);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(EchoReport, CountsThatCannotBeUsedAreNamedWithTheirPlace) {
  EXPECT_EQ(counts_refusal("[[1, 2],\n [3, 4]]"), "");
  EXPECT_EQ(counts_refusal("[[1, 2],\n [3, -4]]"),
            "[f] line 2, column 6, count = -4: must be a whole number from 0 to 2147483647");
  EXPECT_EQ(counts_refusal("[[1,\n  2],\n [3,\n  -4\n]]"),
            "[f] line 4, column 3, count = -4: must be a whole number from 0 to 2147483647");
  EXPECT_EQ(counts_refusal("[[1, 2],\n [3, 0.5]]"),
            "[f] line 2, column 6, count = 0.5: must be a whole number from 0 to 2147483647");
  EXPECT_EQ(counts_refusal("[[1, 2],\n [3, 2147483648]]"),
            "[f] line 2, column 6, count = 2147483648: must be below 2^31");
  EXPECT_EQ(counts_refusal("[[1, \"2\"]]"),
            "[f] line 1, column 6, count = \"2\": must be a whole number from 0 to 2147483647");
  EXPECT_EQ(counts_refusal("[[1, [2]]]"),
            "[f] line 1, column 6, count = an array: must be a whole number from 0 to 2147483647");
  EXPECT_EQ(counts_refusal("[1, 2]"), "[f] line 1, column 2, row = 1: must be an array of counts");
  EXPECT_EQ(counts_refusal("[[1, 2],\n [3]]"), "[f] line 2, column 4, array 2 has 1 counts: must have 2, as the first");
  EXPECT_EQ(counts_refusal("[[1, 2],\n [3, 4]]", {.ranks = 4}),
            "[f] line 2, column 8, counts are 2 x 2: must be 4 x 2, by --ep and --experts");
  EXPECT_EQ(counts_refusal("[[1, 2],\n [3, 4]]", {.experts = 8}),
            "[f] line 2, column 8, counts are 2 x 2: must be 2 x 8, by --ep and --experts");
  EXPECT_EQ(counts_refusal("[[1, 2, 3], [3, 4, 5]]"),
            "[f] line 1, column 22, experts = 3: must be a multiple of the 2 ranks");
  EXPECT_EQ(counts_refusal("[[2147483647, 1]]"),
            "[f] line 1, column 17, sum of counts = 2147483648: must be below 2^31");
  EXPECT_EQ(counts_refusal("[]"), "[f] line 1, column 2, there are no counts: must be an array for each of R ranks");
  EXPECT_THAT(counts_refusal("[[]]"), HasSubstr("experts = 0: must be from 1 to 1024"));
  EXPECT_THAT(counts_refusal("[[1, 2"), HasSubstr("[f] line 1, column 6, not valid JSON"));
  EXPECT_THAT(counts_refusal("{\"op\": \"plan\"}"),
              HasSubstr("there are no counts: must be R arrays of E numbers, or"));
  EXPECT_THAT(counts_refusal("7"), HasSubstr("there are no counts"));
  const auto entry = [](const std::string& more) { return "{\"input\": {\"count\": [[1, 2], [3, 4]], " + more + "}}"; };
  EXPECT_EQ(counts_refusal(entry("\"ranks\": 2")), "");
  EXPECT_EQ(counts_refusal(entry("\"ranks\": 4")), "[f] line 1, column 36, counts are 2 x 2: must be 4 x 2, by input");
  EXPECT_THAT(counts_refusal(entry("\"ranks\": -4")), HasSubstr("ranks = -4: must be a whole number from 0 on"));
  EXPECT_THAT(counts_refusal(entry("\"slots_per_rank\": 9")), HasSubstr("slots_per_rank = 9: must be at most 8"));
  EXPECT_THAT(counts_refusal(entry("\"slots_per_rank\": 3")),
              HasSubstr("slots_per_rank = 3: must be at most the number of experts, 2"));
  for (const char* const wrong : {"\"3\"", "[3]", "{}", "null", "true"}) {
    for (const char* const name : {"ranks", "experts", "slots_per_rank", "min_pairs"})
      EXPECT_THAT(counts_refusal(entry("\"" + std::string(name) + "\": " + wrong)),
                  AllOf(HasSubstr(std::string(name) + " = "), HasSubstr(": must be a whole number from 0 on")));
    EXPECT_THAT(counts_refusal(entry("\"balance\": " + std::string(wrong))),
                AllOf(HasSubstr("balance = "), HasSubstr(": must be \"greedy\" or \"exact\"")));
  }
  EXPECT_THAT(counts_refusal(entry("\"balance\": 3")), HasSubstr("balance = 3: must be \"greedy\" or \"exact\""));
  EXPECT_THAT(counts_refusal(entry("\"balance\": \"even\"")),
              HasSubstr("balance = \"even\": must be \"greedy\" or \"exact\""));
  EXPECT_THAT(counts_refusal(entry("\"balance\": \"exact\", \"min_pairs\": 5")),
              HasSubstr("min_pairs = 5: must be 0 with balance = \"exact\""));
}

TEST(EchoReport, AnEntryHasItsOwnKeysAlone) {
  const auto entry = [](const std::string& more) {
    return "{\"input\": {\"count\": [[1, 2], [3, 4]],\n" + more + "}}";
  };
  EXPECT_EQ(counts_refusal(entry("\"min_pairs\": 99999999999")),
            "[f] line 2, column 14, min_pairs = 99999999999: must be at most 2147483647");
  EXPECT_EQ(counts_refusal(entry("\"ranks\": 99999999999")),
            "[f] line 2, column 10, ranks = 99999999999: must be at most 256");
  EXPECT_EQ(counts_refusal(entry("\"experts\": 1025")), "[f] line 2, column 12, experts = 1025: must be at most 1024");
  EXPECT_EQ(counts_refusal(entry("  \"min_pair\": 50")),
            "[f] line 2, column 3, input.min_pair: no such key; did you mean min_pairs? (there are ranks, experts, "
            "slots_per_rank, min_pairs, balance, count)");
  EXPECT_THAT(counts_refusal(entry("\"slots\": 2")), HasSubstr("[f] line 2, column 1, input.slots: no such key"));
  for (const char* const op : {"\"spill\"", "3", "null", "[]", "{}"})
    EXPECT_THAT(counts_refusal("{\"op\": " + std::string(op) + ", \"input\": {\"count\": [[1]]}}"),
                AllOf(StartsWith("[f] line 1, column 8, op = "), HasSubstr(": must be \"plan\"")));
  EXPECT_EQ(counts_refusal("{\"op\": \"plan\", \"source\": \"greedy\", \"input\": {\"count\": [[1]]}}"), "");
  const EchoFile file = read_echo_counts(entry("\"balance\": \"greedy\""), "f", {});
  EXPECT_FALSE(file.asked.slots.has_value()) << "the command's hold";
  EXPECT_FALSE(file.asked.min_pairs.has_value());
}

TEST(EchoReport, APlaceIsWhereAValueBegins) {
  EXPECT_THAT(counts_refusal("[[1, true]]"), StartsWith("[f] line 1, column 6, count = true"));
  EXPECT_THAT(counts_refusal("[[1, null\n]]"), StartsWith("[f] line 1, column 6, count = null"));
  EXPECT_THAT(counts_refusal("[[1,false]]"), StartsWith("[f] line 1, column 5, count = false"));
  EXPECT_THAT(counts_refusal(R"([[1, "a\"b\\"]])"), StartsWith("[f] line 1, column 6, count = "));
  EXPECT_THAT(counts_refusal("[[1, \"\"]]"), StartsWith("[f] line 1, column 6, count = \"\""));
  EXPECT_EQ(counts_refusal("[[1, -0]]"),
            "[f] line 1, column 6, count = -0: must be a whole number from 0 to 2147483647, without a sign: write 0");
  EXPECT_THAT(counts_refusal("[[1, 1.50e2\n]]"), StartsWith("[f] line 1, column 6, count = 1.50e2"));
  EXPECT_THAT(counts_refusal("[[1, -7\n]]"), StartsWith("[f] line 1, column 6, count = -7"));
  EXPECT_THAT(counts_refusal(""), StartsWith("[f] line 1, column 1, "));
  EXPECT_THAT(counts_refusal("[\n"), StartsWith("[f] line 2, column 1, "));
}

TEST(EchoReport, SlotsAndExpertsOfAllRanksHaveABound) {
  EXPECT_EQ(why_too_many_columns(4, 1000, 6), "");
  EXPECT_EQ(why_too_many_columns(4, 1000, 7), "times 4 ranks, plus 1000 experts, must be at most 1024; use at most 6");
  EXPECT_EQ(why_too_many_columns(4, 1024, 1),
            "times 4 ranks, plus 1024 experts, must be at most 1024; use at most 0, or fewer experts");
  EXPECT_EQ(why_too_many_columns(1, 1024, 8), "") << "one rank makes no clones";
  std::string counts;
  for (int i = 0; i < 1022; ++i) counts += i == 0 ? "1" : ",1";
  EXPECT_THAT(counts_refusal("{\"input\": {\"slots_per_rank\": 2, \"count\": [[" + counts + "],[" + counts + "]]}}"),
              StartsWith("[f] line 1, column 30, slots_per_rank = 2: times 2 ranks, plus 1022 experts"));
}

/// The four skews of a benchmark of four ranks with 16 experts each: what ranks compute, and what slots leave of it.
TEST(EchoReport, ASkewedRouterLoadsTheFirstRank) {
  const std::vector<std::pair<double, double>> loads = {{0.05, 1.12}, {0.2, 1.52}, {0.5, 2.36}, {1, 3.34}};
  for (const auto& [skew, want] : loads) {
    const EchoCounts counts = skewed_counts({.skew = skew, .tokens = 4096, .top_k = 8}, 4, 64);
    const EchoResult plan = run_echo(counts, {.slots = 3});
    EXPECT_NEAR(plan.max_over_mean(plan.load), want, 0.02) << "measured with another program's router";
    EXPECT_NEAR(plan.max_over_mean(plan.load_after), 1, 1e-4);
    for (Index rank = 0; rank < 4; ++rank) {
      Index pairs = 0;
      for (Index expert = 0; expert < 64; ++expert) {
        const std::int32_t count = counts.counts[static_cast<std::size_t>(rank * 64 + expert)];
        EXPECT_LE(count, 4096) << "a token has an expert once";
        pairs += count;
      }
      EXPECT_EQ(pairs, 4096 * 8);
    }
  }
}

}  // namespace
}  // namespace megalith::apps
