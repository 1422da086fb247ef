// Experts whose clones other ranks compute, against the same experts without clones, for given choices.
#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/nn/moe/all_to_all_dispatcher.h"
#include "megalith/nn/moe/echo.h"
#include "megalith/nn/moe/peer_dispatcher.h"

#include "tests/nn/layer_harness.h"
#include "tests/test_data.h"

namespace megalith::nn {
namespace {

using Ints = std::vector<std::int32_t>;

constexpr Index kLayerHidden = 4, kFfn = 6;

/// Choices of all ranks [R, n, K].
struct GivenRouting {
  Index ranks = 1, experts = 1, rows = 1, top_k = 1;
  Ints choices = {};
};

/// expert(rank, row, k)
GivenRouting routing_of(Index ranks, Index experts, Index rows, Index top_k,
                        const std::function<Index(Index, Index, Index)>& expert) {
  GivenRouting of{ranks, experts, rows, top_k, {}};
  for (Index rank = 0; rank < ranks; ++rank) {
    for (Index row = 0; row < rows; ++row) {
      for (Index k = 0; k < top_k; ++k) of.choices.push_back(static_cast<std::int32_t>(expert(rank, row, k)));
    }
  }
  return of;
}

/// What a pass leaves, of all ranks. Numbers of rows: tensors by rank.
struct LayerResults {
  std::map<std::string, std::vector<double>> rows, weight_grads;
  Ints clones, load_after, computed;  ///< src of the plan; pairs of each rank by the plan, and by the groups of rows
  Ints columns;                       ///< [R, n, K], where pairs are computed
};

/// How numbers are made: any, or whole numbers whose products and sums have no rounding. Then the SwiGLU of a gate of
/// at least 40 is the product of both.
enum class Numbers : std::uint8_t { random, whole };

struct LayerRun {
  DType dtype = DType::f64;
  Numbers numbers = Numbers::random;
  EchoConfig echo = {};
  ExpertDispatcher dispatcher = ExpertDispatcher::automatic;
};

void fill_numbers(const Tensor& tensor, Numbers numbers, std::array<int, 2> range, std::uint64_t stream) {
  support::fill_random(tensor, stream);
  if (numbers == Numbers::random) return;
  std::mt19937_64 random(stream);
  dispatch_float(tensor.dtype(), "fill_numbers", [&]<class T>() {
    for (T& value : tensor.span<T>())
      value = static_cast<T>(
          static_cast<float>(range[0] + static_cast<int>(random() % static_cast<unsigned>(range[1] - range[0] + 1))));
  });
}

std::vector<double> doubles_of(const Tensor& tensor) {
  std::vector<double> all;
  dispatch_float(tensor.dtype(), "doubles_of", [&]<class T>() {
    for (const T& value : tensor.span<T>()) all.push_back(converted<double>(value));
  });
  return all;
}

/// One rank's experts, and the ways to them.
class RankLayer {
 public:
  RankLayer(comm::World& world, const GivenRouting& routing, const LayerRun& run)
      : run_(run),
        solo_(world.group("solo", {world.rank()})),
        parallel_(support::whole_rows(solo_), world.all(), solo_, world.all()),
        params_(specs(routing), {run.dtype, run.dtype}),
        dtype_(run.dtype) {
    params_.allocate(ledger_);
    for (ParamBuffer& buffer : params_.buffers()) {
      for (Param& param : buffer.params()) {
        const bool is_up = param.spec.slice.name == "experts.up.weight";
        // The same for an expert wherever it lives.
        for (Index e = 0; e < param.value.dim(0); ++e) {
          const Index expert = param.spec.slice.offset[0] + e;
          fill_numbers(param.value.rows(e, 1), run.numbers, is_up ? std::array{1, 2} : std::array{-2, 2},
                       static_cast<std::uint64_t>(100 + 2 * expert + (is_up ? 1 : 0)));
        }
      }
    }
    experts_.emplace("experts", SublayerOptions{}, params_);
    Index columns = routing.experts;
    if (run.echo.slots > 0) {
      columns = echo_.emplace(spec(routing), parallel_, *experts_).num_columns();
      pass_ = echo_->make_pass();
      pass_->take_host_memory(Device::cpu);
    }
    DispatchSizes sizes{.num_experts = columns, .top_k = routing.top_k};
    const Index own = routing.experts / parallel_.ep().size();
    sizes.first_groups = run.echo.slots > 0 ? own / 2 : 0;  // clones and later rows at once, against a plain layer
    if (run.dispatcher == ExpertDispatcher::all_to_all) {
      const HostCopies copies{MoePoint::before_permutation_1, MoePoint::before_ep_alltoall};
      dispatcher_ = std::make_unique<AllToAllDispatcher>(parallel_, sizes, copies);
    } else {
      dispatcher_ = std::make_unique<PeerDispatcher>(parallel_, sizes, HostCopies{});
    }
    saved_ = dispatcher_->make_saved();
    saved_->take_host_memory(Device::cpu);
    of_experts_.clones = pass_.get();
  }

  /// Forward and backward for these choices. All memory of the pass is full of NaN before.
  void pass(const GivenRouting& routing, ops::Write weight_grads, Index rank, LayerResults& results,
            std::mutex& mutex) {
    Exec ex;
    ex.poison_new_tensors();
    support::SmallMicrobatch microbatch;
    const auto stream = static_cast<std::uint64_t>(rank);
    const Tensor x = ex.tensor({routing.rows, kLayerHidden}, dtype_), dy = ex.tensor_like(x), y = ex.tensor_like(x),
                 dx = ex.tensor_like(x);
    const DType wide = dtype_ == DType::f64 ? DType::f64 : DType::f32;
    const Tensor weights = ex.tensor({routing.rows, routing.top_k}, wide), d_weights = ex.tensor_like(weights);
    fill_numbers(x, run_.numbers, {10, 13}, 10 + stream);
    fill_numbers(dy, run_.numbers, {-2, 2}, 20 + stream);
    fill_numbers(weights, run_.numbers, {1, 2}, 30 + stream);
    const Tensor choices = ex.tensor({routing.rows, routing.top_k}, DType::i32);
    const Index own = routing.rows * routing.top_k;
    std::copy_n(routing.choices.begin() + rank * own, own, choices.data<std::int32_t>());

    RoutedPairs routed{.experts = choices};
    if (echo_) routed = echo_->plan(ex, microbatch.get(), choices, *pass_);
    routed.mode = Mode::train;
    dispatcher_->preprocess(ex, routed, *saved_);
    dispatcher_->permute(ex, x, *saved_);
    if (echo_) echo_->start_weights(ex, *pass_);
    LaterRows later, later_grads;
    dispatcher_->dispatch(ex, *saved_, later).wait(ex);
    const ExpertRows rows = dispatcher_->arrived(ex, *saved_);
    dispatcher_->return_rows(ex, experts_->forward(ex, rows, of_experts_, later), *saved_);
    dispatcher_->combine(ex, weights, y, *saved_);
    if (echo_) echo_->start_weights_again(ex, *pass_);
    dispatcher_->combine_backward(ex, dy, weights, *saved_);
    const RowGrads d_rows = dispatcher_->return_rows_backward(ex, *saved_, later_grads);
    const ExpertRows in = dispatcher_->dispatched(ex, x, *saved_);
    const SourceGrads sources{dx, d_weights};
    InFlight in_flight = dispatcher_->dispatch_backward(
        ex, experts_->backward(ex, in, d_rows, weight_grads, of_experts_, later_grads), sources, *saved_);
    experts_->add_last_weight_grads(ex, in, weight_grads, of_experts_);
    in_flight.wait(ex);
    dispatcher_->permute_backward(ex, sources, *saved_);
    if (echo_) echo_->finish_grads(ex, *pass_);

    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : {std::pair{"y", y}, {"dx", dx}, {"d_weights", d_weights}})
      results.rows[str(name, " of rank ", rank)] = doubles_of(tensor);
    std::int32_t computed = 0;
    for (const std::int32_t count : rows.groups.rows.span<std::int32_t>()) computed += count;
    results.computed.resize(static_cast<std::size_t>(routing.ranks));
    results.computed[static_cast<std::size_t>(rank)] = computed;
    if (!echo_) return;
    const std::span<std::int32_t> src = pass_->plan().src.span<std::int32_t>(),
                                  after = pass_->plan().load_after.span<std::int32_t>();
    results.clones.assign(src.begin(), src.end());
    results.load_after.assign(after.begin(), after.end());
    results.columns.resize(static_cast<std::size_t>(routing.ranks * own));
    std::ranges::copy(routed.experts.span<std::int32_t>(), results.columns.begin() + rank * own);
  }

  /// To which a pass may add.
  void set_weight_grads(const LayerResults& results) {
    for (ParamBuffer& buffer : params_.buffers()) {
      for (Param& param : buffer.params())
        std::ranges::copy(results.weight_grads.at(grads_name(param)), param.grad.data<double>());
    }
  }

  void put_weight_grads(LayerResults& results, std::mutex& mutex) {
    const std::lock_guard lock(mutex);
    for (ParamBuffer& buffer : params_.buffers()) {
      for (Param& param : buffer.params()) results.weight_grads[grads_name(param)] = doubles_of(param.grad);
    }
  }

 private:
  static std::string grads_name(const Param& param) {
    return str(param.spec.slice.name, " from ", param.spec.slice.offset[0]);
  }
  MoeSpec spec(const GivenRouting& routing) const {
    return {.config = {.num_experts = routing.experts,
                       .top_k = routing.top_k,
                       .ffn_hidden_size = kFfn,
                       .dispatcher = run_.dispatcher,
                       .echo = run_.echo},
            .activation = Activation::swiglu};
  }
  std::vector<ParamSpec> specs(const GivenRouting& routing) const {
    std::vector<ParamSpec> all;
    Experts::declare(all, "experts", spec(routing), {.hidden_size = kLayerHidden}, parallel_);
    return all;
  }

  LayerRun run_;
  comm::Group solo_;
  ExpertParallel parallel_;
  MemoryLedger ledger_{Device::cpu};
  ParamSet params_;
  DType dtype_;
  std::optional<Experts> experts_;
  std::optional<Echo> echo_;
  std::unique_ptr<EchoPass> pass_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<Dispatcher::Saved> saved_;
  Experts::Saved of_experts_;
};

/// A microbatch for each routing: the first one overwrites weight gradients. LayerResults of rows are those of each.
std::vector<LayerResults> run_layer(const std::vector<GivenRouting>& routings, const LayerRun& run) {
  std::vector<LayerResults> all(routings.size());
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(routings.front().ranks), [&](comm::World& world) {
    RankLayer layer(world, routings.front(), run);
    for (std::size_t i = 0; i < routings.size(); ++i) {
      const ops::Write write = i == 0 ? ops::Write::overwrite : ops::Write::accumulate;
      layer.pass(routings[i], write, world.rank(), all[i], mutex);
      layer.put_weight_grads(all[i], mutex);
    }
  });
  return all;
}

EchoConfig echo_of(Index slots, EchoWeights weights = EchoWeights::keep, EchoBackend backend = EchoBackend::automatic) {
  return {.slots = slots, .min_pairs = 0, .weights = weights, .backend = backend, .check_plan = 1};
}

std::vector<LayerRun> runs_with(Index slots, const LayerRun& run) {
  std::vector<LayerRun> all;
  for (const EchoWeights weights : {EchoWeights::keep, EchoWeights::redispatch}) {
    for (const EchoBackend backend : {EchoBackend::peer, EchoBackend::collective, EchoBackend::host_sized}) {
      LayerRun one = run;
      one.echo = echo_of(slots, weights, backend);
      one.echo.overlap = weights == EchoWeights::keep;
      all.push_back(one);
      if (backend != EchoBackend::host_sized) continue;
      one.dispatcher = ExpertDispatcher::all_to_all;
      all.push_back(one);
    }
  }
  return all;
}

/// Numbers of both kinds; or whole ones in f32 alone, for many pairs.
enum class Compared : std::uint8_t { all, whole_numbers };

/// Runs with clones have the results of those without, all of them the same weight gradients. Returns what was planned.
LayerResults expect_same_results(const std::vector<GivenRouting>& routings, Index slots,
                                 Compared compared = Compared::all) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    if (dtype == DType::f64 && compared == Compared::whole_numbers) continue;
    for (const Numbers numbers : {Numbers::whole, Numbers::random}) {
      // In f32 the rounding of a row follows from the number of rows of its group (ops/grouped_matmul.h).
      if (dtype == DType::f32 && numbers == Numbers::random) continue;
      const LayerRun plain{.dtype = dtype, .numbers = numbers};
      const std::vector<LayerResults> want = run_layer(routings, plain);
      std::vector<LayerResults> first;
      for (const LayerRun& run : runs_with(slots, plain)) {
        const std::vector<LayerResults> got = run_layer(routings, run);
        if (first.empty()) first = got;
        for (std::size_t i = 0; i < routings.size(); ++i) {
          SCOPED_TRACE(str("routing ", i, ", backend ", static_cast<int>(run.echo.backend), ", weights ",
                           static_cast<int>(run.echo.weights)));
          EXPECT_EQ(got[i].rows, want[i].rows);
          EXPECT_EQ(got[i].computed, got[i].load_after) << "rows of a rank, as the plan has them";
          EXPECT_EQ(got[i].weight_grads, first[i].weight_grads);
          for (const auto& [name, values] : want[i].weight_grads) {
            if (numbers == Numbers::whole) {
              EXPECT_EQ(got[i].weight_grads.at(name), values) << name;
            } else {
              EXPECT_LT(support::relative_error(got[i].weight_grads.at(name), values), 1e-14) << name;
            }
          }
        }
      }
      if (dtype == DType::f32) return first.back();
    }
  }
  return {};
}

std::ptrdiff_t clones_of(const LayerResults& results, std::int32_t expert) {
  return std::ranges::count(results.clones, expert);
}
std::ptrdiff_t num_clones(const LayerResults& results) {
  return std::ranges::count_if(results.clones, [](std::int32_t expert) { return expert >= 0; });
}

/// The weight gradients of the pairs that are computed in one column, added to `start` where it has any. No clones: the
/// pairs are at their expert's home.
LayerResults grads_of_column(GivenRouting routing, const Ints& columns, std::int32_t column,
                             const LayerResults& start = {}) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (columns[i] != column) routing.choices[i] = -1;
  }
  LayerResults results;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(routing.ranks), [&](comm::World& world) {
    RankLayer layer(world, routing, {});
    const bool adds = !start.weight_grads.empty();
    if (adds) layer.set_weight_grads(start);
    layer.pass(routing, adds ? ops::Write::accumulate : ops::Write::overwrite, world.rank(), results, mutex);
    layer.put_weight_grads(results, mutex);
  });
  return results;
}

void add_grads(LayerResults& to, const LayerResults& from) {
  for (auto& [name, values] : to.weight_grads)
    std::ranges::transform(values, from.weight_grads.at(name), values.begin(), std::plus());
}

// Random numbers, whose sums round by their order: of a microbatch home first, then slots in ascending order, then what
// comes of the next microbatch.
TEST(EchoLayer, GradientsOfClonesAreAddedAfterThatOfTheirHomeSlotBySlot) {
  std::vector<GivenRouting> microbatches;
  for (const Index other : {7, 5})
    microbatches.push_back(routing_of(3, 3, 12, 1, [=](Index, Index row, Index) { return row % other == 4 ? 1 : 0; }));
  const std::vector<LayerResults> got = run_layer(microbatches, {.echo = echo_of(1)});
  constexpr std::int32_t kHome = 0, kSlots[] = {3, 5};  // columns: the expert of each rank, then its slot
  LayerResults want, exchanged;
  for (std::size_t i = 0; i < microbatches.size(); ++i) {
    ASSERT_EQ(got[i].clones, (Ints{-1, 0, 0})) << "expert 0 has two clones";
    const auto grads = [&](std::int32_t column, const LayerResults& start = {}) {
      return grads_of_column(microbatches[i], got[i].columns, column, start);
    };
    const LayerResults first = grads(kSlots[0]), second = grads(kSlots[1]);
    LayerResults slots_first = i == 0 ? first : want;
    if (i > 0) add_grads(slots_first, first);
    add_grads(slots_first, second);
    exchanged = grads(kHome, slots_first);
    want = grads(kHome, want);
    add_grads(want, first);
    add_grads(want, second);
    for (const char* name : {"experts.up.weight from 0", "experts.down.weight from 0"}) {
      EXPECT_EQ(got[i].weight_grads.at(name), want.weight_grads.at(name)) << name << ", microbatch " << i;
      EXPECT_NE(exchanged.weight_grads.at(name), want.weight_grads.at(name)) << "another order has other bits";
    }
  }
}

TEST(EchoLayer, AnExpertLeavesHomeWhole) {
  const GivenRouting half = routing_of(2, 4, 10, 1, [](Index, Index row, Index) { return row % 2; });
  const LayerResults results = expect_same_results({half}, 2);
  EXPECT_EQ(results.clones, (Ints{-1, -1, 1, -1}));
  EXPECT_EQ(results.load_after, (Ints{10, 10}));
}

TEST(EchoLayer, AnExpertHasThreeSlots) {
  const LayerResults results = expect_same_results({routing_of(4, 4, 7, 1, [](Index, Index, Index) { return 2; })}, 1);
  EXPECT_EQ(clones_of(results, 2), 3);
  EXPECT_EQ(results.load_after, (Ints{7, 7, 7, 7}));
}

TEST(EchoLayer, NoSlotIsActive) {
  const GivenRouting even = routing_of(2, 4, 8, 2, [](Index, Index row, Index k) { return (row + 2 * k) % 4; });
  EXPECT_EQ(num_clones(expect_same_results({even}, 3)), 0);
}

TEST(EchoLayer, FewerPairsThanRanksOrNone) {
  const GivenRouting two =
      routing_of(4, 8, 3, 2, [](Index rank, Index row, Index k) { return rank == 1 && row == 2 ? k : -1; });
  const GivenRouting none = routing_of(4, 8, 3, 2, [](Index, Index, Index) { return -1; });
  EXPECT_EQ(expect_same_results({two}, 2).load_after, (Ints{2, 0, 0, 0}));
  EXPECT_EQ(expect_same_results({none}, 2).load_after, (Ints{0, 0, 0, 0}));
}

/// Slots that a plan fills have held other experts before.
TEST(EchoLayer, RoutingChangesBetweenMicrobatches) {
  const auto hot = [](Index expert) {
    return routing_of(4, 8, 9, 2, [=](Index rank, Index row, Index k) {
      return k == 0 ? expert : (expert + 1 + (rank + row) % 7) % 8;
    });
  };
  const GivenRouting even =
      routing_of(4, 8, 9, 2, [](Index rank, Index row, Index k) { return (rank + row + 4 * k) % 8; });
  const GivenRouting none = routing_of(4, 8, 9, 2, [](Index, Index, Index) { return -1; });
  expect_same_results({hot(0), even, hot(7), none, hot(3), hot(3), even, hot(0)}, 3);
}

/// Choices, one of a row, that have counts [R][E]. Ranks with fewer pairs have rows that chose no expert.
GivenRouting routing_with(const nlohmann::json& counts) {
  std::vector<Ints> experts;
  std::size_t rows = 1;
  for (const nlohmann::json& of_rank : counts) {
    Ints& all = experts.emplace_back();
    for (std::size_t e = 0; e < of_rank.size(); ++e)
      all.insert(all.end(), of_rank[e].get<std::size_t>(), static_cast<std::int32_t>(e));
    rows = std::max(rows, all.size());
  }
  return routing_of(std::ssize(counts), std::ssize(counts[0]), static_cast<Index>(rows), 1,
                    [&](Index rank, Index row, Index) -> Index {
                      const Ints& all = experts[static_cast<std::size_t>(rank)];
                      return row < std::ssize(all) ? all[static_cast<std::size_t>(row)] : -1;
                    });
}

/// The worked plans of tests/data/echo, computed: an expert that all choose, sources without tokens, fewer slots than
/// needed, ties, remainders, fewer pairs than ranks, none at all, experts that leave home whole.
TEST(EchoLayer, PlansOfTheVectors) {
  std::ifstream file(MEGALITH_TEST_DATA "/echo/echo.json");
  const nlohmann::json vectors = nlohmann::json::parse(file);
  int plans = 0;
  for (const nlohmann::json& entry : vectors.at("cases")) {
    if (entry.at("op") != "plan" || entry.at("input").at("ranks") == 1) continue;
    SCOPED_TRACE(entry.at("id").get<std::string>());
    const nlohmann::json& input = entry.at("input");
    if (input.at("experts") > 32) continue;  // D-15: 14,000 pairs, as many others
    const LayerResults results = expect_same_results({routing_with(input.at("count"))},
                                                     input.at("slots_per_rank").get<Index>(), Compared::whole_numbers);
    EXPECT_EQ(results.clones, entry.at("expect").at("slot_src").get<Ints>());
    EXPECT_EQ(results.computed, entry.at("expect").at("load_after").get<Ints>());
    ++plans;
  }
  EXPECT_EQ(plans, 15);
}

TEST(EchoLayer, RandomRouting) {
  std::mt19937 random(9);
  std::vector<GivenRouting> routings;
  for (int i = 0; i < 6; ++i) {
    routings.push_back(routing_of(
        3, 9, 11, 2, [&](Index, Index, Index k) { return k + 2 * static_cast<Index>(random() % (1 + random() % 4)); }));
  }
  EXPECT_GT(num_clones(expect_same_results(routings, 2)), 0);
}

}  // namespace
}  // namespace megalith::nn
