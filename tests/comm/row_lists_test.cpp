// What row collectives check before they communicate, and what steps and graphs see of them. The rest: row_cases.cpp.
#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/step_pattern.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/comm/row_cases.h"
#include "tests/io/temp_dir.h"

namespace megalith::comm {
namespace {

Group rows_of_four() {
  static const auto world = dry_world(1, 4);
  return world->group("ep", {0, 1, 2, 3});
}

/// Tensors that fit together.
struct Fitting {
  Tensor mine{nullptr, {6, 2}, DType::bf16}, out{nullptr, {5, 2}, DType::bf16};
  RowPulls pulls{.counts = {nullptr, {2}, DType::i32},
                 .sources = {nullptr, {9, 2}, DType::i32},
                 .begin = {nullptr, {10}, DType::i32},
                 .wants = {nullptr, {7}, DType::i32}};
  RowSums sums{.begin = {nullptr, {6}, DType::i32},
               .places = {nullptr, {8, 2}, DType::i32},
               .weights = {nullptr, {8}, DType::f32}};

  std::string gather_error() const {
    Exec ex;
    return error_of<ShapeError>([&] { (void)gather_rows(ex, rows_of_four(), mine, pulls, out); });
  }
  std::string sum_error() const {
    Exec ex;
    return error_of<ShapeError>([&] { (void)gather_sum_rows(ex, rows_of_four(), mine, sums, out, Write::overwrite); });
  }
};

TEST(RowLists, NameTheTensorThatDoesNotFit) {
  const auto gather = [](auto&& spoil) {
    Fitting fitting;
    spoil(fitting);
    return fitting.gather_error();
  };
  EXPECT_EQ(gather([](Fitting& f) { f.out = {}; }), "[gather_rows] there is no tensor 'out'");
  EXPECT_EQ(gather([](Fitting& f) {
              f.out = Tensor(nullptr, {5, 2}, DType::f16);
            }),
            "[gather_rows] dtype = bf16 in and f16 out: must be the same");
  EXPECT_EQ(gather([](Fitting& f) {
              f.out = Tensor(nullptr, {5, 3}, DType::bf16);
            }),
            "[gather_rows] shapes [6, 2] and [5, 3]: must be [N, W] and [n, W]");
  EXPECT_EQ(gather([](Fitting& f) { f.pulls.counts = Tensor(nullptr, {3}, DType::i32); }),
            "[gather_rows.counts] shape = [3]: must be [2]");
  EXPECT_EQ(gather([](Fitting& f) { f.pulls.begin = Tensor(nullptr, {9}, DType::i32); }),
            "[gather_rows.begin] shape = [9]: must be [10]");
  EXPECT_EQ(gather([](Fitting& f) { f.pulls.wants = {}; }), "[gather_rows] there is no list 'wants'");
  EXPECT_NE(gather([](Fitting& f) {
              f.pulls.sources = Tensor(nullptr, {9, 2}, DType::i64);
            }).find("i32"),
            std::string::npos);
  const auto sum = [](auto&& spoil) {
    Fitting fitting;
    spoil(fitting);
    return fitting.sum_error();
  };
  EXPECT_EQ(sum([](Fitting& f) { f.sums.begin = Tensor(nullptr, {5}, DType::i32); }),
            "[gather_sum_rows.begin] shape = [5]: must be [6]");
  EXPECT_EQ(sum([](Fitting& f) { f.sums.weights = Tensor(nullptr, {7}, DType::f32); }),
            "[gather_sum_rows.weights] shape = [7]: must be [8]");
  EXPECT_NE(sum([](Fitting& f) { f.sums.weights = Tensor(nullptr, {8}, DType::bf16); }).find("f32"), std::string::npos);
  EXPECT_EQ(sum([](Fitting& f) {
              f.mine = Tensor(nullptr, {6, 2}, DType::i32), f.out = Tensor(nullptr, {5, 2}, DType::i32);
            }),
            "[gather_sum_rows] dtype = i32: must be f64, f32, bf16 or f16");
}

TEST(RowLists, ResultsApartFromWhatOthersRead) {
  Exec ex;
  std::array<float, 32> memory{};
  const Tensor all(memory.data(), {16, 2}, DType::f32);
  PullLists lists(4, 4);
  EXPECT_EQ(error_of<ShapeError>(
                [&] { (void)gather_rows(ex, rows_of_four(), all.rows(0, 9), lists.pulls(), all.rows(8, 4)); }),
            "[gather_rows] in and out share memory: must be apart, or one the rank's own part of the other");
}

TEST(RowLists, APlanKeepsTheListsUntilTheWait) {
  Recording recording;
  recording.begin_phase();
  Exec ex(Device::cpu, recording);
  const Tensor mine = ex.tensor({6, 2}, DType::bf16), out = ex.tensor({5, 2}, DType::bf16);
  const RowPulls pulls{.counts = ex.tensor({2}, DType::i32),
                       .sources = ex.tensor({9, 2}, DType::i32),
                       .begin = ex.tensor({10}, DType::i32),
                       .wants = ex.tensor({7}, DType::i32)};
  const RowSums sums{.begin = ex.tensor({6}, DType::i32), .places = ex.tensor({8, 2}, DType::i32), .weights = {}};
  Pending gather = gather_rows(ex, rows_of_four(), mine, pulls, out);
  Pending sum = gather_sum_rows(ex, rows_of_four(), mine, sums, out, Write::accumulate);
  gather.wait(ex);
  sum.wait(ex);
  ASSERT_EQ(recording.ops().size(), 4u);
  EXPECT_STREQ(recording.ops()[0].name, "gather_rows");
  EXPECT_STREQ(recording.ops()[1].name, "gather_sum_rows");
  const auto last = [&](const Tensor& tensor) {
    return recording.tensors()[static_cast<std::size_t>(tensor.id())].last;
  };
  for (const Tensor& list : {pulls.counts, pulls.sources, pulls.begin, pulls.wants}) EXPECT_EQ(last(list), 2);
  for (const Tensor& list : {sums.begin, sums.places, mine, out}) EXPECT_EQ(last(list), 3);
}

/// A rank of two with matrices [2, 1], which pulls row `row` of the other member.
struct Puller {
  explicit Puller(World& w) : world(w), lists(2, 1) { mine = {10.0 * w.rank(), 10.0 * w.rank() + 1}; }
  void set(int row) { lists.set(std::vector<WantedRow>{{WantedRow::Kind::row, {1 - world.rank(), row}}}); }
  void pull(Exec& ex) {
    gather_rows(ex, world.all(), Tensor(mine.data(), {2, 1}, DType::f64), lists.pulls(),
                Tensor(out.data(), {1, 1}, DType::f64))
        .wait(ex);
  }
  World& world;
  PullLists lists;
  std::array<double, 2> mine{};
  std::array<double, 1> out{};
};

TEST(RowLists, AGraphReadsThemAtEveryLaunch) {
  run_ranks(2, [](World& world) {
    Puller puller(world);
    puller.set(0);
    const auto bytes = [](const auto& values) { return std::as_bytes(std::span(values)); };
    const PullLists& lists = puller.lists;
    Capture capture("rows", {bytes(puller.mine), bytes(puller.out), bytes(lists.counts), bytes(lists.sources),
                             bytes(lists.begin), bytes(lists.wants)});
    Exec ex;
    Graph graph = ex.captured(capture, [&] { puller.pull(ex); });
    graph.prepare(ex);
    for (const int row : {1, 0}) {
      puller.set(row);
      graph.launch(ex);
      EXPECT_EQ(puller.out[0], 10.0 * (1 - world.rank()) + row);
    }
  });
}

TEST(RowLists, AStepMayHaveOthersButNoOtherMatrix) {
  run_ranks(2, [](World& world) {
    Puller puller(world);
    StepPattern pattern;
    Exec ex;
    for (const int row : {0, 1}) {
      puller.set(row);
      WatchedStep step(world, pattern, ex);
      puller.pull(ex);
      step.end();
    }
    const auto pull_two = [&] {
      const WatchedStep step(world, pattern, ex);
      gather_rows(ex, world.all(), Tensor(puller.mine.data(), {1, 2}, DType::f64), puller.lists.pulls(),
                  Tensor(puller.mine.data() + 2, {0, 2}, DType::f64))
          .wait(ex);
    };
    const std::string text = error_of<CollectiveError>(pull_two);
    EXPECT_NE(text.find("gather_rows(f64 x 2 in rows of 2)"), std::string::npos) << text;
    EXPECT_NE(text.find("in the steps before it was gather_rows(f64 x 2 in rows of 1)"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace megalith::comm
