#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/bert_program.h"

// `megalith verify` of models with experts, of BERT, and in 16 bits. docs/verify.md lists the planted bugs that it
// must name.
namespace megalith {
namespace {

using nlohmann::json;
using support::BertProgram;
using support::Finished;
using support::run_shell;

class VerifyKinds : public BertProgram {
 protected:
  /// Reports of all grids, which must agree op by op.
  static void expect_agreeing(const Finished& done, std::size_t grids, int results) {
    ASSERT_EQ(done.code, 0) << done.err << done.out;
    const json reports = json::parse(done.out);
    ASSERT_EQ(reports.size(), grids);
    for (const json& report : reports) {
      EXPECT_EQ(report["agree"], true) << report["b"];
      EXPECT_FALSE(report.contains("op")) << report["op"];
      EXPECT_GT(report["ops_compared"].get<int>(), results) << report["b"];
    }
  }
  /// The recipe of a model with experts.
  std::string experts() const {
    return recipe() +
           " --set model.num_layers=2 --set model.head_dim=6 --set model.family='\"llama\"' --set moe.num_experts=4"
           " --set moe.top_k=2 --set moe.ffn_hidden_size=12 --set train.micro_batch=2 ";
  }
  Finished verify_experts(const std::string& arguments) const {
    return run_shell("megalith verify " + experts() + "--steps 2 --ops 1 --format json " + arguments);
  }
};

TEST_F(VerifyKinds, GridsOfExpertsAgreeOpByOp) {
  for (const char* dispatcher : {"all_to_all", "peer"}) {
    SCOPED_TRACE(dispatcher);
    expect_agreeing(verify_experts("--grid one --grid 'dp=2 ep=2' --grid 'tp=2 ep=2' --grid 'tp=2 etp=2' "
                                   "--grid 'dp=2 etp=2' --grid 'tp=2 dp=2 ep=2 etp=2 sequence_parallel=true' "
                                   "--set train.precision='\"fp64\"' --set moe.aux_loss=0.01 --set moe.dispatcher='\"" +
                                   std::string(dispatcher) + "\"'"),
                    5, 150);
  }
}

TEST_F(VerifyKinds, RoundingTurnsNoChoiceOfARouter) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    expect_agreeing(verify_experts("--grid 'dp=2 ep=2' --grid 'tp=2 dp=2 ep=4 etp=1' --set train.precision='\"" +
                                   std::string(precision) + "\"'"),
                    1, 150);
  }
}

TEST_F(VerifyKinds, ClonesOfExpertsAndMuonDoNotDisturb) {
  const std::string with_clones =
      "--set train.precision='\"fp64\"' --set moe.echo.slots=1 --set moe.echo.min_pairs=0 --set moe.router_skew=0.04 "
      "--set optimizer.type='\"muon\"' ";
  expect_agreeing(verify_experts(with_clones + "--grid 'dp=4 ep=4'"), 1, 100);
  const Finished trained = run_shell("megalith train " + experts() + with_clones + "--out " + out("clones") +
                                     " --set train.steps=2 --set parallel.ranks=4 --set parallel.ep=4");
  ASSERT_EQ(trained.code, 0) << trained.err;
  int layers = 0;
  for (const std::string& line : metrics("clones")) {
    const json step = json::parse(line);
    if (!step.contains("moe")) continue;
    for (const json& layer : step["moe"]["layers"]) {
      EXPECT_GT(layer["echo"]["clones"].get<int>(), 0) << line;
      ++layers;
    }
  }
  EXPECT_EQ(layers, 4) << "two of each step";
}

TEST_F(VerifyKinds, GridsOfBertAgreeOpByOp) {
  ASSERT_EQ(build_sentences().code, 0);
  for (const char* precision : {"fp64", "bf16"}) {
    SCOPED_TRACE(precision);
    expect_agreeing(run_shell("megalith verify " + out("bert.toml") +
                              " --steps 1 --ops 1 --format json --grid one --grid tp=2 --grid 'dp=2 distributed=true' "
                              "--grid 'pp=2' --set train.precision='\"" +
                              std::string(precision) + "\"'"),
                    3, 100);
  }
}

TEST_F(VerifyKinds, SixteenBitsAgreeWithinTheirBands) {
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    expect_agreeing(run_shell("megalith verify " + recipe() +
                              " --steps 2 --ops 1 --format json --grid one --grid 'tp=2 pp=2' --grid dp=2 "
                              "--set train.micro_batch=2 --set train.precision='\"" +
                              std::string(precision) + "\"'"),
                    2, 200);
  }
}

}  // namespace
}  // namespace megalith
