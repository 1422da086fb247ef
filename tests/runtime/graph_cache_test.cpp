#include "megalith/runtime/graph_cache.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith {
namespace {

using Key = GraphCache::Key;
using State = GraphCache::State;

/// Two layers forward (segment 0) and backward (segment 1), for two microbatches.
class GraphCacheTest : public ::testing::Test {
 protected:
  GraphCacheTest() {
    graphs_.start("training", {{memory_.data(), static_cast<std::size_t>(memory_.bytes())}});
    graphs_.set_state(State::capturing);
    for (const Key& key : kStep) run(key);
    graphs_.prepare(ex_);
    graphs_.set_state(State::replaying);
  }
  void run(const Key& key) {
    graphs_.run(ex_, key, [&] {
      const Tensor count = memory_.view({1}, DType::f64);
      ex_.run({.name = "count", .reads = {count}, .writes = {count}},
              [=](Exec&, Stream) { count.data<double>()[0] += 1; });
    });
  }
  std::string refusal(const Key& key) {
    try {
      run(key);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  }
  std::string end_of_step() {
    try {
      graphs_.end_step();
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  }
  double count() const { return memory_.view({1}, DType::f64).data<double>()[0]; }

  const std::vector<Key> kStep = {{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 1, 1}, {0, 0, 0, 1},
                                  {0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 1, 1}, {0, 0, 0, 1}};
  Buffer memory_{256};
  Exec ex_;
  GraphCache graphs_;
};

TEST_F(GraphCacheTest, EveryStepLaunchesWhatTheFirstLaunched) {
  EXPECT_EQ(graphs_.order(), kStep);
  EXPECT_EQ(graphs_.stats().graphs, 4);
  EXPECT_EQ(graphs_.stats().ops, 4);
  for (int step = 0; step < 2; ++step) {
    for (const Key& key : kStep) run(key);
    EXPECT_EQ(end_of_step(), "");
    graphs_.set_state(State::replaying);
  }
  EXPECT_EQ(graphs_.launches().count(), 16) << "the step that captures launches nothing";
  EXPECT_GT(graphs_.launches().host_s(), 0);
  EXPECT_EQ(count(), 24);
}

TEST_F(GraphCacheTest, ComparedPiecesRunOnceAndInOrder) {
  graphs_.set_state(State::comparing);
  for (const Key& key : kStep) run(key);
  EXPECT_EQ(end_of_step(), "");
  EXPECT_EQ(count(), 16);
  EXPECT_EQ(graphs_.launches().count(), 0);
  graphs_.set_state(State::comparing);
  EXPECT_NE(refusal(kStep[1]).find("where the captured step launched chunk 0, instance 0, layer 0, segment 0"),
            std::string::npos);
  EXPECT_NE(end_of_step(), "");
}

TEST_F(GraphCacheTest, ComparedPiecesAreNamedWhereTheyDiffer) {
  const auto piece_that_adds = [&](double number) {
    graphs_.run(ex_, kStep[0], [&] {
      const Tensor count = memory_.view({1}, DType::f64);
      ex_.set_call_site({.chunk = 0, .microbatch = 2, .layer = 0});
      ex_.run({.name = "count", .reads = {count}, .writes = {count}},
              [=](Exec&, Stream) { count.data<double>()[0] += number; });
    });
  };
  graphs_.set_state(State::comparing);
  EXPECT_NO_THROW(piece_that_adds(1));
  graphs_.set_state(State::comparing);
  try {
    piece_that_adds(2);
    FAIL() << "another number was not seen";
  } catch (const InternalError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "[graph] training, chunk 0, microbatch 2, layer 0, op 1 (count): gives another result than when captured: "
        "what changes from step to step must come from memory, not by value");
  }
}

TEST_F(GraphCacheTest, AnObserverSeesEachPieceOnceItHasRun) {
  std::vector<Key> seen;
  double counted = 0;
  const auto observe = [&](Exec& ex, const Key& key, const Graph& graph) {
    EXPECT_EQ(&ex, &ex_);
    EXPECT_EQ(graph.touched().size(), graphs_.graph(key).touched().size());
    EXPECT_EQ(count(), ++counted);
    seen.push_back(key);
  };
  counted = count();
  for (const State state : {State::replaying, State::comparing}) {
    graphs_.set_state(state);
    graphs_.set_observer(observe);
    for (const Key& key : kStep) run(key);
    EXPECT_EQ(seen, kStep);
    seen.clear();
    graphs_.set_observer({});
    graphs_.set_state(state);
    run(kStep[0]);
    counted = count();
  }
  graphs_.set_observer(observe);
  graphs_.clear();
  run(kStep[0]);
  graphs_.set_state(State::capturing);
  run(kStep[0]);
  EXPECT_TRUE(seen.empty()) << "not of what has no graph yet";
}

TEST_F(GraphCacheTest, SwappedLaunchesAreReportedWithBothPieces) {
  for (std::size_t first = 0; first + 1 < kStep.size(); ++first) {
    for (std::size_t i = 0; i < first; ++i) run(kStep[i]);
    EXPECT_NE(refusal(kStep[first + 1]), "") << "launches " << first << " and the next";
    graphs_.set_state(State::replaying);
  }
  run(kStep[0]);
  EXPECT_EQ(refusal(kStep[2]),
            "[graphs] training: chunk 0, instance 0, layer 1, segment 1 is launched where the captured step launched "
            "chunk 0, instance 0, layer 1, segment 0: graphs share memory, so they run in the order in which they were "
            "captured");
}

TEST_F(GraphCacheTest, MoreLaunchesThanCapturedAndUnknownPiecesAreReported) {
  for (const Key& key : kStep) run(key);
  EXPECT_NE(refusal(kStep[0]).find("launched where the captured step launched nothing more"), std::string::npos);
  EXPECT_EQ(
      refusal({0, 1, 0, 0}),
      "[graphs] training: there is no graph of chunk 0, instance 1, layer 0, segment 0: the step is not cut as the "
      "one that was captured");
}

TEST_F(GraphCacheTest, APieceThatIsLeftOutIsReportedWhereverItStands) {
  for (std::size_t left_out = 0; left_out + 1 < kStep.size(); ++left_out) {
    for (std::size_t i = 0; i < left_out; ++i) run(kStep[i]);
    EXPECT_NE(refusal(kStep[left_out + 1]).find("where the captured step launched"), std::string::npos) << left_out;
    EXPECT_NE(end_of_step(), "") << left_out;
    graphs_.set_state(State::replaying);
  }
  for (std::size_t i = 0; i + 1 < kStep.size(); ++i) run(kStep[i]);
  EXPECT_EQ(
      end_of_step(),
      "[graphs] training: the step ends where the captured step launched chunk 0, instance 0, layer 0, segment 1: "
      "a step launches all that the captured one launched");
  graphs_.set_state(State::replaying);
  EXPECT_NE(end_of_step().find("chunk 0, instance 0, layer 0, segment 0"), std::string::npos) << "a step of nothing";
  graphs_.set_state(State::eager);
  EXPECT_EQ(end_of_step(), "") << "an eager step launches nothing";
}

TEST_F(GraphCacheTest, GraphsAreCapturedAnewOnceTheyAreGone) {
  EXPECT_THROW(graphs_.set_state(State::capturing), InternalError);
  graphs_.clear();
  run(kStep[3]);
  EXPECT_EQ(graphs_.stats().graphs, 0) << "eager";
  graphs_.set_state(State::capturing);
  run(kStep[3]);
  graphs_.set_state(State::replaying);
  EXPECT_EQ(refusal(kStep[3]), "[Graph::launch] before Graph::prepare");
  graphs_.prepare(ex_);
  graphs_.set_state(State::replaying);
  run(kStep[3]);
  EXPECT_EQ(graphs_.order(), std::vector<Key>{kStep[3]});
}

}  // namespace
}  // namespace megalith
