#include "megalith/config/moe_rules.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config/moe_recipe.h"

// What is refused in recipes of models with experts, and what warns.
namespace megalith::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MoeRecipe, EchoOfOneRankIsOneWarning) {
  const auto warnings = [](const std::vector<std::string>& settings) {
    return resolve(read_recipe(kExperts, "r.toml", settings)).warnings();
  };
  EXPECT_EQ(warnings({"moe.echo.slots=3", "moe.echo.min_pairs=0"}),
            std::vector<std::string>{"moe.echo.slots = 3: does nothing with parallel.ep = 1"});
  EXPECT_EQ(warnings({"moe.echo.min_pairs=0"}),
            std::vector<std::string>{"moe.echo.min_pairs = 0: does nothing with moe.echo.slots = 0"});
}

struct BadInput {
  std::vector<std::string> settings;
  std::vector<std::string> texts;
};

TEST(MoeRecipe, BadInputNamesKeyValueRuleAndTheNearestValue) {
  const std::vector<BadInput> all = {
      {{"parallel.ep=3", "parallel.ranks=3"}, {"parallel.ep = 3: must divide moe.num_experts = 8; the nearest is 4"}},
      {{"parallel.etp=3", "parallel.ranks=3", "moe.ffn_hidden_size=64"},
       {"parallel.etp = 3: must divide moe.ffn_hidden_size = 64; the nearest is 4"}},
      {{"model.norm_placement=post"},
       {"model.norm_placement = post: layers with experts have their norms before; use pre, or leave out section "
        "[moe]"}},
      {{"model.activation=gelu_erf"},
       {"model.activation = gelu_erf: experts have gelu or swiglu; use one of them, or leave out section [moe]"}},
      {{"moe.top_k=0"}, {"moe.top_k = 0: must be at least 1"}},
      {{"moe.top_k=9"}, {"moe.top_k = 9: must be in 1 .. moe.num_experts = 8"}},
      {{"moe.num_experts=1", "moe.top_k=1"}, {"moe.num_experts = 1: must be at least 2"}},
      {{"moe.capacity=drop"}, {"moe.capacity_factor = unset: must be given with moe.capacity = drop"}},
      {{"moe.capacity_factor=1.5"}, {"moe.capacity_factor = 1.5: needs moe.capacity = drop or pad"}},
      {{"moe.capacity=pad", "moe.capacity_factor=1", "moe.capacity_run=5"},
       {"moe.capacity_run = 5: must divide model.seq_len = 32; the nearest is 4"}},
      {{"moe.capacity=drop", "moe.capacity_factor=1", "parallel.tp=2", "parallel.sequence_parallel=true"},
       {"moe.capacity_run = 32: a rank routes 16 rows of a microbatch", "the nearest value is 16"}},
      {{"moe.capacity=drop", "moe.capacity_factor=1", "parallel.tp=2", "parallel.etp=1"},
       {"moe.capacity_run = 32: a rank routes 16 rows", "the nearest value is 16"}},
      {{"moe.expert_bias_rate=0.1"}, {"moe.expert_bias_rate = 0.1: needs moe.score = sigmoid"}},
      {{"moe.shared_gate=true"}, {"moe.shared_gate = true: needs shared experts"}},
      {{"moe.pattern=dmx"}, {"moe.pattern = dmx: must consist of d (dense) and m", "the nearest is dm"}},
      {{"moe.pattern=dd"}, {"moe.pattern = dd: has no m: ", "the nearest is dm"}},
      {{"moe.pattern="}, {"moe.pattern = \"\": must consist of d (dense) and m", "the nearest is m"}},
      {{"moe.pattern=xy"}, {"moe.pattern = xy: must consist of d (dense) and m", "the nearest is m"}},
      {{"moe.pattern=ddm", "model.num_layers=2"},
       {"moe.pattern = ddm: has no m within its first model.num_layers = 2 letters", "the nearest is dm"}},
      {{"parallel.tp=2", "moe.shared_ffn_hidden_size=7"},
       {"parallel.tp = 2: must divide moe.shared_ffn_hidden_size = 7", "the nearest is 1"}},
      {{"moe.num_groups=3"}, {"moe.num_groups = 3: must divide moe.num_experts = 8; the nearest is 4"}},
      {{"moe.num_groups=4", "moe.group_top_k=1", "moe.top_k=3"}, {"moe.top_k = 3: must be at most 2"}},
      {{"parallel.ep=2", "parallel.order=ep-pp-tp-dp", "parallel.tp=2", "parallel.pp=2", "parallel.ranks=8",
        "parallel.etp=1"},
       {"parallel.order = ep-pp-tp-dp: pipeline groups of the dense grid",
        "the nearest legal order has pp last: ep-tp-dp-cp-pp"}},
      {{"graphs.mode=iteration", "parallel.ep=2", "parallel.ranks=2", "moe.dispatcher=all_to_all"},
       {"graphs.mode = iteration: the host reads how many rows go between the ranks of parallel.ep = 2",
        "; between ranks of one host moe.dispatcher = peer needs no such numbers; moe.capacity = pad makes the sizes "
        "constants"}},
      {{"graphs.mode=iteration", "parallel.ep=2", "parallel.ranks=2", "device.type=cuda", "train.precision=fp32"},
       {"graphs.mode = iteration: the host reads how many rows each expert has for moe.gemm = loop"}},
      {{"graphs.mode=iteration", "parallel.tp=2", "parallel.sequence_parallel=true", "moe.dispatcher=all_to_all"},
       {"graphs.mode = iteration: the host reads", "parallel.etp = 2"}},
      {{"graphs.mode=iteration", "device.type=cuda", "train.precision=fp32"},
       {"graphs.mode = iteration: the host reads how many rows each expert has for moe.gemm = loop"}},
      {{"graphs.mode=iteration", "device.type=cuda", "train.precision=bf16", "moe.gemm=loop"},
       {"graphs.mode = iteration: the host reads how many rows each expert has for moe.gemm = loop"}},
      {{"graphs.mode=iteration", "moe.replay=FILE"}, {"graphs.mode = iteration: the host reads moe.replay"}},
      {{"graphs.mode=iteration", "moe.replay=FILE", "moe.capacity=pad", "moe.capacity_factor=1"},
       {"graphs.mode = iteration: the host reads moe.replay"}},
      {{"graphs.mode=layers", "parallel.ep=2", "parallel.ranks=2"},
       {"graphs.scopes = []: whole layers hold experts whose sizes follow from data", "(rule V9 of docs/graphs.md)"}},
      {{"graphs.mode=layers", "graphs.scopes=moe", "parallel.ep=2", "parallel.ranks=2"}, {"(rule V7 of "}},
      {{"graphs.mode=layers", "graphs.scopes=[\"moe\", \"moe_router\"]"}, {"(rule V3 of "}},
      {{"graphs.mode=layers", "graphs.scopes=moe_preprocess"}, {"(rule V4 of "}},
      {{"graphs.mode=layers", "graphs.scopes=mlp"}, {"(rule V6 of "}},
      {{"graphs.mode=layers", "graphs.scopes=[\"moe_router\", \"moe_preprocess\"]", "parallel.ep=2", "parallel.ranks=2",
        "moe.capacity=drop", "moe.capacity_factor=1"},
       {"(rule V8 of "}},
      {{"graphs.mode=layers", "graphs.scopes=moe_router", "recompute.mode=full"},
       {"an MoE that is recomputed cannot be cut after its router", "(rule V12 of "}},
      {{"graphs.mode=layers", "graphs.scopes=moe_router", "recompute.mode=selective", "recompute.modules=mlp"},
       {"(rule V12 of "}},
      {{"graphs.mode=layers", "graphs.scopes=mlp", "moe.pattern=md", "recompute.mode=full", "recompute.layers=2",
        "parallel.ep=2", "parallel.ranks=2"},
       {"the graph of an MLP would recompute the experts of the layers before it", "(rule V12 of "}},
      {{"graphs.mode=layers", "graphs.scopes=moe_router", "moe.replay=FILE"},
       {"graphs.scopes = [moe_router]: holds routers, and the host reads moe.replay in every pass"}},
      {{"graphs.mode=layers", "moe.replay=FILE"}, {"graphs.scopes = []: holds routers"}},
      {{"parallel.tp=2", "parallel.tp_overlap=halves", "train.micro_batch=2"},
       {"parallel.tp_overlap = halves: is not built for models with experts"}},
      {{"moe.dispatcher=all_gather"}, {"moe.dispatcher = all_gather", "all_to_all"}},
      {{"moe.dispatcher=peer", "device.type=cuda", "parallel.transfers=kernels"},
       {"moe.dispatcher = peer: on GPUs ranks read each other's rows with parallel.transfers = copy_engines only; use "
        "moe.dispatcher = auto or all_to_all"}},
      {{"moe.dispatcher=peer", "moe.num_experts=16", "parallel.ep=16"},
       {"moe.dispatcher = peer: at most 8 ranks read each other's rows, parallel.ep = 16 and parallel.etp = 1 make it "
        "16"}},
      {{"moe.dispatcher=peer", "parallel.ep=8", "parallel.etp=2"}, {"moe.dispatcher = peer: at most 8", "make it 16"}},
      {{"moe.echo.slots=-1"}, {"moe.echo.slots = -1: must not be negative"}},
      {{"moe.echo.slots=9"}, {"moe.echo.slots = 9: must be at most 8"}},
      {{"moe.echo.slots=8", "moe.num_experts=4", "parallel.ep=2"},
       {"moe.echo.slots = 8: must be at most moe.num_experts = 4"}},
      {{"moe.echo.slots=8", "moe.num_experts=1016", "parallel.ep=2", "model.hidden_size=1024"},
       {"moe.echo.slots = 8: times parallel.ep = 2, plus moe.num_experts = 1016, must be at most 1024; use "
        "moe.echo.slots = 4 or fewer"}},
      {{"moe.echo.slots=1", "moe.num_experts=1024", "parallel.ep=2", "model.hidden_size=1024"},
       {"must be at most 1024; use moe.echo.slots = 0, or fewer experts"}},
      {{"moe.echo=3"}, {"moe.echo = 3: is a table: set its keys, such as moe.echo.slots"}},
      {{"moe.echo.slots=2", "moe.echo.min_pairs=-1"}, {"moe.echo.min_pairs = -1: must not be negative"}},
      {{"moe.echo.slots=2", "moe.echo.min_pairs=8", "moe.echo.balance=exact"},
       {"moe.echo.min_pairs = 8: must be 0 with moe.echo.balance = exact"}},
      {{"moe.echo.slots=2", "moe.capacity=drop", "moe.capacity_factor=1", "parallel.ep=2"},
       {"moe.echo.slots = 2: is for experts that take all rows, and moe.capacity = drop: use moe.capacity = none"}},
      {{"moe.echo.slots=2", "moe.capacity=pad", "moe.capacity_factor=1", "parallel.ep=2"}, {"moe.capacity = pad"}},
      {{"moe.echo.slots=2", "parallel.ep=2", "parallel.etp=2", "parallel.tp=1"},
       {"moe.echo.slots = 2: parallel.etp = 2: slots hold the slices of a rank"}},
      {{"moe.echo.slots=2", "parallel.ep=2", "parallel.etp=2", "parallel.tp=2", "parallel.sequence_parallel=true"},
       {"moe.echo.slots = 2: parallel.etp = 2"}},
      {{"moe.echo.slots=2", "parallel.ep=2", "moe.dispatcher=all_to_all", "moe.echo.backend=peer"},
       {"moe.echo.backend = peer: moe.dispatcher = all_to_all has counts on the host"}},
      {{"moe.echo.slots=2", "parallel.ep=2", "moe.dispatcher=all_to_all", "moe.echo.backend=collective"},
       {"moe.echo.backend = collective: moe.dispatcher = all_to_all"}},
      {{"moe.echo.slots=2", "moe.echo.backend=peer", "moe.num_experts=16", "parallel.ep=16"},
       {"moe.echo.backend = peer: at most 8 ranks read each other's rows, parallel.ep = 16 and parallel.etp = 1 make "
        "it "
        "16; or use moe.echo.backend = auto"}},
      {{"moe.echo.slots=2", "parallel.ep=2", "moe.echo.backend=peer", "device.type=cuda", "parallel.transfers=kernels"},
       {"moe.echo.backend = peer: on GPUs ranks read each other's rows with parallel.transfers = copy_engines only"}},
      {{"moe.echo.backend=pull"}, {"moe.echo.backend = pull", "peer"}},
      {{"moe.echo.weights=kept"}, {"moe.echo.weights = kept", "did you mean keep"}},
      {{"moe.echo.slot=2"}, {"moe.echo.slot = 2: no such key; did you mean moe.echo.slots?"}},
      {{"moe.echo.slots=2", "parallel.ep=2", "graphs.mode=iteration", "moe.dispatcher=all_to_all"},
       {"graphs.mode = iteration: the host reads how many rows go between the ranks of parallel.ep = 2",
        "; between ranks of one host moe.dispatcher = peer needs no such numbers; or use graphs.mode = layers"}},
      {{"moe.echo.slots=2", "parallel.ep=2", "graphs.mode=iteration", "moe.echo.backend=host_sized"},
       {"graphs.mode = iteration: with moe.echo.backend = host_sized the host reads how many clones go between ranks; "
        "use auto, peer or collective; or use graphs.mode = layers"}},
      {{"moe.echo.slots=2", "parallel.ep=2", "graphs.mode=layers", "moe.dispatcher=peer",
        "moe.echo.backend=host_sized"},
       {"(rule V9 of "}},
      {{"moe.gemm=looped"}, {"moe.gemm = looped", "loop"}}};
  for (const BadInput& bad : all) {
    const std::string problem = problem_with(bad.settings);
    for (const std::string& text : bad.texts) EXPECT_THAT(problem, HasSubstr(text)) << bad.settings.front();
  }
}

// With etp = tp an order with ep before tp gives an expert other ranks than the dense layers have: a rank then routes a
// share of the rows, as with another etp.
TEST(MoeRecipe, AnOrderThatMakesSharesNeedsRowsThatDivide) {
  const std::vector<std::string> grid = {"parallel.tp=2", "parallel.ep=2", "parallel.ranks=4"};
  const auto with = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), grid.begin(), grid.end());
    return problem_with(settings);
  };
  const std::string ep_first = "parallel.order=ep-tp-cp-dp-pp";
  EXPECT_EQ(with({"model.seq_len=15"}), "") << "tp first: every rank routes all rows";
  EXPECT_EQ(with({"model.seq_len=15", ep_first}),
            "r.toml: 1 problem\n  train.micro_batch * model.seq_len = 15: must be divisible by parallel.tp = 2 where "
            "parallel.order = ep-tp-cp-dp-pp has ep before tp: each rank routes a share of the rows; with this seq_len "
            "train.micro_batch = 2 would do; with parallel.order = tp-ep-cp-dp-pp ranks share no rows");
  EXPECT_EQ(with({"model.seq_len=15", ep_first, "train.micro_batch=2"}), "");
  EXPECT_EQ(with({"model.seq_len=15", "parallel.order=tp-ep-cp-dp-pp"}), "") << "as the message names it";
  const std::vector<std::string> drop = {"moe.capacity=drop", "moe.capacity_factor=1", "model.seq_len=20",
                                         "train.micro_batch=3", "moe.capacity_run=4"};
  std::vector<std::string> shares = drop;
  shares.push_back(ep_first);
  EXPECT_EQ(with(drop), "");
  EXPECT_EQ(with(shares),
            "r.toml: 1 problem\n  moe.capacity_run = 4: a rank routes 30 rows of a microbatch (parallel.tp = 2 ranks "
            "share them where parallel.order = ep-tp-cp-dp-pp has ep before tp), which must be whole runs; the nearest "
            "value is 5; with parallel.order = tp-ep-cp-dp-pp ranks share no rows");
  shares.back() = "parallel.order=tp-ep-cp-dp-pp";
  EXPECT_EQ(with(shares), "");
  EXPECT_THAT(with({"model.seq_len=15", "parallel.etp=1"}),
              AllOf(HasSubstr("where parallel.etp = 1 is another"), HasSubstr("train.micro_batch = 2 would do"),
                    ::testing::Not(HasSubstr("parallel.order"))));
}

TEST(MoeRecipe, AProblemIsReportedOnce) {
  const std::pair<std::vector<std::string>, const char*> all[] = {
      {{"moe.capacity=drop", "moe.capacity_factor=nan"}, "moe.capacity_factor = nan: must be finite"},
      {{"moe.scale=0"}, "moe.scale = 0: must be positive"},
      {{"moe.pattern=xy"}, "moe.pattern = xy: must consist of"},
      {{"moe.num_groups=0"}, "moe.num_groups = 0: must be at least 1"},
      {{"moe.num_groups=99999999999"}, "moe.num_groups = 99999999999: must be at most 64"},
      {{"graphs.mode=layers", "graphs.scopes=[\"moe\"]", "parallel.ep=2", "parallel.ranks=2"},
       "graphs.scopes = [moe]: the sizes inside an MoE follow from data"},
      {{"graphs.mode=layers", "parallel.ep=2", "parallel.ranks=2", "moe.capacity=pad", "moe.capacity_factor=-1"},
       "moe.capacity_factor = -1: "},
      {{"parallel.order=tp-pp-dp-dp"}, "parallel.order = tp-pp-dp-dp: order 'tp-pp-dp-dp': axis 'dp' appears twice"}};
  for (const auto& [settings, text] : all)
    EXPECT_THAT(problem_with(settings), AllOf(HasSubstr("r.toml: 1 problem\n"), HasSubstr(text)));
}

TEST(MoeRecipe, AValueOfTheWrongTypeHidesNoOtherProblem) {
  EXPECT_THAT(problem_with({"moe.top_k=two", "parallel.ep=3", "moe.pattern=x"}),
              AllOf(HasSubstr("r.toml: 3 problems"), HasSubstr("moe.top_k = 'two': must be an integer"),
                    HasSubstr("parallel.ep = 3: must divide"), HasSubstr("moe.pattern = x: must consist")));
  // What follows from a key that could not be read is no problem of its own.
  for (const char* one : {"moe.num_experts=many", "train.steps=ten", "model.num_layers=x", "parallel.tp=two",
                          "moe.capacity_factor=big", "train.micro_batch=1.5"})
    EXPECT_THAT(problem_with({one, "parallel.ep=2"}), HasSubstr("r.toml: 1 problem\n")) << one;
  for (const Key& key : keys())
    EXPECT_THAT(problem_with({str(key.name, "=[[1]]")}), HasSubstr("r.toml: 1 problem\n")) << key.name;
  EXPECT_THROW(parse_recipe(kExperts, "r.toml", std::vector<std::string>{"moe.top_k=two"}), ConfigError);
}

TEST(MoeRecipe, SlicesOfDenseMlpsAreForModelsThatHaveThem) {
  const std::vector<std::string> settings = {"parallel.tp=3", "model.num_heads=6", "model.hidden_size=24",
                                             "model.ffn_hidden_size=256", "moe.ffn_hidden_size=12"};
  EXPECT_EQ(problem_with(settings), "");
  std::vector<std::string> with_dense = settings;
  with_dense.emplace_back("moe.pattern=dm");
  EXPECT_THAT(problem_with(with_dense), HasSubstr("parallel.tp = 3: must divide model.ffn_hidden_size = 256"));
}

TEST(MoeRecipe, AHugeCapacityIsTheWholeRun) {
  const RunPlan plan = plan_with_experts({"moe.capacity=drop", "moe.capacity_factor=1e300"});
  EXPECT_EQ(plan.model.moe.capacity_of(32), 32);
}

TEST(MoeRecipe, WarnsOfKeysWithoutEffect) {
  const auto warnings = [](std::vector<std::string> settings) {
    return plan_with_experts(std::move(settings)).warnings();
  };
  EXPECT_EQ(warnings({}), std::vector<std::string>{});
  EXPECT_EQ(warnings({"moe.capacity=drop", "moe.capacity_factor=1", "moe.capacity_run=16", "moe.drop_by=position"}),
            std::vector<std::string>{});
  EXPECT_EQ(warnings({"moe.capacity_run=5", "moe.drop_by=position"}),
            (std::vector<std::string>{"moe.capacity_run = 5: does nothing with moe.capacity = none",
                                      "moe.drop_by = position: does nothing with moe.capacity = none"}));
  EXPECT_EQ(warnings({"model.rope_theta=500"}),
            std::vector<std::string>{"model.rope_theta = 500: does nothing with model.position = learned"});
  EXPECT_EQ(warnings({"model.position=rope", "model.rope_factor=8"}),
            std::vector<std::string>{"model.rope_factor = 8: does nothing with model.rope_scaling = none"});
  EXPECT_EQ(warnings({"model.position=rope", "model.rope_scaling=linear", "model.rope_factor=8",
                      "model.rope_low_freq_factor=2"}),
            std::vector<std::string>{
                "model.rope_low_freq_factor = 2: does nothing with a model.rope_scaling other than llama3"});
  EXPECT_EQ(warnings({"train.skip_limit=5", "train.on_spike=skip"}),
            (std::vector<std::string>{
                "train.skip_limit = 5: does nothing with settings that skip no step",
                "train.on_spike = skip: does nothing with train.spike_loss = 0 and train.spike_norm = 0"}));
  EXPECT_EQ(warnings({"train.skip_limit=5", "train.on_spike=skip", "train.spike_norm=4"}), std::vector<std::string>{});
  // Recipes of checkpoints give every key.
  for (const std::string position : {"learned", "rope"}) {
    const RunPlan plan = plan_with_experts({"model.position=" + position});
    EXPECT_EQ(resolve(plan.as_config()).warnings(), std::vector<std::string>{});
  }
}

TEST(MoeRecipe, WarnsOnceWhereGroupedGemmsRunAsALoop) {
  const auto warnings = [](std::vector<std::string> settings) {
    return plan_with_experts(std::move(settings)).warnings();
  };
  constexpr const char* kGrouped = "moe.gemm=grouped";
  const auto expect_reason = [&](std::vector<std::string> settings, const std::string& reason) {
    settings.emplace_back(kGrouped);
    EXPECT_EQ(warnings(settings),
              std::vector<std::string>{"moe.gemm = grouped: runs as loop, a GEMM for each expert: " + reason});
    for (const char* other : {"moe.gemm=auto", "moe.gemm=loop"}) {
      settings.back() = other;
      EXPECT_EQ(warnings(settings), std::vector<std::string>{}) << other;
    }
    settings.back() = kGrouped;
    // Then the host reads the sizes of groups, which a GPU's graph cannot wait for.
    settings.emplace_back("graphs.mode=iteration");
    const bool is_refused = std::ranges::find(settings, "device.type=cuda") != settings.end();
    EXPECT_EQ(problem_with(settings).empty(), !is_refused) << problem_with(settings);
    if (is_refused) {
      EXPECT_THAT(problem_with(settings), HasSubstr("graphs.mode = iteration: the host reads how many rows"));
    }
  };
  expect_reason({}, "one kernel for all experts is built for GPUs only");
  constexpr const char *kGpu = "device.type=cuda", *kBf16 = "train.precision=bf16";
  expect_reason({kGpu, "train.precision=fp32"}, "its kernel computes in 16 bits, and train.precision = fp32");
  expect_reason({kGpu, kBf16, "model.hidden_size=36"}, "its kernel takes multiples of 8, and model.hidden_size = 36");
  expect_reason({kGpu, kBf16, "moe.ffn_hidden_size=20"},
                "its kernel takes multiples of 8, and moe.ffn_hidden_size / parallel.etp = 20");
  expect_reason({kGpu, kBf16, "moe.ffn_hidden_size=24", "parallel.etp=2"},
                "its kernel takes multiples of 8, and moe.ffn_hidden_size / parallel.etp = 12");
  // Without a GPU, as of a plan for another machine, Hopper is assumed.
  const std::vector<std::string> fits = warnings({kGpu, kBf16, "moe.ffn_hidden_size=24", kGrouped});
  if (device::num_gpus() == 0) {
    EXPECT_EQ(fits, std::vector<std::string>{});
  }
}

TEST(MoeRecipe, ASkewedRouterMustChooseByItsLogits) {
  EXPECT_EQ(plan_with_experts({"moe.router_skew=0.5"}).model.moe.router_skew, 0.5);
  EXPECT_EQ(plan_with_experts().model.moe.router_skew, 0);
  EXPECT_THAT(problem_with({"moe.router_skew=-0.5"}),
              HasSubstr("moe.router_skew = -0.5: must not be negative (0: off)"));
  EXPECT_THAT(problem_with({"moe.router_skew=nan"}), HasSubstr("moe.router_skew"));
  EXPECT_THAT(problem_with({"moe.router_skew=0.5", "moe.force_balance=true"}),
              HasSubstr("moe.router_skew = 0.5: cannot change the load, as moe.force_balance gives every token its "
                        "experts: remove one of the two"));
  EXPECT_THAT(problem_with({"moe.router_skew=0.5", "moe.replay=r.bin"}),
              HasSubstr("moe.router_skew = 0.5: cannot change the load, as moe.replay gives every token its experts: "
                        "remove one of the two"));
  const ResumeChanges changes =
      resume_changes(plan_with_experts().as_config(), plan_with_experts({"moe.router_skew=0.5"}));
  EXPECT_THAT(changes.refused, ::testing::IsEmpty());
  EXPECT_THAT(changes.warned, ::testing::Contains(HasSubstr("moe.router_skew = 0.5")));
}

TEST(MoeRecipe, AnEmptySectionIsRefused) {
  constexpr std::string_view kEmpty = "[model]\nnum_layers = 1\n[moe]\n";
  try {
    parse_recipe(kEmpty, "r.toml");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[moe] is empty: give moe.num_experts, or remove the section"));
  }
  EXPECT_NO_THROW(parse_recipe(kEmpty, "r.toml", std::vector<std::string>{"moe.num_experts=4"}));
}

TEST(MoeRecipe, AllProblemsAreReportedAtOnce) {
  EXPECT_THAT(
      problem_with({"moe.top_k=9", "moe.pattern=x", "parallel.ep=3", "parallel.ranks=3", "moe.shared_gate=true"}),
      AllOf(HasSubstr("moe.top_k"), HasSubstr("moe.pattern"), HasSubstr("parallel.ep"), HasSubstr("moe.shared_gate")));
}

TEST(MoeRecipe, KeysOfExpertsNeedExperts) {
  std::string dense(kExperts);
  dense.replace(dense.find("num_experts = 8"), 15, "top_k = 2\naux_scope = \"global\"");
  try {
    resolve(parse_recipe(dense, "r.toml", std::vector<std::string>{"parallel.ep=2", "parallel.etp=2"}));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("moe.top_k = 2: is for models with experts"), HasSubstr("moe.aux_scope"),
                                    HasSubstr("parallel.ep = 2"), HasSubstr("parallel.etp = 2")));
  }
}

TEST(MoeRecipe, ResumingWithAnotherModelIsRefusedAndAnotherGridIsNot) {
  const RunConfig saved = plan_with_experts().as_config();
  const auto refused = [&](std::vector<std::string> settings) {
    return resume_changes(saved, plan_with_experts(std::move(settings))).refused;
  };
  EXPECT_THAT(refused({"moe.num_experts=4"}), ::testing::Contains(HasSubstr("moe.num_experts = 4")));
  EXPECT_THAT(refused({"moe.top_k=1"}), ::testing::Contains(HasSubstr("moe.top_k = 1")));
  EXPECT_THAT(refused({"moe.pattern=dm"}), ::testing::Contains(HasSubstr("moe.pattern")));
  EXPECT_THAT(refused({"parallel.ep=2", "parallel.etp=1", "train.global_batch=2"}), ::testing::IsEmpty());
  EXPECT_THAT(refused({"moe.normalize_top_k=true"}),
              ::testing::ElementsAre("moe.normalize_top_k = true: the checkpoint was trained with false"));
  // Checkpoints hold a hash of the identity: its texts stay as they were.
  EXPECT_THAT(identity_of(plan_with_experts({"moe.normalize_top_k=true"})),
              ::testing::Contains(std::pair<std::string_view, std::string>("moe.normalize_top_k", "1")));
  const ResumeChanges changes = resume_changes(saved, plan_with_experts({"moe.aux_loss=0.1"}));
  EXPECT_THAT(changes.refused, ::testing::IsEmpty());
  EXPECT_THAT(changes.warned, ::testing::Contains(HasSubstr("moe.aux_loss = 0.1")));
}

}  // namespace
}  // namespace megalith::config
