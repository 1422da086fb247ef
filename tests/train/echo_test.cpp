// Clones of experts (docs/echo.md) in training: they change nothing but the order of sums in experts' gradients.
#include <array>
#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/build.h"
#include "megalith/base/clock.h"
#include "megalith/base/error.h"

#include "tests/comm/wrapped_world.h"
#include "tests/io/temp_dir.h"
#include "tests/support/count_allocations.h"
#include "tests/train/echo_run.h"
#include "tests/train/recompute_modes.h"
#include "tests/train/resumed_run.h"

namespace megalith {
namespace {

using nn::SequenceParallel;
using support::echo_config;
using support::EchoWay;
using support::kSkew;
using support::kSkewed;
using support::MoeGrid;
using support::MoeModel;
using support::relative_error;
using support::RunRecord;

/// A run of a recipe.
struct TrainedRun : RunRecord {
  explicit TrainedRun(const config::RunConfig& recipe, const nn::RecomputeConfig& recompute = {}) {
    config::RunPlan plan = config::resolve(recipe);
    plan.recompute = recompute;
    support::run_moe(plan, *this);
  }
  TrainedRun(const MoeGrid& grid, const MoeModel& model, const EchoWay& way, Index steps)
      : TrainedRun(echo_config(grid, model, way, steps)) {}
};

bool is_of_experts(const std::string& parameter) { return parameter.find(".experts.") != std::string::npos; }

/// A first step of both: the same but for rounding in experts' gradients, which shows that clones have computed a part.
void expect_same_but_experts(const RunRecord& got, const RunRecord& want) {
  EXPECT_EQ(got.losses[0], want.losses[0]);
  bool is_other = false;
  for (const auto& [name, values] : want.gradients.tensors()) {
    if (!is_of_experts(name)) {
      EXPECT_EQ(got.gradients.at(name), values) << name;
      continue;
    }
    EXPECT_LT(relative_error(got.gradients.at(name), values), 1e-13) << name;
    is_other |= got.gradients.at(name) != values;
  }
  EXPECT_TRUE(is_other) << "no clone has computed anything";
  EXPECT_LT(relative_error(got.losses, want.losses), 1e-12);
  EXPECT_LT(relative_error(got.norms, want.norms), 1e-12);
}

void expect_same_run(const RunRecord& got, const RunRecord& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluated, want.evaluated);
  EXPECT_EQ(got.gradients.tensors(), want.gradients.tensors());
  EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
}

constexpr EchoWay kPlain{.slots = 0};

/// The ways in which experts lie on ranks: own rows, shares, replicas with slices; stages, and chunks of them.
const std::vector<MoeGrid>& echo_grids() {
  static const std::vector<MoeGrid> grids = {{2, 1, 1, 2, 1}, {4, 1, 1, 4, 1}, {4, 2, 1, 2, 1},
                                             {4, 2, 1, 2, 2}, {4, 1, 2, 2, 1}, {4, 1, 2, 2, 1, 2}};
  return grids;
}

TEST(EchoTraining, ChangesNothingButTheOrderOfExpertsSums) {
  const MoeModel shared{"Shared", [](config::RunConfig& c) {
                          c.moe.router_skew = kSkew;
                          c.moe.pattern = "dm";
                          c.moe.shared_ffn_hidden_size = 8;
                          c.moe.shared_gate = true;
                        }};
  for (const MoeGrid& grid : echo_grids()) {
    for (const MoeModel& model : {kSkewed, shared}) {
      SCOPED_TRACE(grid.name() + " " + model.name);
      expect_same_but_experts(TrainedRun(grid, model, {}, 3), TrainedRun(grid, model, kPlain, 3));
    }
  }
}

TEST(EchoTraining, HasTheSameBitsHoweverClonesMove) {
  for (const MoeGrid& grid : {MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 1, 1, 4, 1}, MoeGrid{4, 2, 1, 2, 2}}) {
    for (const char* precision : {"fp64", "bf16"}) {
      for (const char* balance : {"greedy", "exact"}) {
        const TrainedRun want = TrainedRun(echo_config(grid, kSkewed, {.balance = balance}, 3, precision));
        const EchoWay ways[] = {{.weights = "redispatch"},
                                {.backend = "collective"},
                                {.weights = "redispatch", .backend = "collective", .overlap = false},
                                {.backend = "host_sized"},
                                {.weights = "redispatch", .backend = "host_sized", .overlap = false},
                                {.dispatcher = "all_to_all"},
                                {.weights = "redispatch", .dispatcher = "all_to_all", .overlap = false},
                                {.overlap = false}};
        for (EchoWay way : ways) {
          way.balance = balance;
          SCOPED_TRACE(str(grid.name(), ' ', precision, ' ', way.name()));
          expect_same_run(TrainedRun(echo_config(grid, kSkewed, way, 3, precision)), want);
        }
      }
    }
  }
}

/// A second pass takes the plan of the first one.
TEST(EchoTraining, HasTheSameBitsWhereLayersAreRecomputed) {
  for (const char* weights : {"keep", "redispatch"}) {
    const config::RunConfig recipe = echo_config({4, 1, 2, 2, 1, 2}, kSkewed, {.weights = weights}, 3);
    const TrainedRun want = TrainedRun(recipe);
    for (const support::RecomputeWay& way : support::recompute_ways()) {
      SCOPED_TRACE(str(weights, ' ', way.name));
      expect_same_run(TrainedRun(recipe, way.config), want);
    }
  }
}

/// Memory is full of NaN wherever a tensor begins, as in debug builds: what a host reads must still be there.
TEST(EchoTraining, HostsReadPlansBeforeTheirMemoryHoldsOtherTensors) {
  const auto losses_of = [](const EchoWay& way) {
    const config::RunPlan plan = config::resolve(echo_config({2, 1, 1, 2, 1}, kSkewed, way, 2));
    std::vector<double> losses;
    comm::run_ranks(2, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      engine.exec().poison_new_tensors();
      const support::HashedBatches source(plan.model.vocab_size);
      for (Index step = 0; step < 2; ++step) {
        const double loss = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no).loss;
        const double evaluated = engine.evaluate(source, plan.train.global_batch);
        if (world.rank() == 0) losses.insert(losses.end(), {loss, evaluated});
      }
    });
    return losses;
  };
  const std::vector<double> want = losses_of({.backend = "peer"});
  EXPECT_EQ(losses_of({.backend = "host_sized"}), want);
  EXPECT_EQ(losses_of({.dispatcher = "all_to_all"}), want);
}

/// Counts how often choices of all ranks are gathered, which each plan does once.
class PlanCountingChannel final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  comm::Ticket all_gather(const comm::Call& call, const void* in, void* out, Stream stream) override {
    if (name() == "etp-ep" && call.dtype == DType::i32 && world_rank() == 0) ++plans;
    return inner().all_gather(call, in, out, stream);
  }
  static inline std::atomic<int> plans = 0;
};

TEST(EchoTraining, APassThatRecomputesPlansNothing) {
  for (const support::RecomputeWay& way : support::recompute_ways()) {
    config::RunPlan plan = config::resolve(echo_config({2, 1, 1, 2, 1}, kSkewed, {}, 1));
    plan.recompute = way.config;
    PlanCountingChannel::plans = 0;
    comm::run_ranks(2, [&](comm::World& world) {
      comm::WrappedWorld<PlanCountingChannel> counted(world);
      train::Engine engine(counted, plan);
      engine.allocate();
      engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
    });
    EXPECT_EQ(PlanCountingChannel::plans, 4 * 4) << way.name << ": layers, microbatches of a rank";
  }
}

/// The sizes of an expert's matrices, in the order in which rank 0 fetches them to slots, and of the gradients' home.
class OrderChannel final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  comm::Ticket gather_rows(const comm::Call& call, const comm::GatherRows& args, Stream stream) override {
    if (name() == "ep" && world_rank() == 0) weights.push_back(args.mine.dim(1));
    return inner().gather_rows(call, args, stream);
  }
  comm::Ticket gather_sum_rows(const comm::Call& call, const comm::GatherSumRows& args, Stream stream) override {
    if (name() == "ep" && world_rank() == 0) grads.push_back(args.mine.dim(1));
    return inner().gather_sum_rows(call, args, stream);
  }
  static inline std::vector<Index> weights, grads;
};

// What a pass needs first is on its way first: the first product's matrix forward, the second one's backward.
TEST(EchoTraining, WeightsMoveInTheOrderInWhichAPassReadsThem) {
  for (const char* weights : {"keep", "redispatch"}) {
    config::RunConfig recipe = echo_config({2, 1, 1, 2, 1}, kSkewed, {.weights = weights}, 1);
    recipe.model.num_layers = 1;
    recipe.train.global_batch = 4;
    const config::RunPlan plan = config::resolve(recipe);
    OrderChannel::weights.clear(), OrderChannel::grads.clear();
    comm::run_ranks(2, [&](comm::World& world) {
      comm::WrappedWorld<OrderChannel> wrapped(world);
      train::Engine engine(wrapped, plan);
      engine.allocate();
      engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
    });
    const Index down = plan.model.hidden_size * plan.model.moe.ffn_hidden_size, up = 2 * down;
    const bool again = weights == std::string("redispatch");
    EXPECT_EQ(OrderChannel::weights, again ? std::vector({up, down, down, up}) : std::vector({up, down})) << weights;
    EXPECT_EQ(OrderChannel::grads, std::vector({down, up}));
  }
}

/// Rank 1 ends with an error in a call that moves clones.
class DyingChannel final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  comm::Ticket gather_rows(const comm::Call& call, const comm::GatherRows& args, Stream stream) override {
    die_in(comm::Op::gather_rows);
    return inner().gather_rows(call, args, stream);
  }
  comm::Ticket gather_sum_rows(const comm::Call& call, const comm::GatherSumRows& args, Stream stream) override {
    die_in(comm::Op::gather_sum_rows);
    return inner().gather_sum_rows(call, args, stream);
  }
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream stream) override {
    die_in(comm::Op::reduce_scatter);
    return inner().reduce_scatter(call, in, out, stream);
  }
  comm::Ticket all_to_all(const comm::Call& call, const comm::Parts<const void>& in, const comm::Parts<void>& out,
                          Stream stream) override {
    die_in(comm::Op::all_to_all);
    return inner().all_to_all(call, in, out, stream);
  }
  static inline comm::Op where = comm::Op::gather_rows;

 private:
  void die_in(comm::Op op) {
    if (name() == "ep" && op == where && world_rank() == 1 && ++calls_ == kCall) throw IoError("the end");
  }
  static constexpr int kCall = 3;  ///< of the second layer
  int calls_ = 0;
};

TEST(EchoTraining, ARankThatDiesInATransferOfClonesFreesTheOthersAtOnce) {
  using comm::Op;
  for (const auto& [backend, where] : {std::pair{"peer", Op::gather_rows},
                                       {"peer", Op::gather_sum_rows},
                                       {"collective", Op::reduce_scatter},
                                       {"host_sized", Op::all_to_all}}) {
    SCOPED_TRACE(str(backend, ' ', comm::name_of(where)));
    const config::RunPlan plan = config::resolve(echo_config({4, 1, 1, 4, 1}, kSkewed, {.backend = backend}, 1));
    DyingChannel::where = where;
    const double begin_s = monotonic_s();
    std::string error;
    std::atomic<int> freed = 0;
    try {
      comm::run_ranks(4, [&](comm::World& world) {
        comm::WrappedWorld<DyingChannel> wrapped(world);
        train::Engine engine(wrapped, plan);
        engine.allocate();
        try {
          engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
        } catch (const AbortedError&) {
          ++freed;
          throw;
        }
      });
    } catch (const IoError& first) {
      error = first.what();
    }
    EXPECT_EQ(error, "rank 1: the end");
    EXPECT_EQ(freed, 3);
    EXPECT_LT(monotonic_s() - begin_s, 10);
  }
}

/// The allocations of rank 0 in the steps from the third one on; from a graph in those behind the first launches.
long allocations_of(const EchoWay& way, capture::GraphMode mode = capture::GraphMode::none) {
  constexpr Index kCountedSteps = 8;
  config::RunPlan plan = config::resolve(echo_config({2, 1, 1, 2, 1}, kSkewed, way, kCountedSteps, "fp32"));
  plan.graphs.mode = mode;
  plan.graphs.optimizer = mode == capture::GraphMode::iteration;
  plan.graphs.warmup_steps = 1;
  const Index first = mode == capture::GraphMode::none ? 2 : 4;
  long allocations = 0;
  comm::run_ranks(2, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    for (Index step = 0; step < plan.train.steps; ++step) {
      const support::CountAllocations counter;
      engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      if (world.rank() == 0 && step >= first) allocations += counter.count();
    }
    EXPECT_EQ(engine.train_graph().captured(), mode == capture::GraphMode::iteration);
  });
  return allocations;
}

TEST(EchoTraining, StepsWithClonesAllocateNoMoreThanWithout) {
  const long reports = allocations_of(kPlain);
  for (const EchoWay& way :
       {EchoWay{}, {.weights = "redispatch"}, {.backend = "collective"}, {.backend = "host_sized"}})
    EXPECT_EQ(allocations_of(way), reports) << way.name();
  EXPECT_EQ(allocations_of({.dispatcher = "all_to_all"}), allocations_of({.dispatcher = "all_to_all", .slots = 0}));
}

TEST(EchoTraining, LaunchesWithClonesAllocateNoMoreThanWithout) {
  constexpr auto kGraph = capture::GraphMode::iteration;
  const long reports = allocations_of(kPlain, kGraph);
  for (const EchoWay& way : {EchoWay{}, {.weights = "redispatch"}, {.backend = "collective"}})
    EXPECT_EQ(allocations_of(way, kGraph), reports) << way.name();
}

/// The grid promise (docs/numerics.md): clones are no exception.
TEST(EchoTraining, Fp64AgreesWithOneRank) {
  const MoeModel models[] = {kSkewed,
                             {"SharedDense",
                              [](config::RunConfig& c) {
                                c.moe.router_skew = kSkew;
                                c.moe.pattern = "dm";
                                c.moe.shared_ffn_hidden_size = 8;
                              }},
                             {"Bias", [](config::RunConfig& c) {
                                c.moe.score = "sigmoid";
                                c.moe.router_skew = kSkew;
                                c.moe.expert_bias_rate = 0.01;
                                c.moe.aux_loss = 0.05;
                                c.moe.aux_scope = "global";
                              }}};
  for (const MoeModel& model : models) {
    const TrainedRun want = TrainedRun({}, model, kPlain, 8);
    for (MoeGrid grid : echo_grids()) {
      for (const auto sharding : {Sharding::none, Sharding::optimizer}) {
        grid.sharding = sharding;
        SCOPED_TRACE(str(model.name, ' ', grid.name()));
        const TrainedRun got = TrainedRun(grid, model, {}, 8);
        support::expect_fp64_agrees(got, want);
        support::expect_gradients_agree({.sharding = sharding}, got, want, 1e-12);
      }
    }
  }
}

/// Slots are no part of a checkpoint.
TEST(EchoTraining, ResumesOnAnotherEpWithOtherKeysAndWithoutEcho) {
  const Index saved_at = 2, steps = 4;
  const TrainedRun whole({}, kSkewed, kPlain, steps);
  const TempDir dir;
  const auto plan_on = [&](const MoeGrid& grid, const EchoWay& way) {
    return config::resolve(echo_config(grid, kSkewed, way, steps));
  };
  const support::Trained saved = support::train_and_save(plan_on({2, 1, 1, 2, 1}, {}), dir.path(), 0, saved_at);
  for (const auto& [grid, way] : {std::pair{MoeGrid{4, 1, 1, 4, 1}, EchoWay{.balance = "exact", .slots = 2}},
                                  {MoeGrid{4, 2, 1, 2, 2}, EchoWay{.weights = "redispatch"}},
                                  {MoeGrid{2, 1, 1, 2, 1}, kPlain},
                                  {MoeGrid{}, kPlain}}) {
    SCOPED_TRACE(str(grid.name(), ' ', way.name()));
    const support::Trained resumed = support::train_and_save(plan_on(grid, way), dir.path(), saved_at, steps);
    EXPECT_EQ(resumed.digest.hex(), saved.digest.hex());
    EXPECT_LT(relative_error(resumed.losses, {whole.losses.begin() + saved_at, whole.losses.end()}), 1e-12);
  }
}

/// As a transport between processes of several hosts.
class OtherProcessChannel final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  bool reads_rows() const override { return false; }
};

TEST(EchoTraining, ProcessesSendClonesAndRefuseToReadThem) {
  const TrainedRun want({2, 1, 1, 2, 1}, kSkewed, {}, 2);
  const auto run_apart = [](const char* backend, RunRecord& record) {
    const config::RunPlan plan = config::resolve(echo_config({2, 1, 1, 2, 1}, kSkewed, {.backend = backend}, 2));
    comm::run_ranks(2, [&](comm::World& world) {
      comm::WrappedWorld<OtherProcessChannel> apart(world);
      support::train_rank(apart, plan, record);
    });
  };
  for (const char* backend : {"auto", "host_sized", "collective"}) {
    SCOPED_TRACE(backend);
    RunRecord got;
    run_apart(backend, got);
    expect_same_run(got, want);
  }
  RunRecord got;
  try {
    run_apart("peer", got);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("moe.echo.backend = peer: group etp-ep has ranks that share "
                                                   "no memory (on several hosts, or in several containers), which "
                                                   "cannot read each other's weights; use moe.echo.backend = auto, "
                                                   "collective or host_sized"));
  }
}

/// Rank 2 sees other choices than the other ranks, from some plan on.
class MisreadingChannel final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  static constexpr int kPlansOfStep = 4 * 2;  ///< layers, microbatches of a rank
  static inline bool moves_rows = true;       ///< false: no rank may read a row from that plan on
  static inline int right_plans = 0;          ///< those before it

  comm::Ticket all_gather(const comm::Call& call, const void* in, void* out, Stream stream) override {
    const comm::Ticket ticket = inner().all_gather(call, in, out, stream);
    if (name() != "etp-ep" || call.dtype != DType::i32) return ticket;
    if (++gathers_ <= right_plans || world_rank() != 2) return ticket;
    auto* const choices = static_cast<std::int32_t*>(out);
    for (int i = 0; i < 16; ++i) choices[i] = 7;
    return ticket;
  }
  comm::Ticket gather_rows(const comm::Call& call, const comm::GatherRows& args, Stream stream) override {
    if (gathers_ > right_plans && !moves_rows) {
      EXPECT_EQ(args.pulls.counts.data<std::int32_t>()[0], 0) << "rows that move";
    }
    return inner().gather_rows(call, args, stream);
  }

 private:
  int gathers_ = 0;
};

/// Of a second step, or of an evaluation after the first one. "": no rank notices. Otherwise all do at its end, and no
/// parameter has changed.
std::string failure_of_misread_run(Index check_plan, nn::Mode mode = nn::Mode::train, int right_plans_in_step = 0) {
  config::RunConfig recipe = echo_config({4, 1, 1, 4, 1}, kSkewed, {}, 2);
  recipe.moe.echo.check_plan = check_plan;
  const config::RunPlan plan = config::resolve(recipe);
  MisreadingChannel::right_plans = MisreadingChannel::kPlansOfStep + right_plans_in_step;
  // Backward passes read rows of the right plans of their step.
  MisreadingChannel::moves_rows = right_plans_in_step > 0 || (mode == nn::Mode::train && check_plan > 1);
  std::array<std::string, 4> errors;
  comm::run_ranks(4, [&](comm::World& world) {
    comm::WrappedWorld<MisreadingChannel> wrapped(world);
    train::Engine engine(wrapped, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    engine.step(source, {}, train::Stop::no);
    try {
      if (mode == nn::Mode::evaluate)
        engine.evaluate(source, plan.train.global_batch);
      else
        engine.step(source, {1, plan.train.global_batch}, train::Stop::no);
    } catch (const CollectiveError& error) {
      EXPECT_EQ(error.code(), ExitCode::collective);
      EXPECT_EQ(engine.optimizer_state().updates, 1);
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors[0];
}

TEST(EchoTraining, RanksWithAnotherPlanAreNamedBeforeRowsMove) {
  EXPECT_THAT(failure_of_misread_run(1),
              ::testing::ContainsRegex("\\[echo\\] group etp-ep, chunk 0, microbatch 0, layer 0: the plan of clones "
                                       "differs on ranks 2 \\([0-9a-f]+\\); the plan of most ranks is [0-9a-f]+: all .*"
                                       "Parameters stay those of step 1"));
  EXPECT_THAT(failure_of_misread_run(1, nn::Mode::train, 4 + 2),
              ::testing::HasSubstr("chunk 0, microbatch 1, layer 2: the plan of clones differs on ranks 2 ("));
  EXPECT_THAT(failure_of_misread_run(2, nn::Mode::evaluate),
              ::testing::ContainsRegex("group etp-ep, chunk 0, microbatch 0, layer 0: the plan of clones differs on "
                                       "ranks 2 .* It was found in an evaluation"));
  if (build::is_debug) GTEST_SKIP() << "debug builds compare in every step";
  EXPECT_EQ(failure_of_misread_run(2), "") << "steps 1, 3, ... are compared";
}

TEST(EchoTraining, TwoHundredStepsStayWithinAThousandthOfPlainOnes) {
  for (const char* precision : {"fp32", "bf16"}) {
    config::RunConfig plain = echo_config({2, 1, 1, 2, 1}, kSkewed, kPlain, 200, precision);
    plain.model.num_layers = 2;
    config::RunConfig echo = echo_config({2, 1, 1, 2, 1}, kSkewed, {}, 200, precision);
    echo.model.num_layers = 2;
    const TrainedRun want(plain), got(echo);
    EXPECT_LT(want.losses.back(), want.losses.front() * 0.98) << "it learns";
    for (std::size_t step = 0; step < 200; ++step)
      EXPECT_NEAR(got.losses[step], want.losses[step], 1e-3 * want.losses[step]) << precision << ", step " << step;
  }
}

}  // namespace
}  // namespace megalith
