#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/process.h"

// What commands print of GPUs, on machines with and without one.
namespace megalith {
namespace {

using support::Finished;
using support::run_shell;

TEST(GpuWords, DoctorSaysWhichGpusTheProgramHasCodeFor) {
  const nlohmann::json doctor = nlohmann::json::parse(run_shell("megalith doctor --format json").out);
  const bool has_cuda = doctor.contains("CUDA of this program");
  ASSERT_EQ(doctor.contains("code for GPUs"), has_cuda);
  if (!has_cuda) return;
  const std::string architectures = doctor.at("code for GPUs").at("state");
  EXPECT_TRUE(architectures.find_first_of("0123456789") != std::string::npos || architectures == "native" ||
              architectures.starts_with("all"))
      << architectures;
}

TEST(GpuWords, DoctorSaysHowToGetCudnn) {
  const nlohmann::json doctor = nlohmann::json::parse(run_shell("megalith doctor --format json").out);
  if (!doctor.contains("cuDNN")) GTEST_SKIP() << "a build without CUDA needs none";
  const nlohmann::json& cudnn = doctor.at("cuDNN");
  ASSERT_EQ(cudnn.contains("note"), cudnn.at("state") == "no") << cudnn;
  if (!cudnn.contains("note")) return;
  EXPECT_NE(cudnn.at("note").get<std::string>().find("install cuDNN 9 and the cudnn-frontend headers"),
            std::string::npos)
      << cudnn;
}

TEST(GpuWords, BenchesOfOpsOnGpusRefuseFp64) {
  for (const std::string bench : {"gemm", "attention", "norm", "elementwise", "loss", "embedding", "adamw"}) {
    const Finished refused = run_shell("megalith bench " + bench + " --device cuda --precision fp64");
    EXPECT_EQ(refused.code, 64) << bench;
    EXPECT_EQ(refused.err.substr(0, refused.err.find('\n')),
              "error: --precision = fp64: is for --device cpu, to check with: a GPU computes in bf16, fp16 or fp32");
  }
}

}  // namespace
}  // namespace megalith
