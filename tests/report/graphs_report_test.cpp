#include "megalith/report/graphs_report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/train/engine.h"

namespace megalith::apps {
namespace {

using nlohmann::json;

// 64 tokens of 64 elements of 4 bytes: an activation is 16 KiB.
constexpr const char* kRecipe = R"(
[model]
num_layers = 8
hidden_size = 64
num_heads = 4
seq_len = 32
dropout = 0.0
[train]
steps = 1
global_batch = 16
micro_batch = 2
[data]
tokenizer = "byte"
train = "text.txt"
)";
constexpr Index kActivation = 64 * 64 * 4;
constexpr Index kStepInputs = 8 * (kAlignment + 2 * 64 * 4);  // step state, tokens and targets of 8 microbatches

config::RunPlan plan_with(const std::vector<std::string>& settings) {
  return config::resolve(config::parse_recipe(kRecipe, "r.toml", settings));
}

json report_with(const std::vector<std::string>& settings) {
  return json::parse(graphs_report(plan_with(settings), GraphsFormat::json));
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(GraphsReport, FiguresOfAPipeline) {
  const json report = report_with({"parallel.pp=2"});
  EXPECT_EQ(report.at("microbatches"), 8);
  EXPECT_EQ(report.at("captured_microbatches"), 8);
  EXPECT_EQ(report.at("layer_input_bytes"), kActivation);
  EXPECT_EQ(report.at("layer_boundary_bytes"), kActivation);
  ASSERT_EQ(report.at("ranks").size(), 2U);
  const json first = report.at("ranks").at(0), last = report.at("ranks").at(1);
  EXPECT_EQ(first.at("captured_layers_per_chunk"), json({4}));
  EXPECT_EQ(first.at("in_flight"), 2);
  EXPECT_EQ(first.at("layers_per_microbatch"),
            json({{"training_graphs", 64}, {"evaluation_graphs", 0}, {"launches_per_step", 64}, {"added_bytes", 0}}));
  // It embeds: one place for what it sends, one for the gradients that it receives, where scratch has room for both.
  EXPECT_EQ(first.at("layers_per_slot"),
            json({{"training_graphs", 16}, {"evaluation_graphs", 0}, {"launches_per_step", 64}, {"added_bytes", 0}}));
  EXPECT_EQ(last.at("layers_per_slot").at("training_graphs"), 8);
  EXPECT_EQ(last.at("layers_per_slot").at("added_bytes"), kActivation);  // one slot's input
  EXPECT_EQ(
      last.at("iteration"),
      json({{"training_graphs", 1}, {"evaluation_graphs", 0}, {"launches_per_step", 1}, {"added_bytes", kStepInputs}}));
  EXPECT_EQ(first.at("lazy_warmup_passes"), 1);
  const auto of_evaluation = [](const char* setting) {
    return report_with({setting}).at("ranks").at(0).at("iteration").at("evaluation_graphs");
  };
  EXPECT_EQ(of_evaluation("data.valid=[\"held-out.txt\"]"), 1);
  EXPECT_EQ(of_evaluation("data.split=0.9"), 1);
  EXPECT_EQ(of_evaluation("data.split=90,0,10"), 0);
  EXPECT_EQ(first.at("owned_buffers"), json({{"static_inputs", 8},
                                             {"static_input_bytes", 8 * kActivation},
                                             {"unshared_input_bytes", 32 * kActivation},
                                             {"second_input_bytes", kActivation},
                                             {"output_grad_bytes", kActivation},
                                             {"boundary_bytes", 8 * kActivation}}));
}

/// What `graphs` of `way` add on every rank of a grid, by the report and as their run plans more; `at_least` on the
/// first and the last, which have token ids.
void expect_planned_more(const std::vector<std::string>& grid, const std::vector<std::string>& graphs,
                         const std::string& way, Index at_least) {
  std::vector<std::string> from_graphs = grid;
  from_graphs.insert(from_graphs.end(), graphs.begin(), graphs.end());
  const config::RunPlan eager = plan_with(grid), graph = plan_with(from_graphs);
  for (const config::RunPlan* plan : {&eager, &graph}) {  // whatever the recipe runs
    const json ranks = json::parse(graphs_report(*plan, GraphsFormat::json)).at("ranks");
    const int size = eager.grid.world_size;
    for (int rank = 0; rank < size; ++rank) {
      SCOPED_TRACE(::testing::Message() << way << ", rank " << rank << " of " << size);
      const auto world = comm::dry_world(rank, size);
      const Index more =
          total(train::Engine(*world, graph).planned_bytes()) - total(train::Engine(*world, eager).planned_bytes());
      const bool has_ids = rank == 0 || rank == size - 1;
      EXPECT_GE(more, has_ids ? at_least : 0);
      EXPECT_TRUE(has_ids || at_least == 0 || more < at_least) << more;
      EXPECT_EQ(ranks.at(static_cast<std::size_t>(rank)).at(way).at("added_bytes"), more);
    }
  }
}

TEST(GraphsReport, GraphsAddWhatTheirRunsPlanMore) {
  const std::vector<std::string> on_gpus = {"parallel.pp=4", "device.type=cuda", "train.precision=bf16"};
  expect_planned_more(on_gpus, {"graphs.mode=iteration"}, "iteration", kStepInputs + 1);  // two sets on a GPU
  const std::vector<std::string> per_slot = {"graphs.mode=layers", "graphs.per=slot"};
  for (const std::vector<std::string>& grid :
       {std::vector<std::string>{"parallel.pp=2"},
        {"parallel.pp=2", "parallel.chunks=2"},
        {"parallel.pp=2", "parallel.tp=2", "parallel.ranks=4", "parallel.sequence_parallel=true"}})
    expect_planned_more(grid, per_slot, "layers_per_slot", 0);
}

TEST(GraphsReport, SequenceParallelismMakesALayersInputSmaller) {
  const std::vector<std::string> grid = {"parallel.pp=2", "parallel.tp=2", "parallel.ranks=4"};
  std::vector<std::string> shared = grid;
  shared.emplace_back("parallel.sequence_parallel=true");
  EXPECT_EQ(report_with(grid).at("layer_input_bytes"), kActivation);
  const json report = report_with(shared);
  EXPECT_EQ(report.at("layer_input_bytes"), kActivation / 2);
  EXPECT_EQ(report.at("ranks").at(0).at("owned_buffers").at("static_input_bytes"), 8 * kActivation / 2);
}

TEST(GraphsReport, WithoutAPipelineOneMicrobatchIsCaptured) {
  for (const char* batch : {"train.global_batch=16", "train.global_batch=64"}) {
    const json report = report_with({batch});
    const json rank = report.at("ranks").at(0);
    EXPECT_EQ(report.at("captured_microbatches"), 1);
    EXPECT_EQ(rank.at("layers_per_microbatch").at("training_graphs"), 16);
    EXPECT_EQ(rank.at("layers_per_slot"), rank.at("layers_per_microbatch"));
    EXPECT_EQ(rank.at("layers_per_slot").at("launches_per_step"), 16 * report.at("microbatches").get<int>());
    EXPECT_EQ(rank.at("owned_buffers").at("static_input_bytes"), 8 * kActivation);
  }
}

TEST(GraphsReport, BytesDoNotGrowWithTheMicrobatches) {
  for (const std::vector<std::string>& grid :
       {std::vector<std::string>{"parallel.pp=4"}, {"parallel.pp=2", "parallel.chunks=2"}}) {
    json first;
    for (const int batch : {32, 128, 512}) {
      std::vector<std::string> settings = grid;
      settings.push_back(str("train.global_batch=", batch));
      json ranks = report_with(settings).at("ranks");
      for (json& rank : ranks) {
        EXPECT_EQ(rank.at("layers_per_microbatch").at("training_graphs"),
                  rank.at("layers_per_microbatch").at("launches_per_step"));
        rank.erase("layers_per_microbatch");
        rank.erase("iteration");
        rank.at("layers_per_slot").erase("launches_per_step");
        rank.at("owned_buffers").erase("unshared_input_bytes");
      }
      if (first.is_null()) first = ranks;
      EXPECT_EQ(ranks, first) << batch;
    }
  }
}

TEST(GraphsReport, PlannedBytesAreThoseOfARun) {
  const config::RunPlan plan = plan_with({"parallel.pp=2", "parallel.chunks=2", "parallel.tp=2"});
  const json ranks = json::parse(graphs_report(plan, GraphsFormat::json)).at("ranks");
  ASSERT_EQ(ranks.size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    const auto world = comm::dry_world(rank, 4);
    const BytesByOwner bytes = train::Engine(*world, plan).planned_bytes();
    const json planned = ranks.at(static_cast<std::size_t>(rank)).at("planned_bytes");
    EXPECT_EQ(planned.size(), 4U);
    for (const auto& [owner, value] : planned.items()) EXPECT_EQ(value, bytes.at(owner)) << owner;
  }
}

TEST(GraphsReport, ScopesAreTheRecipes) {
  const json report = report_with({"graphs.mode=layers", "graphs.per=slot", "graphs.scopes=attn"});
  EXPECT_EQ(report.at("mode"), "layers");
  EXPECT_EQ(report.at("per"), "slot");
  EXPECT_EQ(report.at("scopes"), json({"attn"}));
  EXPECT_EQ(report.at("ranks").at(0).at("layers_per_slot").at("training_graphs"), 16);
  try {
    report_with({"graphs.scopes=moe"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "graphs.scopes = [moe]: the model has no experts; use attn, mlp, or [] for whole layers (rule V5 of "
                 "docs/graphs.md)");
  }
}

TEST(GraphsReport, AliasesNameOwnersOfThePlan) {
  for (const bool has_copies : {false, true}) {
    const std::vector<std::string> settings = {has_copies ? "train.precision=bf16" : "train.precision=fp32"};
    const json report = report_with(settings);
    const auto world = comm::dry_world(0, 1);
    const config::RunPlan plan = plan_with(settings);
    const BytesByOwner bytes = train::Engine(*world, plan).planned_bytes();
    bool names_copies = false;
    EXPECT_FALSE(report.at("aliases").empty());
    for (const json& alias : report.at("aliases")) {
      for (const json& owner : alias.at("owners")) {
        EXPECT_TRUE(bytes.contains(owner)) << alias;
        names_copies = names_copies || owner == "parameter copies";
      }
    }
    EXPECT_EQ(names_copies, has_copies);
  }
}

TEST(GraphsReport, AliasesAndInputsAreThoseOfTheScopes) {
  using Owners = std::vector<std::string>;
  const auto owners_of = [](const json& report, const std::string& tensor) {
    for (const json& alias : report.at("aliases")) {
      if (alias.at("tensor") == tensor) return alias.at("owners").get<Owners>();
    }
    return Owners{};
  };
  const std::string mode = "graphs.mode=layers", pipeline = "parallel.pp=2";
  const json whole = report_with({mode, pipeline}), attention = report_with({mode, pipeline, "graphs.scopes=attn"}),
             mlp = report_with({mode, pipeline, "graphs.scopes=mlp"}),
             both = report_with({mode, pipeline, "graphs.scopes=[\"attn\", \"mlp\"]"});
  EXPECT_EQ(both.at("aliases"), whole.at("aliases"));
  EXPECT_EQ(both.at("ranks"), whole.at("ranks"));
  for (const json& report : {whole, attention, mlp}) {
    const json& owned = report.at("ranks").at(0).at("owned_buffers");
    EXPECT_EQ(owned.at("static_inputs"), 8);
    EXPECT_EQ(owned.at("second_input_bytes"), kActivation) << "what an MLP or attention gives, one for all";
    EXPECT_EQ(owners_of(report, "input of a layer"), (Owners{"activations", "scratch"}));
  }
  EXPECT_EQ(owners_of(attention, "output of a layer"), Owners{"scratch"});
  EXPECT_EQ(owners_of(mlp, "output of a layer"), owners_of(whole, "output of a layer"));
  EXPECT_EQ(owners_of(attention, "output gradient"), Owners{"scratch"});
  EXPECT_EQ(owners_of(mlp, "input gradient"), Owners{"scratch"});
}

TEST(GraphsReport, Text) {
  const std::string text = graphs_report(plan_with({"parallel.pp=2", "data.split=0.9"}), GraphsFormat::text);
  const std::size_t plan = text.find("\nThe plan, with and without graphs\nrank  activations"),
                    aliases = text.find("\nof a layer's graph ");
  ASSERT_NE(plan, std::string::npos) << text;
  ASSERT_NE(aliases, std::string::npos) << text;
  EXPECT_EQ(text.substr(0, plan),
            R"(grid tp 1 pp 2 dp 1, 2 ranks, 8 microbatches a step, whole layers; the recipe runs graphs.mode = none

Graphs of a rank and launches a step
rank  stage  layers  slots  in flight  per microbatch  per slot  launches  iteration  launches
   0      0       4      2          2              64        16        64        1+1         1
   1      1       4      1          1              64         8        64        1+1         1
Iteration: training + evaluation. With graphs of layers, evaluation runs eagerly.

Memory that graphs add to the plan (per slot: copies of messages; iteration: all inputs of a step)
rank  per microbatch   per slot  iteration
   0             0 B        0 B   6.00 KiB
   1             0 B  16.00 KiB   6.00 KiB

What graphs per microbatch would take with buffers of their own; here they lie in the plan
rank  static inputs       bytes  second input  output gradients    boundary
   0              8  128.00 KiB     16.00 KiB         16.00 KiB  128.00 KiB
   1              4   64.00 KiB     16.00 KiB         16.00 KiB   64.00 KiB
)");
  EXPECT_NE(text.find("\noutput gradient           scratch that all layers, chunks and microbatches share; ", aliases),
            std::string::npos);
}

config::RunPlan plan_with_experts(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"moe.num_experts=4", "moe.ffn_hidden_size=32"});
  return plan_with(settings);
}

TEST(GraphsReport, OfExpertsPrintsWhatCanBeCapturedAndWhyTheRestIsEager) {
  const std::string text = graphs_report(
      plan_with_experts({"moe.pattern=ddm", "parallel.pp=2", "parallel.ep=2", "parallel.ranks=4"}), GraphsFormat::text);
  EXPECT_EQ(
      text.substr(0, text.find("\nMemory that graphs add")),
      R"(grid tp 1 pp 2 dp 2 ep 2 etp 1, 4 ranks, 4 microbatches a step, scopes [attn, mlp, moe_router, moe_preprocess]; the recipe runs graphs.mode = none

Graphs of a rank and launches a step
rank  stage  layers  slots  in flight  per microbatch  per slot  launches  iteration  launches
   0      0       4      2          2              32        16        32        1+0         1
   1      0       4      2          2              32        16        32        1+0         1
   2      1       4      1          1              32         8        32        1+0         1
   3      1       4      1          1              32         8        32        1+0         1
Iteration: training + evaluation. With graphs of layers, evaluation runs eagerly.

layers  stays eager                 why
2, 5    experts after sorting rows  the host reads how many rows go between the ranks of parallel.ep = 2, parallel.etp = 1; between ranks of one host moe.dispatcher = peer needs no such numbers; moe.capacity = pad makes the sizes constants
)") << text;
  EXPECT_EQ(count(text, "\nof a layer's graph (layers 0-1, 3-4, 6-7)"), 1) << text;
  EXPECT_EQ(count(text, "\nof a layer's graph (layers 2, 5)"), 1) << text;
}

TEST(GraphsReport, OfExpertsHasTheFiguresOfItsRun) {
  const auto eager_of = [](const json& report) {
    std::vector<std::pair<std::string, std::vector<int>>> parts;
    for (const json& part : report.at("eager")) parts.emplace_back(part.at("part"), part.at("layers"));
    return parts;
  };
  using Parts = std::vector<std::pair<std::string, std::vector<int>>>;
  const std::vector<int> odd = {1, 3, 5, 7}, even = {0, 2, 4, 6}, all = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto report_of = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"parallel.ep=2", "parallel.ranks=2"});
    return json::parse(graphs_report(plan_with_experts(std::move(settings)), GraphsFormat::json));
  };
  const json mixed = report_of({"moe.pattern=dm"}), experts = report_of({}),
             mlp = report_of({"moe.pattern=dm", "graphs.scopes=mlp"}),
             attention = report_of({"moe.pattern=dm", "graphs.scopes=attn"}),
             dropping = report_of({"moe.capacity=drop", "moe.capacity_factor=1"}),
             padded = report_of({"moe.capacity=pad", "moe.capacity_factor=1"}),
             recomputed = report_of({"recompute.mode=full"}), replayed = report_of({"moe.replay=FILE"});
  EXPECT_EQ(mixed.at("scopes"), json({"attn", "mlp", "moe_router", "moe_preprocess"}));
  EXPECT_EQ(eager_of(mixed), (Parts{{"experts after sorting rows", odd}}));
  EXPECT_EQ(experts.at("scopes"), json({"attn", "moe_router", "moe_preprocess"}));
  EXPECT_EQ(eager_of(experts), (Parts{{"experts after sorting rows", all}}));
  EXPECT_EQ(eager_of(mlp), (Parts{{"attention", all}, {"experts", odd}}));
  EXPECT_EQ(eager_of(attention), (Parts{{"MLP", even}, {"experts", odd}}));
  EXPECT_EQ(eager_of(dropping), (Parts{{"experts after routing", all}}));
  EXPECT_EQ(eager_of(padded), Parts{});
  EXPECT_EQ(padded.at("scopes"), json::array());
  EXPECT_EQ(eager_of(recomputed), (Parts{{"experts", all}}));
  EXPECT_EQ(
      recomputed.at("eager").at(0).at("why"),
      "an MoE that is recomputed cannot be cut after its router; remove moe_router, or recompute less (rule V12 of "
      "docs/graphs.md)");
  EXPECT_EQ(eager_of(replayed), (Parts{{"experts", all}}));
  EXPECT_EQ(replayed.at("eager").at(0).at("why"), "the host reads moe.replay in every pass");
  EXPECT_EQ(attention.at("eager").at(0).at("why"), "graphs.scopes = [attn] leaves it out");
  for (const json* report : {&mixed, &experts, &mlp, &attention, &dropping, &padded}) {
    EXPECT_EQ(report->at("ranks").at(0).at("layers_per_slot").at("training_graphs"), report == &mlp ? 8 : 16);
    EXPECT_EQ(report->at("ranks").at(0).at("captured_layers_per_chunk"), json({report == &mlp ? 4 : 8}));
  }
  const json alone = json::parse(graphs_report(plan_with_experts({}), GraphsFormat::json));
  EXPECT_EQ(alone.at("scopes"), json::array()) << "no host reads sizes";
  EXPECT_EQ(alone.at("eager"), json::array());
  EXPECT_EQ(alone.at("no_iteration"), "");
  EXPECT_EQ(alone.at("ranks").at(0).at("iteration").at("training_graphs"), 1);
  EXPECT_EQ(report_with({}).at("eager"), json::array());
  EXPECT_EQ(report_with({}).at("no_iteration"), "");
}

TEST(GraphsReport, EvaluationsOfPaddedExpertsAreEagerWhereRowsCross) {
  std::vector<std::string> settings = {"moe.capacity=pad", "moe.capacity_factor=1", "data.valid=[\"held-out.txt\"]"};
  const auto evaluation = [&] { return json::parse(graphs_report(plan_with_experts(settings), GraphsFormat::json)); };
  EXPECT_EQ(evaluation().at("ranks").at(0).at("iteration").at("evaluation_graphs"), 1);
  EXPECT_EQ(evaluation().at("no_evaluation_graph"), "");
  settings.insert(settings.end(), {"parallel.ep=2", "parallel.ranks=2"});
  const std::string why = "the host reads how many rows go between the ranks of parallel.ep = 2, parallel.etp = 1";
  EXPECT_EQ(evaluation().at("ranks").at(0).at("iteration").at("training_graphs"), 1);
  EXPECT_EQ(evaluation().at("ranks").at(0).at("iteration").at("evaluation_graphs"), 0);
  EXPECT_EQ(evaluation().at("no_iteration"), "");
  EXPECT_EQ(evaluation().at("no_evaluation_graph"), why);
  EXPECT_EQ(count(graphs_report(plan_with_experts(settings), GraphsFormat::text),
                  "Iteration: training; evaluation, which drops and pads nothing, is eager: " + why),
            1);
}

TEST(GraphsReport, IterationIsThatOfTheModeWhateverTheModeOfTheRecipe) {
  const auto report = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"parallel.ep=2", "parallel.ranks=2"});
    return json::parse(graphs_report(plan_with_experts(std::move(settings)), GraphsFormat::json));
  };
  const json wanted = report({"graphs.mode=iteration"});
  EXPECT_EQ(wanted.at("no_iteration"), "");
  for (const std::vector<std::string>& mode :
       std::vector<std::vector<std::string>>{{"graphs.mode=none"}, {"graphs.mode=layers", "graphs.scopes=attn"}}) {
    const json got = report(mode);
    EXPECT_EQ(got.at("no_iteration"), "");
    EXPECT_EQ(got.at("ranks").at(0).at("iteration"), wanted.at("ranks").at(0).at("iteration")) << mode.front();
  }
  const json sent = report({"moe.dispatcher=all_to_all"});
  EXPECT_EQ(sent.at("ranks").at(0).at("iteration"), json());
  EXPECT_NE(sent.at("no_iteration").get<std::string>().find("moe.dispatcher = peer needs no such numbers"),
            std::string::npos);
}

TEST(GraphsReport, ScopesOfExpertsThatBreakARuleAreRefusedInEveryMode) {
  const auto refusal = [](std::vector<std::string> settings) -> std::string {
    settings.insert(settings.end(), {"parallel.ep=2", "parallel.ranks=2"});
    try {
      graphs_report(plan_with_experts(settings), GraphsFormat::text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(refusal({"graphs.scopes=moe"}).starts_with("graphs.scopes = [moe]: the sizes inside an MoE follow from"));
  EXPECT_EQ(refusal({"graphs.scopes=moe", "moe.capacity=pad", "moe.capacity_factor=1"}), "");
  EXPECT_EQ(refusal({"graphs.scopes=moe_router"}), "");
  EXPECT_TRUE(refusal({"graphs.scopes=moe_router", "moe.replay=FILE"})
                  .starts_with("graphs.scopes = [moe_router]: holds routers, and the host reads moe.replay"));
}

TEST(GraphsPicture, DrawsEveryPassAndEverySlot) {
  const std::string picture = graphs_picture(plan_with({"parallel.pp=2", "parallel.chunks=2"}), 0);
  EXPECT_TRUE(picture.starts_with("<svg ")) << picture.substr(0, 40);
  EXPECT_TRUE(picture.ends_with("</svg>\n"));
  EXPECT_EQ(count(picture, "<text"), count(picture, "</text>"));
  EXPECT_EQ(count(picture, "class=\"forward\""), 16);
  EXPECT_EQ(count(picture, "class=\"backward\""), 16);
  EXPECT_EQ(count(picture, ">F7.1<"), 1);
  const json rank = report_with({"parallel.pp=2", "parallel.chunks=2"}).at("ranks").at(0);
  int slots = 0;
  for (const json& number : rank.at("slots")) slots += number.get<int>();
  EXPECT_GT(slots, 1);
  EXPECT_EQ(count(picture, "class=\"row\""), slots + 1);  // and the legend
}

TEST(GraphsPicture, PassesStandInTheRowOfTheirSlot) {
  const std::string picture = graphs_picture(plan_with({"parallel.pp=2", "train.global_batch=8"}), 0);
  const auto row = [&](const std::string& label) {
    const std::size_t end = picture.find(">" + label + "<"), y = picture.rfind("y=\"", end);
    return std::stoi(picture.substr(y + 3));
  };
  EXPECT_EQ(row("F0"), row("B0"));
  EXPECT_EQ(row("F0"), row("slot 0"));
  EXPECT_EQ(row("F1"), row("slot 1"));
  EXPECT_EQ(row("F2"), row("slot 0"));
  EXPECT_EQ(row("B3"), row("slot 1"));
}

TEST(GraphsPicture, OfOneMicrobatchWhereThereIsNoPipeline) {
  const std::string picture = graphs_picture(plan_with({}), 0);
  EXPECT_EQ(count(picture, "class=\"forward\""), 1);
  EXPECT_EQ(count(picture, ">B0<"), 1);
}

TEST(GraphsPicture, LongOrdersAreCut) {
  const std::string picture = graphs_picture(plan_with({"parallel.pp=2", "train.global_batch=512"}), 1);
  EXPECT_EQ(count(picture, "class=\"forward\"") + count(picture, "class=\"backward\""), 256);
  EXPECT_NE(picture.find("the first 256 of 512 passes"), std::string::npos);
}

TEST(GraphsPicture, RanksOutsideTheWorldAreRefused) {
  EXPECT_THROW(graphs_picture(plan_with({"parallel.pp=2"}), 2), ConfigError);
  EXPECT_THROW(graphs_picture(plan_with({"parallel.pp=2"}), -1), ConfigError);
}

}  // namespace
}  // namespace megalith::apps
