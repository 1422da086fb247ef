#include "megalith/report/trace_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A trace in the form of train/trace_file.h.
class TraceText {
 public:
  TraceText& groups(int rank, const std::string& members) {
    return add(str(R"({"ph":"M","name":"groups","pid":)", rank, R"(,"tid":0,"args":{)", members, "}}"));
  }
  TraceText& op(int rank, const char* name, double begin, double end, const char* phase = "forward") {
    return add(str(R"({"ph":"X","name":")", name, R"(","pid":)", rank, R"(,"tid":0,"ts":)", begin, R"(,"dur":)",
                   end - begin, R"(,"cat":")", phase, "\"}"));
  }
  /// A call, and the op that waits for it from `begin` on.
  TraceText& call(int rank, const char* name, const char* group, double ready, double end, double begin) {
    add(str(R"({"ph":"X","name":")", name, R"(","pid":)", rank, R"(,"tid":1,"ts":)", ready, R"(,"dur":)", end - ready,
            R"(,"cat":"communication","args":{"group":")", group, R"(","bytes":8}})"));
    return op(rank, "wait", begin, end, "communication");
  }
  std::string text() const { return kBegin + rows_ + "\n]}\n"; }
  TraceWaits waits() const { return trace_waits(read_trace(text(), "t.json")); }

 private:
  TraceText& add(const std::string& row) {
    rows_ += (rows_.empty() ? "" : ",\n") + row;
    return *this;
  }
  const std::string kBegin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  std::string rows_;
};

// Rank 1 computes for 9 ms, the others for 2. All meet in a sum, whose data takes 1 ms.
TraceText one_slow_rank() {
  TraceText trace;
  for (const int rank : {0, 1, 2}) {
    const double ready = rank == 1 ? 9000 : 2000;
    trace.groups(rank, R"("dp-cp":[0,1,2])")
        .op(rank, "matmul", 0, ready)
        .call(rank, "all_reduce", "dp-cp", ready, 10000, ready);
  }
  return trace;
}

TEST(TraceWaits, NamesARankThatHoldsTheStepUp) {
  const TraceWaits waits = one_slow_rank().waits();
  EXPECT_EQ(waits.length_us, 10000);
  ASSERT_EQ(waits.ranks.size(), 3U);
  EXPECT_EQ(waits.ranks[0].position, "dp-cp 0");
  EXPECT_EQ(waits.ranks[0].computing_us, 2000);
  EXPECT_EQ(waits.ranks[0].waiting_us, 8000);
  EXPECT_EQ(waits.ranks[0].transfer_us, 1000);
  EXPECT_EQ(waits.ranks[0].ranks_us, (std::map<int, double>{{1, 7000}}));
  EXPECT_EQ(waits.ranks[0].calls_us, (std::map<std::string, double>{{"all_reduce over dp-cp", 8000}}));
  EXPECT_EQ(waits.ranks[1].waiting_us, 1000);
  EXPECT_EQ(waits.ranks[1].blamed_us, 14000) << "7 ms of each other rank";
  EXPECT_EQ(waits.ranks[0].blamed_us, 0);
  EXPECT_THAT(waits.verdict,
              StartsWith("rank 1 (dp-cp 1) holds the step up: the others wait 7.00 ms for it on average; "
                         "it computes 9.00 ms, they 2.00 ms"));
}

// Rank 0 waits for rank 1 in tp; rank 1 comes late because it waits for rank 3 in dp.
TEST(TraceWaits, BlamesTheRankAtTheEndOfAChain) {
  TraceText trace;
  const auto ranks = [&](int rank, const char* tp, const char* dp) {
    trace.groups(rank, str(R"("tp":)", tp, R"(,"dp-cp":)", dp));
  };
  ranks(0, "[0,1]", "[0,2]");
  ranks(1, "[0,1]", "[1,3]");
  ranks(2, "[2,3]", "[0,2]");
  ranks(3, "[2,3]", "[1,3]");
  trace.op(0, "matmul", 0, 1000).call(0, "all_reduce", "tp", 1000, 9000, 1000);
  trace.op(1, "matmul", 0, 1000).call(1, "all_reduce", "dp-cp", 1000, 8000, 1000);
  trace.op(1, "matmul", 8000, 9000).call(1, "all_reduce", "tp", 9000, 9000, 9000);
  trace.op(2, "matmul", 0, 1000);
  trace.op(3, "matmul", 0, 8000).call(3, "all_reduce", "dp-cp", 8000, 8000, 8000);
  const TraceWaits waits = trace.waits();
  EXPECT_EQ(waits.ranks[0].ranks_us, (std::map<int, double>{{1, 8000}})) << "directly";
  EXPECT_EQ(waits.ranks[1].blamed_us, 1000) << "while it computed";
  EXPECT_EQ(waits.ranks[3].blamed_us, 14000) << "7 ms of rank 1, and 7 ms of rank 0 through it";
  EXPECT_THAT(waits.verdict, StartsWith("rank 3 (tp 1, dp-cp 1) holds the step up"));
}

TEST(TraceWaits, NamesACallWhoseDataTakesLong) {
  TraceText trace;
  for (const int rank : {0, 1}) {
    trace.groups(rank, R"("tp":[0,1])")
        .op(rank, "matmul", 0, 2000)
        .call(rank, "all_gather", "tp", 2000 + rank, 8000, 2000 + rank);
  }
  EXPECT_EQ(
      trace.waits().verdict,
      "communication holds the step up: ranks wait 75 % of the time, most in all_gather over tp (75 %); all ranks "
      "had brought their data in 100 % of it");
}

/// Two stages of two ranks; forward and backward of one microbatch. A stage computes `first` and `second` per pass.
TraceText pipeline(double first, double second) {
  TraceText trace;
  for (const int rank : {0, 1, 2, 3}) trace.groups(rank, str(R"("pp":)", rank % 2 == 0 ? "[0,2]" : "[1,3]"));
  const double turn = first + 2 * second;
  for (const int rank : {0, 1}) {
    trace.op(rank, "matmul", 0, first).call(rank, "recv", "pp", first, turn, first);
    trace.op(rank, "matmul", turn, turn + first, "backward");
    trace.call(rank + 2, "recv", "pp", 0, first, 0).op(rank + 2, "matmul", first, first + second);
    trace.op(rank + 2, "matmul", first + second, turn, "backward");
  }
  return trace;
}

TEST(TraceWaits, NamesAStageThatHoldsTheStepUp) {
  const TraceWaits waits = pipeline(1000, 3000).waits();
  EXPECT_EQ(waits.ranks[0].ranks_us, (std::map<int, double>{{2, 6000}})) << "a backward pass needs the next stage";
  EXPECT_EQ(waits.ranks[2].ranks_us, (std::map<int, double>{{0, 1000}})) << "a forward pass needs the one before";
  EXPECT_THAT(waits.verdict,
              StartsWith("stage 1 of the pipeline holds the step up: its ranks compute 6.00 ms, those of "
                         "other stages 2.00 ms"));
}

TEST(TraceWaits, APipelineOfEqualStagesFillsAndDrains) {
  EXPECT_THAT(pipeline(1000, 1000).waits().verdict,
              AllOf(StartsWith("no single rank holds the step up: "), HasSubstr("most in recv over pp"),
                    HasSubstr("more microbatches per step")));
}

TEST(TraceWaits, ARankThatNeverWaitsNeedsNoVerdict) {
  const TraceWaits waits = TraceText().op(0, "matmul", 0, 1000).op(0, "matmul", 1500, 2000).waits();
  EXPECT_EQ(waits.verdict, "no rank holds the step up: ranks wait 0 % of the time");
  EXPECT_EQ(waits_text(waits, "t.json"),
            "t.json: 1 rank, 2.00 ms\n"
            "rank 0: computes 1.50 ms (75 %), waits 0.00 ms (0 %), idle 0.50 ms (25 %)\n"
            "verdict: no rank holds the step up: ranks wait 0 % of the time\n");
}

TEST(TraceWaits, PrintsRanksAndVerdict) {
  const TraceWaits waits = one_slow_rank().waits();
  EXPECT_THAT(waits_text(waits, "t.json"),
              HasSubstr("rank 2 (dp-cp 2): computes 2.00 ms (20 %), waits 8.00 ms (80 %), idle 0.00 ms (0 %)\n"
                        "    in all_reduce over dp-cp 8.00 ms\n"
                        "    for rank 1 7.00 ms\n"));
  const nlohmann::json report = nlohmann::json::parse(waits_json(waits, "t.json"));
  EXPECT_EQ(report.at("verdict"), waits.verdict);
  EXPECT_EQ(report.at("ranks").at(1).at("blamed_us"), 14000);
  EXPECT_EQ(report.at("ranks").at(0).at("ranks_us").at("1"), 7000);
}

std::string refusal_of(const std::string& text) {
  try {
    read_trace(text, "t.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(TraceWaits, RefusesWhatIsNoTrace) {
  EXPECT_EQ(refusal_of("{}"), "[t.json] is no trace of megalith; megalith train ... --trace FILE.json writes one");
  const std::string whole = one_slow_rank().text();
  EXPECT_EQ(refusal_of(whole), "");
  EXPECT_EQ(refusal_of(whole.substr(0, whole.size() - 20)), "[t.json] was cut: it has no end");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    return refusal_of(text.replace(text.find(from), from.size(), to));
  };
  EXPECT_THAT(changed("\"ts\":0", "\"ts\":\"0\""), HasSubstr("line 3: ts: must be a number of microseconds"));
  EXPECT_THAT(changed("\"cat\":\"forward\"", "\"cat\":7"), HasSubstr("line 3: cat: is missing or of another type"));
  EXPECT_THAT(changed("\"pid\":0", "\"pid\":-1"), HasSubstr("line 2: pid: is missing or of another type"));
  EXPECT_THAT(changed("[0,1,2]", "[0,1,-2]"), HasSubstr("line 2: dp-cp: must be a list of ranks"));
  EXPECT_THAT(changed("\"group\":", "\"crowd\":"), HasSubstr("group: is missing or of another type"));
  EXPECT_EQ(refusal_of(TraceText().groups(0, "").text()),
            "[t.json] has no ops; megalith train ... --trace FILE.json writes one");
}

}  // namespace
}  // namespace megalith::apps
