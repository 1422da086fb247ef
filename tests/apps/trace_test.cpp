#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "tests/apps/program.h"

// What `train --trace` writes.
namespace megalith {
namespace {

using testing::Finished;
using testing::Program;
using testing::run_shell;

TEST_F(Program, ATraceHasTheOpsOfEveryRank) {
  const auto traced = [&](const std::string& name, const std::string& more) {
    const std::string file = out(name + ".json");
    const Finished got =
        run_shell(train(name, "--set parallel.pp=2 --set train.eval_interval=8 --trace " + file + more));
    EXPECT_EQ(got.code, 0) << got.err;
    std::ifstream text(file);
    return std::pair{got.err, nlohmann::json::parse(text).at("traceEvents")};
  };
  const auto products = [](const nlohmann::json& events, int rank) {
    return std::ranges::count_if(events, [&](const nlohmann::json& event) {
      return event.at("ph") == "X" && event.at("pid") == rank && event.at("name") == "matmul" &&
             event.at("dur").get<double>() > 0 && event.at("ts").get<double>() >= 0;
    });
  };
  const auto [told, three] = traced("a", "");
  EXPECT_NE(told.find("wrote steps 3 to 5 of all ranks"), std::string::npos) << told;
  const auto [told_short, one] = traced("b", " --set train.steps=1");
  EXPECT_NE(told_short.find("wrote steps 1 to 1 of all ranks"), std::string::npos) << told_short;
  for (const int rank : {0, 1}) {
    EXPECT_GT(products(one, rank), 0);
    EXPECT_EQ(products(three, rank), 3 * products(one, rank));
  }
}

}  // namespace
}  // namespace megalith
