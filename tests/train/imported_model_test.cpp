#include "megalith/train/imported_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/io/save_protocol.h"

#include "tests/io/model_fs.h"
#include "tests/io/temp_dir.h"
#include "tests/train/moe_run.h"
#include "tests/train/small_run.h"

namespace megalith {
namespace {

const train::DataIdentity kIdentity{.tokenizer = 3,
                                    .vocabulary = std::make_shared<const std::vector<tokenizer::VocabularyFile>>(
                                        std::vector<tokenizer::VocabularyFile>{{"vocab.json", "{}"}})};

/// 1, 2, 3, ... in each parameter.
void count_up(const TensorSlice&, const Tensor& values) {
  for (Index i = 0; i < values.numel(); ++i) values.data<float>()[i] = static_cast<float>(i + 1);
}

TEST(ImportedModel, HasTheValuesOfParametersAndNoMoments) {
  const auto fs = io::posix_fs();
  const TempDir dir;
  // A router's bias is updated by a rule: a new one is 0.
  const support::MoeModel biased{"Bias", [](config::RunConfig& c) {
                                   c.moe.score = "sigmoid";
                                   c.moe.expert_bias_rate = 0.01;
                                 }};
  const config::RunPlan plan = config::resolve(support::moe_config({}, biased, "fp32", 2));
  std::vector<std::string> read;
  const checkpoint::Digest128 digest =
      train::save_imported_model(plan, kIdentity, *fs, dir / "a", [&](const TensorSlice& param, const Tensor& values) {
        EXPECT_EQ(param.local, param.global) << param.name;
        EXPECT_EQ(values.shape(), param.global) << param.name;
        read.push_back(param.name);
        count_up(param, values);
      });
  const io::Path folder = dir / "a" / io::StepFolder{0}.name();
  const checkpoint::Verification found = checkpoint::verify(*fs, folder);
  EXPECT_THAT(found.problems, ::testing::IsEmpty());
  EXPECT_EQ(found.manifest.digest, digest);
  EXPECT_NE(found.manifest.find_file("vocab.json"), nullptr);
  checkpoint::CheckpointReader reader(*fs, folder);
  std::vector<std::string> counted;
  for (const checkpoint::TensorRecord& tensor : found.manifest.tensors) {
    EXPECT_FALSE(tensor.name.starts_with("optimizer.")) << tensor.name;
    EXPECT_EQ(tensor.dtype, DType::f32) << tensor.name;
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
    reader.read(TensorSlice::whole(tensor.name, tensor.shape), Tensor(values.data(), tensor.shape, DType::f32));
    const bool is_bias = tensor.name.ends_with("router.bias");
    if (!is_bias) counted.push_back(tensor.name);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], is_bias ? 0 : static_cast<float>(i + 1)) << tensor.name;
  }
  EXPECT_LT(counted.size(), found.manifest.tensors.size()) << "there is a bias";
  EXPECT_THAT(read, ::testing::UnorderedElementsAreArray(counted)) << "each parameter once";
}

TEST(ImportedModel, LeavesNothingWhenItsSourceFails) {
  const auto fs = io::posix_fs();
  const TempDir dir;
  const config::RunPlan plan = support::small_plan({}, "fp32");
  int reads = 0;
  const auto fails = [&](const TensorSlice& param, const Tensor& values) {
    if (++reads == 3) throw InputError("[model.safetensors] is damaged");
    count_up(param, values);
  };
  EXPECT_THROW(train::save_imported_model(plan, kIdentity, *fs, dir / "a", fails), InputError);
  EXPECT_EQ(reads, 3);
  EXPECT_THAT(fs->list(dir / "a"), ::testing::IsEmpty());
}

TEST(ImportedModel, IsWholeOrNotThereAfterAPowerCut) {
  const config::RunPlan plan = support::small_plan({}, "fp32");
  io::ModelFs fs;
  Index absent = 0, whole = 0;
  fs.on_change([&] {
    fs.for_each_crash_state([&](io::ModelFs& left) {
      if (io::published(left, "/a").empty()) {
        ++absent;
        return;
      }
      ++whole;
      EXPECT_THAT(checkpoint::verify(left, io::Path("/a") / io::StepFolder{0}.name()).problems, ::testing::IsEmpty());
    });
  });
  train::save_imported_model(plan, kIdentity, fs, "/a", count_up);
  EXPECT_GT(absent, 0);
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace megalith
