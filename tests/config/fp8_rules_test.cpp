#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/str.h"

#include "tests/config/small_recipe.h"

// What train.precision = "fp8" requires of a recipe.
namespace megalith::config {
namespace {

std::string problem_in_fp8(std::vector<std::string> settings) {
  for (const char* setting : {"train.precision=fp8", "model.hidden_size=256", "model.ffn_hidden_size=512"})
    settings.insert(settings.begin(), setting);
  return problem_of(kSmall, settings);
}

TEST(Fp8Rules, WholeBlocksAreAccepted) {
  EXPECT_EQ(problem_in_fp8({}), "");
  EXPECT_EQ(problem_in_fp8({"parallel.ranks=2", "parallel.tp=2"}), "");
  EXPECT_EQ(problem_in_fp8({"model.family=llama", "model.num_kv_heads=2"}), "");
}

TEST(Fp8Rules, CutBlocksAreRefusedWithTheNearestSizes) {
  EXPECT_EQ(problem_in_fp8({"model.ffn_hidden_size=600"}),
            "r.toml: 1 problem\n  model.ffn_hidden_size = 600: must be a multiple of 128 with train.precision = fp8, "
            "whose blocks no rank may cut; the nearest are 512 and 640");
  EXPECT_EQ(
      problem_in_fp8({"parallel.ranks=4", "parallel.tp=4", "model.ffn_hidden_size=768"}),
      "r.toml: 2 problems\n  model.hidden_size = 256: train.precision = fp8 has blocks of 128, which no rank may cut "
      "(parallel.tp = 4): num_heads * head width = 256 (a multiple of 512), (num_heads + 2 * num_kv_heads) * head "
      "width "
      "= 768 (a multiple of 512); use model.hidden_size = 512 or parallel.tp = 2\n"
      "  model.ffn_hidden_size = 768: must be a multiple of 128 * parallel.tp = 512 with train.precision = fp8, "
      "whose blocks no rank may cut; the nearest are 512 and 1024");
}

// Every fix that is named is accepted.
TEST(Fp8Rules, WidthsOfHeadsAreRefusedWithWhatIsLegal) {
  constexpr const char* kBlocks = ": train.precision = fp8 has blocks of 128, which no rank may cut";
  EXPECT_EQ(
      problem_in_fp8({"model.hidden_size=192", "model.num_heads=3"}),
      str("r.toml: 1 problem\n  model.hidden_size = 192", kBlocks,
          ": hidden_size 192 (a multiple of 128), num_heads * head width = 192 (a multiple of 128), (num_heads + 2 "
          "* num_kv_heads) * head width = 576 (a multiple of 128); use model.hidden_size = 384"));
  EXPECT_EQ(problem_in_fp8({"model.hidden_size=384", "model.num_heads=3"}), "");
  const std::vector<std::string> few = {"model.family=llama", "model.hidden_size=128", "model.num_heads=4",
                                        "model.num_kv_heads=1"};
  EXPECT_EQ(
      problem_in_fp8(few),
      str("r.toml: 1 problem\n  model.hidden_size = 128", kBlocks,
          ": (num_heads + 2 * num_kv_heads) * head width = 192 (a multiple of 128); use model.hidden_size = 256 or "
          "model.num_kv_heads = 2"));
  std::vector<std::string> two = few;
  two.back() = "model.num_kv_heads=2";
  EXPECT_EQ(problem_in_fp8(two), "");
  two = few;
  two.push_back("model.head_dim=24");
  EXPECT_EQ(
      problem_in_fp8(two),
      str("r.toml: 1 problem\n  model.head_dim = 24", kBlocks,
          ": num_heads * head width = 96 (a multiple of 128), (num_heads + 2 * num_kv_heads) * head width = 144 (a "
          "multiple of 128); use model.head_dim = 64"));
}

TEST(Fp8Rules, AModelThatKeepsNoGemmInFp8IsRefused) {
  const std::string all = problem_in_fp8({"model.num_layers=2", "fp8.skip_layers=first,last"});
  EXPECT_EQ(all,
            "r.toml: 1 problem\n  fp8.skip_layers = first,last: leaves no GEMM in FP8 with model.num_layers = 2; "
            "use train.precision = bf16");
  EXPECT_EQ(problem_in_fp8({"model.num_layers=2", "fp8.skip_layers=first"}), "");
  EXPECT_EQ(problem_in_fp8({"model.num_layers=2", "fp8.skip_layers=first,last", "fp8.head=true"}), "");
}

TEST(Fp8Rules, MicrobatchesAreRefusedThatCutBlocksOrRows) {
  EXPECT_EQ(problem_in_fp8({"fp8.weight_grad=true", "model.seq_len=48", "train.micro_batch=4"}),
            "r.toml: 1 problem\n  train.micro_batch = 4: micro_batch * model.seq_len = 192 must be a multiple of 128 "
            "with fp8.weight_grad = true, whose blocks no microbatch may cut; the least is 8");
  EXPECT_EQ(
      problem_in_fp8({"fp8.head=true", "model.vocab_size=300", "model.padded_vocab_size=320"}),
      "r.toml: 1 problem\n  model.padded_vocab_size = 320: must be a multiple of 128 with train.precision = fp8, whose "
      "blocks no rank may cut; the nearest are 256 and 384");
  EXPECT_EQ(problem_in_fp8({"model.vocab_size=300", "model.padded_vocab_size=320"}), "");
  EXPECT_EQ(problem_in_fp8({"fp8.weight_grad=true", "model.seq_len=48", "train.micro_batch=8"}), "");
  EXPECT_EQ(problem_in_fp8({"device.type=cuda", "model.seq_len=7", "train.micro_batch=2"}),
            "r.toml: 1 problem\n  train.micro_batch = 2: micro_batch * model.seq_len = 14 must be a multiple of 4 with "
            "train.precision = fp8 on a GPU; the least is 4");
  EXPECT_EQ(problem_in_fp8({"device.type=cuda", "model.seq_len=8", "train.micro_batch=2"}), "");
}

TEST(Fp8Rules, ExpertsHaveWholeBlocksInEachSlice) {
  const auto problem = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(),
                    {"moe.num_experts=4", "moe.ffn_hidden_size=256", "model.family=llama", "fp8.experts=all"});
    return problem_in_fp8(settings);
  };
  EXPECT_EQ(problem({}), "");
  EXPECT_EQ(problem({"model.ffn_hidden_size=600"}), "") << "no dense MLP has it";
  EXPECT_EQ(problem({"parallel.tp=2", "parallel.etp=2"}), "");
  EXPECT_EQ(problem({"moe.gemm=grouped"}), "");
  EXPECT_EQ(problem({"parallel.tp=4", "parallel.etp=4", "moe.ffn_hidden_size=384", "model.hidden_size=512"}),
            "r.toml: 1 problem\n  moe.ffn_hidden_size = 384: must be a multiple of 128 * parallel.etp = 512 with "
            "train.precision = fp8, whose blocks no rank may cut; the least is 512");
  EXPECT_EQ(problem({"moe.shared_ffn_hidden_size=200", "moe.pattern=dm", "model.ffn_hidden_size=600"}),
            "r.toml: 2 problems\n  model.ffn_hidden_size = 600: must be a multiple of 128 with train.precision = fp8, "
            "whose blocks no rank may cut; the nearest are 512 and 640\n"
            "  moe.shared_ffn_hidden_size = 200: must be a multiple of 128 with train.precision = fp8, whose blocks no "
            "rank may cut; the nearest are 128 and 256");
  EXPECT_EQ(problem({"moe.gemm=loop"}),
            "r.toml: 1 problem\n  moe.gemm = loop: must be auto or grouped with experts in fp8, which have one kernel "
            "for all; or use fp8.experts = none");
}

TEST(Fp8Rules, ExpertsInBf16HaveAnyWidth) {
  const auto plan_of = [](std::vector<std::string> settings) {
    for (const char* setting : {"moe.gemm=loop", "moe.ffn_hidden_size=200", "moe.num_experts=4", "model.head_dim=64",
                                "model.family=llama", "train.precision=fp8"})
      settings.insert(settings.begin(), setting);
    return resolve(parse_recipe(kSmall, "r.toml", settings));
  };
  const RunPlan narrow = plan_of({"model.hidden_size=1920"});
  EXPECT_FALSE(narrow.has_fp8_experts());
  EXPECT_THAT(narrow.warnings(), ::testing::Contains("fp8.experts = wide: experts stay in bf16, which is faster below "
                                                     "model.hidden_size = 2048"));
  const RunPlan none = plan_of({"model.hidden_size=2048", "fp8.experts=none"});
  EXPECT_FALSE(none.has_fp8_experts());
  EXPECT_THAT(none.warnings(), ::testing::IsEmpty());
  const RunPlan wide = plan_of({"model.hidden_size=2048", "moe.gemm=auto", "moe.ffn_hidden_size=256"});
  EXPECT_TRUE(wide.has_fp8_experts());
  EXPECT_TRUE(plan_of({"model.hidden_size=256", "fp8.experts=all", "moe.gemm=auto", "moe.ffn_hidden_size=256"})
                  .has_fp8_experts());
}

TEST(Fp8Rules, TheHeadOfBertIsNone) {
  EXPECT_NE(problem_in_fp8({"model.family=bert", "fp8.head=true"})
                .find("fp8.head = true: is for models that predict the next token; remove it with model.family = bert"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::config
