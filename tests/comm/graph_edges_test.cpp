// Calls between ranks that would cross the edge of a graph: it would repeat one end of them only.
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/io/temp_dir.h"

namespace megalith::comm {
namespace {

/// One of two ranks, which send each other a number.
class Rank {
 public:
  explicit Rank(World& world) : all_(world.all()), peer_(1 - world.rank()) { mine_[0] = world.rank() + 1; }

  Pending receive() { return recv(ex, all_, Tensor(theirs_.data(), {1}, DType::f64), peer_); }
  Pending post() { return send(ex, all_, Tensor(mine_.data(), {1}, DType::f64), peer_); }
  Pending sum() { return all_reduce(ex, all_, Tensor(mine_.data(), {1}, DType::f64), Reduce::sum); }
  double sent_by_peer() const { return peer_ + 1; }
  double received() const { return theirs_[0]; }
  double summed() const { return mine_[0]; }

  template <class Ops>
  Graph captured(Ops&& ops) {
    Capture capture("training", {bytes(mine_), bytes(theirs_)});
    ex.set_call_site({.microbatch = 1, .layer = 3});
    Graph graph = ex.captured(capture, ops);
    graph.prepare(ex);
    return graph;
  }

  Exec ex;

 private:
  using Number = std::array<double, 1>;
  static std::span<const std::byte> bytes(const Number& number) { return std::as_bytes(std::span(number)); }

  Group all_;
  int peer_;
  Number mine_{}, theirs_{};
};

constexpr const char* kOutside =
    "[wait] group world, microbatch 1, layer 3: the call was started while a graph was captured: must be awaited "
    "within that capture";

TEST(GraphEdges, AWaitInsideForACallFromOutsideNamesThePlace) {
  run_ranks(2, [](World& world) {
    Rank rank(world);
    Pending receive = rank.receive();
    Pending post = rank.post();
    Pending sum = rank.sum();  // complete on a CPU, and not on a GPU
    for (Pending* const call : {&receive, &post, &sum}) {
      EXPECT_EQ(
          error_of<InternalError>([&] { rank.captured([&] { call->wait(rank.ex); }); }),
          "[capture] training, microbatch 1, layer 3: wait: a call of group world that was started outside of the "
          "graph: must be awaited where it was started, as a launch repeats both or neither");
    }
    // Outside it still can be awaited.
    post.wait(rank.ex);
    receive.wait(rank.ex);
    sum.wait(rank.ex);
    EXPECT_EQ(rank.received(), rank.sent_by_peer());
    EXPECT_EQ(error_of<InternalError>([&] { rank.captured([&] { receive.wait(rank.ex); }); }), "")
        << "a second wait does nothing";
  });
}

TEST(GraphEdges, AWaitOutsideForACallFromInsideNamesThePlace) {
  run_ranks(2, [](World& world) {
    Rank rank(world);
    Pending receive, sum;
    rank.captured([&] {
      receive = rank.receive();
      sum = rank.sum();
    });
    EXPECT_EQ(error_of<InternalError>([&] { receive.wait(rank.ex); }), kOutside);
    EXPECT_EQ(error_of<InternalError>([&] { sum.wait(rank.ex); }), kOutside);
  });
}

TEST(GraphEdges, AWaitInAnotherGraphNamesThePlace) {
  run_ranks(2, [](World& world) {
    Rank rank(world);
    Pending receive;
    const Graph first = rank.captured([&] {
      receive = rank.receive();
      rank.post().wait(rank.ex);
    });
    EXPECT_EQ(error_of<InternalError>([&] { rank.captured([&] { receive.wait(rank.ex); }); }),
              "[capture] training, microbatch 1, layer 3: wait: a call of group world that was started in another "
              "graph: must be awaited where it was started, as a launch repeats both or neither");
  });
}

TEST(GraphEdges, CallsWithinAGraphAreRepeated) {
  run_ranks(2, [](World& world) {
    Rank rank(world);
    Pending receive;
    const Graph graph = rank.captured([&] {
      receive = rank.receive();
      rank.post().wait(rank.ex);
      receive.wait(rank.ex);
      rank.sum().wait(rank.ex);
    });
    receive.wait(rank.ex);  // once more, which does nothing
    graph.launch(rank.ex);
    EXPECT_EQ(rank.received(), rank.sent_by_peer());
    EXPECT_EQ(rank.summed(), 3);
    graph.launch(rank.ex);
    EXPECT_EQ(rank.received(), 3);
    EXPECT_EQ(rank.summed(), 6);
  });
}

/// The caller's counts change after the capture, and are gone at the launches. The rows change between these.
TEST(GraphEdges, AnAllToAllIsRepeatedWithTheCountsOfItsCapture) {
  constexpr int kRanks = 3;
  run_ranks(kRanks, [](World& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    // Rank r sends r + to rows to rank `to`.
    std::array<double, 16> mine{}, theirs{};
    Index sent = 0, received = 0;
    auto counts = std::make_unique<std::array<std::array<Index, kRanks>, 2>>();
    for (std::size_t peer = 0; peer < kRanks; ++peer) {
      for (auto& direction : *counts) direction[peer] = static_cast<Index>(me + peer);
      sent += (*counts)[0][peer];
      received += (*counts)[1][peer];
    }
    Exec ex;
    Capture capture("training", {std::as_bytes(std::span(mine)), std::as_bytes(std::span(theirs))});
    const Tensor in(mine.data(), {sent, 1}, DType::f64), out(theirs.data(), {received, 1}, DType::f64);
    Graph graph =
        ex.captured(capture, [&] { all_to_all(ex, world.all(), in, (*counts)[0], out, (*counts)[1]).wait(ex); });
    graph.prepare(ex);
    for (auto& direction : *counts) direction.fill(-1);
    counts.reset();
    for (const double step : {1.0, 2.0}) {
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = 1000 * step + 100 * static_cast<double>(me);
      theirs.fill(std::numeric_limits<double>::quiet_NaN());
      graph.launch(ex);
      std::size_t at = 0;
      for (std::size_t peer = 0; peer < kRanks; ++peer) {
        for (std::size_t i = 0; i < me + peer; ++i)
          EXPECT_EQ(theirs[at++], 1000 * step + 100 * static_cast<double>(peer)) << "rank " << me << ", row " << at - 1;
      }
      EXPECT_TRUE(at == theirs.size() || std::isnan(theirs[at])) << "no row more is written";
    }
  });
}

}  // namespace
}  // namespace megalith::comm
