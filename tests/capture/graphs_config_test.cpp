#include "megalith/capture/graphs_config.h"

#include <gtest/gtest.h>

namespace megalith::capture {
namespace {

std::vector<std::string> problems_of(std::vector<std::string> names, GraphMode mode) {
  Problems problems;
  EXPECT_TRUE(read_scopes(names, mode, problems).empty() || problems.empty());
  return problems.lines();
}

TEST(GraphsConfig, NamesAreInTheOrderOfTheEnumerators) {
  EXPECT_EQ(name(GraphMode::none), "none");
  EXPECT_EQ(name(GraphMode::layers), "layers");
  EXPECT_EQ(name(GraphMode::iteration), "iteration");
  EXPECT_EQ(name(GraphsPer::microbatch), "microbatch");
  EXPECT_EQ(name(GraphsPer::slot), "slot");
}

TEST(GraphsConfig, ScopesAreASet) {
  Problems problems;
  const ScopeSet scopes =
      read_scopes(std::vector<std::string>{"moe_router", "attn", "attn"}, GraphMode::layers, problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(scopes, (ScopeSet{Scope::attn, Scope::moe_router}));
  EXPECT_EQ(scopes.names(), (std::vector<std::string>{"attn", "moe_router"}));
  EXPECT_EQ(text(scopes), "[attn, moe_router]");
}

TEST(GraphsConfig, RulesOnNames) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(problems_of({"full"}, GraphMode::layers), Lines{});
  EXPECT_EQ(problems_of({"full_iteration"}, GraphMode::iteration), Lines{});
  EXPECT_EQ(problems_of({"full", "mlp"}, GraphMode::layers),
            Lines{"graphs.scopes = [full, mlp]: full means whole layers, so nothing can stand beside it; write "
                  "scopes = [] (rule V1 of docs/graphs.md)"});
  EXPECT_EQ(problems_of({"full_iteration"}, GraphMode::layers),
            Lines{"graphs.scopes = [full_iteration]: full_iteration is a mode: write mode = \"iteration\", scopes "
                  "= [] (rule V2 of docs/graphs.md)"});
  EXPECT_EQ(problems_of({"full_iteration", "mlp"}, GraphMode::iteration).size(), 1U);
  // Names come before anything else.
  EXPECT_EQ(problems_of({"full", "expert"}, GraphMode::layers).at(0).substr(0, 32), "graphs.scopes = [full, expert]: ");
  EXPECT_NE(problems_of({"full", "expert"}, GraphMode::layers).at(0).find("no scope is called expert"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::capture
