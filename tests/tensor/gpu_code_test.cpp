#include "megalith/tensor/gpu_code.h"

#include <vector>

#include <gtest/gtest.h>

#include "megalith/tensor/gpu_facts.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith::device {
namespace {

TEST(GpuCode, RunsOnTheGpusThatItsArchitecturesAreFor) {
  using Gpus = std::vector<const char*>;
  const struct {
    const char* architectures;
    Gpus runs, fails;
  } cases[] = {{"90a", {"9.0"}, {"8.0", "8.9", "10.0", "12.0"}},
               {"80", {"8.0", "8.6", "9.0", "12.1"}, {"7.5"}},
               {"80-real", {"8.0", "8.9"}, {"7.5", "9.0"}},
               {"86-real", {"8.6", "8.9"}, {"8.0", "9.0"}},
               {"80-virtual", {"8.0", "9.0", "12.0"}, {"7.0"}},
               {"90a-real", {"9.0"}, {"8.0", "10.0"}},
               {"100f", {"10.0", "10.3"}, {"9.0", "11.0", "12.0"}},
               {"103f", {"10.3"}, {"10.0", "12.0"}},
               {"80, 90a, 100", {"8.0", "8.6", "9.0", "10.0", "12.1"}, {"7.5"}},
               {"80-real, 100", {"8.0", "10.0", "12.0"}, {"9.0"}},
               {"native", {"8.0", "12.0"}, {}},
               {"all-major", {"8.0", "12.0"}, {}},
               {"", {}, {"9.0"}}};
  for (const auto& [architectures, runs, fails] : cases) {
    for (const char* gpu : runs) EXPECT_TRUE(has_code_for(gpu, architectures)) << gpu << " by " << architectures;
    for (const char* gpu : fails) EXPECT_FALSE(has_code_for(gpu, architectures)) << gpu << " by " << architectures;
  }
}

TEST(GpuCode, LackOfItSaysHowToBuildIt) {
  EXPECT_EQ(lack_of_code("8.0", "90a"),
            "this program has code for 90a only; build it by scripts/build cuda-all, which is for A100, H100, H200 and "
            "B200, or with -DCMAKE_CUDA_ARCHITECTURES=80");
  EXPECT_TRUE(lack_of_code("9.0", "80-real, 100").ends_with("-DCMAKE_CUDA_ARCHITECTURES=90a"));
  EXPECT_TRUE(lack_of_code("12.0", "90a").ends_with("-DCMAKE_CUDA_ARCHITECTURES=120"));
}

TEST(GpuCode, IsThatOfTheBuild) { EXPECT_EQ(code_architectures().empty(), !build::has_cuda); }

}  // namespace
}  // namespace megalith::device
