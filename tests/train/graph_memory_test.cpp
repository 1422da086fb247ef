// The memory of graphs of layers, counted from the addresses that captured ops touch: it follows the microbatches in
// flight and not how many there are (T9, T10, T11).
#include <algorithm>
#include <map>
#include <set>

#include "megalith/train/graph_accounting.h"

#include "tests/train/graph_run.h"

namespace megalith {
namespace {

using capture::GraphsPer;
using testing::Grid;

const std::byte* begin_of(const Tensor& tensor) { return static_cast<const std::byte*>(tensor.raw()); }

/// Stretches of memory; where they overlap, bytes count once.
class Stretches {
 public:
  void add(const Tensor& tensor) {
    const std::byte* end = begin_of(tensor) + tensor.bytes();
    const std::byte*& last = ends_.try_emplace(begin_of(tensor), end).first->second;
    last = std::max(last, end);
  }
  bool holds(const Tensor& tensor) const {
    const auto after = ends_.upper_bound(begin_of(tensor));
    return after != ends_.begin() && begin_of(tensor) + tensor.bytes() <= std::prev(after)->second;
  }
  Index bytes() const {
    Index sum = 0;
    const std::byte* counted = nullptr;
    for (const auto& [begin, end] : ends_) {
      const std::byte* from = std::max(begin, counted);
      if (end <= from) continue;
      sum += end - from;
      counted = end;
    }
    return sum;
  }

 private:
  std::map<const std::byte*, const std::byte*> ends_;
};

/// What a graph of a layer begins with, keeps and ends with.
struct Piece {
  std::vector<Tensor> reads;  ///< that it has not written before, without parameters
  Stretches writes;
  Tensor last_write;
};

Piece piece_of(const Graph& graph, const Stretches& parameters) {
  Piece piece;
  for (const Graph::Touched& op : graph.touched()) {
    for (const Tensor& tensor : op.reads) {
      if (tensor && !parameters.holds(tensor) && !piece.writes.holds(tensor)) piece.reads.push_back(tensor);
    }
    for (const Tensor& tensor : op.writes) {
      if (!tensor || parameters.holds(tensor)) continue;
      piece.writes.add(tensor);
      piece.last_write = tensor;
    }
  }
  return piece;
}

/// A layer's pass of a microbatch, between its forward and its backward.
struct Alive {
  const std::byte* input = nullptr;
  const std::byte* output = nullptr;
  std::vector<Tensor> saved = {};  ///< what its backward reads of what it wrote
};

/// Of a rank's graphs. [T, H] is what a layer begins with and ends with.
struct Counted {
  std::size_t inputs = 0, outputs = 0;  ///< different addresses of [T, H] that are alive at once, at most
  Index saved_bytes = 0;                ///< alive at once, at most
  Index saved_bytes_of_one = 0;         ///< layer and microbatch
  std::size_t all_inputs = 0;           ///< addresses of a step
  Index touched_bytes = 0;              ///< of a step, without parameters and their gradients
  BytesByOwner taken;
  bool operator==(const Counted&) const = default;
};

class Counter {
 public:
  Counter(train::Engine& engine, const config::RunPlan& plan)
      : graphs_(engine.layer_graphs()), hidden_bytes_(capture::input_bytes(train::layer_sizes(plan))) {
    parameters_.add(engine.stage().params().values());
    parameters_.add(engine.stage().params().grads());
    for (const GraphCache::Key& key : graphs_.order()) key.piece == 0 ? forward(key) : backward(key);
    EXPECT_TRUE(alive_.empty());
    counted_.all_inputs = all_inputs_.size();
    counted_.touched_bytes = touched_.bytes();
    counted_.taken = engine.taken_bytes();
  }
  const Counted& counted() const { return counted_; }

 private:
  using Pass = std::tuple<int, int, Index>;  // chunk, instance, layer
  static Pass pass_of(const GraphCache::Key& key) { return {key.chunk, key.instance, key.layer}; }

  void touch(const Graph& graph) {
    for (const Graph::Touched& op : graph.touched()) {
      for (const std::span<const Tensor> tensors : {op.reads, op.writes}) {
        for (const Tensor& tensor : tensors) {
          if (tensor && !parameters_.holds(tensor)) touched_.add(tensor);
        }
      }
    }
  }
  void forward(const GraphCache::Key& key) {
    const Graph& graph = graphs_.graph(key);
    touch(graph);
    const Piece piece = piece_of(graph, parameters_);
    Alive alive{.output = begin_of(piece.last_write)};
    EXPECT_EQ(piece.last_write.bytes(), hidden_bytes_);
    for (const Tensor& tensor : piece.reads) {
      if (tensor.bytes() != hidden_bytes_) continue;
      EXPECT_TRUE(alive.input == nullptr || alive.input == begin_of(tensor)) << "a layer has one input";
      alive.input = begin_of(tensor);
    }
    ASSERT_NE(alive.input, nullptr);
    all_inputs_.insert(alive.input);
    GraphCache::Key backward = key;
    backward.piece = 1;
    Stretches kept;
    for (const Tensor& tensor : piece_of(graphs_.graph(backward), parameters_).reads) {
      if (!piece.writes.holds(tensor)) continue;
      alive.saved.push_back(tensor);
      kept.add(tensor);
    }
    counted_.saved_bytes_of_one = std::max(counted_.saved_bytes_of_one, kept.bytes());
    EXPECT_TRUE(alive_.try_emplace(pass_of(key), std::move(alive)).second) << "its graphs serve one microbatch at once";
    count_alive();
  }
  void backward(const GraphCache::Key& key) {
    touch(graphs_.graph(key));
    EXPECT_EQ(alive_.erase(pass_of(key)), 1U);
  }
  void count_alive() {
    std::set<const std::byte*> inputs, outputs;
    Stretches saved;
    for (const auto& [pass, alive] : alive_) {
      inputs.insert(alive.input);
      outputs.insert(alive.output);
      for (const Tensor& tensor : alive.saved) saved.add(tensor);
    }
    counted_.inputs = std::max(counted_.inputs, inputs.size());
    counted_.outputs = std::max(counted_.outputs, outputs.size());
    counted_.saved_bytes = std::max(counted_.saved_bytes, saved.bytes());
  }

  const GraphCache& graphs_;
  Index hidden_bytes_;
  Stretches parameters_, touched_;
  std::map<Pass, Alive> alive_;
  std::set<const std::byte*> all_inputs_;
  Counted counted_;
};

constexpr int kLayersOfARank = 4;

/// Of each rank, after a step that captures.
std::vector<Counted> count_all(const Grid& grid, GraphsPer per, int microbatches) {
  config::RunConfig config = testing::small_config(grid, "fp32", 1);
  config.model.num_layers = Index{kLayersOfARank} * grid.pp;
  config.train.global_batch = microbatches * *config.train.micro_batch;
  config::RunPlan plan = config::resolve(config);
  plan.graphs.mode = capture::GraphMode::layers;
  plan.graphs.per = per;
  plan.graphs.warmup_steps = 0;
  std::vector<Counted> all(static_cast<std::size_t>(grid.ranks()));
  testing::run_of(plan, [&](train::Engine& engine, Index) {
    all[static_cast<std::size_t>(engine.world().rank())] = Counter(engine, plan).counted();
  });
  return all;
}

/// A(r): chunks of microbatches in flight on a stage (P2, P9 of the specification, worked out here anew).
int in_flight(const Grid& grid, int stage, int microbatches) {
  const int behind = grid.pp - stage - 1;
  const int warmup = grid.chunks == 1 ? behind : 2 * behind + (grid.chunks - 1) * grid.pp;
  return std::min(warmup + 1, microbatches * grid.chunks);
}

class GraphMemory : public ::testing::TestWithParam<std::tuple<Grid, GraphsPer>> {};

TEST_P(GraphMemory, FollowsTheMicrobatchesInFlight) {
  const auto& [grid, per] = GetParam();
  // Where chunks share slots and lay them out differently, more microbatches meet more places of the same memory.
  const bool meets_all_places = grid.pp < 4 || grid.chunks == 1;
  std::vector<Counted> fewest;
  for (const int microbatches : {8, 16, 64}) {
    SCOPED_TRACE(str(microbatches, " microbatches"));
    std::vector<Counted> all = count_all(grid, per, microbatches);
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      SCOPED_TRACE(str("rank ", rank));
      Counted& counted = all[static_cast<std::size_t>(rank)];
      const int stage = rank / grid.tp;
      const int sets = in_flight(grid, stage, microbatches) * kLayersOfARank / grid.chunks;
      EXPECT_EQ(counted.inputs, static_cast<std::size_t>(sets)) << "5.2, M13";
      EXPECT_EQ(counted.saved_bytes, sets * counted.saved_bytes_of_one) << "5.3";
      EXPECT_GT(counted.saved_bytes, 0);
      // A layer's output is the next one's input; a chunk's last one goes into a message, and is passed on.
      EXPECT_LE(counted.outputs, static_cast<std::size_t>(sets)) << "5.3, M13";
      // Per microbatch, one message is received ahead where it stays.
      if (grid.chunks == 1) {
        EXPECT_LE(counted.all_inputs,
                  static_cast<std::size_t>(sets) + (per == GraphsPer::microbatch && stage > 0 ? 1U : 0U));
      }
      EXPECT_LE(counted.touched_bytes, counted.taken.at("activations") + counted.taken.at("scratch") +
                                           counted.taken.at("inputs") + counted.taken["pipeline buffers"]);
      if (!meets_all_places) counted.all_inputs = 0, counted.touched_bytes = 0;
    }
    if (fewest.empty()) fewest = all;
    EXPECT_TRUE(all == fewest) << "grows with the microbatches";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GraphMemory,
    ::testing::Combine(::testing::Values(Grid{}, Grid{.pp = 2}, Grid{.pp = 4}, Grid{.pp = 2, .chunks = 2},
                                         Grid{.pp = 4, .chunks = 2}, Grid{.tp = 2, .pp = 2, .rows = nn::Rows::shared}),
                       ::testing::Values(GraphsPer::microbatch, GraphsPer::slot)),
    [](const auto& test) { return std::get<0>(test.param).name() + "_" + std::string(name(std::get<1>(test.param))); });

}  // namespace
}  // namespace megalith
