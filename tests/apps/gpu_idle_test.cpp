// scripts/gpu-idle, on records as bench/gpu_records.cpp writes them.
#include <gtest/gtest.h>

#include "megalith/base/str.h"

#include "tests/apps/process.h"
#include "tests/test_data.h"

namespace megalith {
namespace {

using support::Finished;

/// Four steps of 1 ms, each 80 % busy: an op and the decision about the step compute for 0.5 ms; a sum and a copy
/// communicate for 0.4 ms, 0.1 ms of it beside the op; the op is a graph's. A copy to the host waits for the step, and
/// one of 2 us for the op, though its record begins in an earlier step.
std::string records() {
  std::string rows = "gpu,stream,begin_ns,end_ns,graph,name\n";
  const auto add = [&rows](int step, int stream, int begin_us, int end_us, const char* name, int graph = 0) {
    const long start_us = 1000L * (10 + step);
    rows += str("1,", stream, ",", 1000 * (start_us + begin_us), ",", 1000 * (start_us + end_us), ",", graph, ",", name,
                "\n");
  };
  for (int step = 0; step < 4; ++step) {
    add(step, 7, 900, 1000,
        "megalith::ops::cuda::(anonymous namespace)::decide_step_kernel(megalith::ops::StepRules, int)");
    add(step, 8, 400, 700, "void megalith::comm::(anonymous namespace)::sum_kernel<float>(float*)");
    add(step, 9, 650, 800, "copy between GPUs");
    add(step, 7, 100, 500, "void product<1, 2>(float*, long)", 3);
    add(step, 7, -4000, 502, "copy");
    add(step, 10, 50, 1003, "copy to the host");
  }
  return rows;
}

Finished gpu_idle(const std::string& text, const std::string& options) {
  const TempDir dir;
  const std::string path = (dir.path() / "records.csv").string();
  write_all(path, text);
  return support::run_shell(str("'", MEGALITH_TEST_DATA, "/../../scripts/gpu-idle' ", options, " '", path, "'"));
}

class GpuIdle : public ::testing::Test {
 protected:
  void SetUp() override {
    if (support::run_shell("command -v python3").code != 0) GTEST_SKIP() << "python3 is not installed";
  }
};

TEST_F(GpuIdle, SaysWhatOfAStepAGpuDid) {
  const Finished finished = gpu_idle(records() + "complete\n", "--gaps 2 --kernels 1");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out,
            "gpu   step_ms   busy_ms   compute_ms   communication_ms   idle_ms   idle   idle or only communication"
            "   kernels and copies   outside graphs\n"
            "  1      1.00      0.80         0.50               0.40      0.20  20.0%      49.8%"
            "                                     7                6\n"
            R"(    0.100 ms in    1 gaps  decide_step -> product
    0.100 ms in    1 gaps  copy between GPUs -> decide_step_kernel
    0.400 ms in    1 launches  void product<1, 2>(float*, long)
)");
}

TEST_F(GpuIdle, RefusesRecordsThatAreNotWhole) {
  const Finished cut = gpu_idle(records(), "");
  EXPECT_EQ(cut.code, 1);
  EXPECT_NE(cut.err.find("records are missing"), std::string::npos) << cut.err;
  const Finished old = gpu_idle("gpu,stream,begin_ns,end_ns,name\n1,7,0,1,product\ncomplete\n", "");
  EXPECT_EQ(old.code, 1);
  EXPECT_NE(old.err.find("not the records of this version"), std::string::npos) << old.err;
  const Finished few = gpu_idle(records() + "complete\n", "--steps 4");
  EXPECT_EQ(few.code, 1);
  EXPECT_NE(few.err.find("GPU 1 has 4 decisions about steps: must be more than --steps = 4"), std::string::npos)
      << few.err;
}

}  // namespace
}  // namespace megalith
