#include "megalith/ops/gemm_chooser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"
#include "tests/ops/gemms.h"

namespace megalith::ops {
namespace {

using support::gemm_table;
using support::kA100;
using support::kH200;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GemmChoices, WhatNoTableKnowsIsTimed) {
  support::FakeGemmLibrary library(kH200, {10, 20}, 7);
  const GemmChoices choices = choose_gemms(library, library.current(), {}, {});
  EXPECT_EQ(choices.table, gemm_table(kH200, {{10, 7}, {20, 7}}));
  EXPECT_EQ(choices.timed, choices.table);
  EXPECT_TRUE(choices.warnings.empty());
}

TEST(GemmChoices, TheFirstTableThatKnowsAProductDecides) {
  support::FakeGemmLibrary library(kH200, {10, 20, 30}, 7);
  const std::vector<KnownGemms> known = {{"given", gemm_table(kH200, {{10, 2}})},
                                         {"cache", gemm_table(kH200, {{10, 3}, {20, 4}, {99, 5}})}};
  const GemmChoices choices = choose_gemms(library, library.current(), known, {});
  EXPECT_EQ(choices.table, gemm_table(kH200, {{10, 2}, {20, 4}, {30, 7}}));
  EXPECT_EQ(choices.timed, gemm_table(kH200, {{30, 7}}));
  EXPECT_THAT(library.timed, ElementsAre(30));
  EXPECT_TRUE(choices.warnings.empty());
}

TEST(GemmChoices, ATableOfAnotherPlatformIsIgnoredWithOneWarning) {
  support::FakeGemmLibrary library(kH200, {10, 20}, 7);
  const std::vector<KnownGemms> known = {{"cache/a.json", gemm_table(kA100, {{10, 2}, {20, 2}})}};
  const GemmChoices choices = choose_gemms(library, library.current(), known, {});
  EXPECT_EQ(choices.table, gemm_table(kH200, {{10, 7}, {20, 7}}));
  ASSERT_EQ(choices.warnings.size(), 1u);
  EXPECT_EQ(choices.warnings[0],
            "cache/a.json: its GEMM algorithms are those of NVIDIA A100-SXM4-80GB (compute 8.0, cuBLASLt 13.1.0), this "
            "is NVIDIA H200 (compute 9.0, cuBLASLt 13.1.0): not used; results may differ in the last bits");
  GemmPlatform newer = kH200;
  newer.library = "cuBLASLt 13.2.0";
  const std::vector<KnownGemms> older = {{"cache", gemm_table(newer, {{10, 2}})}};
  EXPECT_EQ(choose_gemms(library, library.current(), older, {}).warnings.size(), 1u);
}

TEST(GemmChoices, AnAlgorithmThatIsNotOfferedIsChosenAnew) {
  support::FakeGemmLibrary library(kH200, {10, 20, 30}, 7);
  const std::vector<KnownGemms> known = {{"the checkpoint", gemm_table(kH200, {{10, 66}, {20, 4}, {30, -1}})},
                                         {"cache", gemm_table(kH200, {{10, 3}})}};
  const GemmChoices choices = choose_gemms(library, library.current(), known, {});
  EXPECT_EQ(choices.table, gemm_table(kH200, {{10, 3}, {20, 4}, {30, 7}}));
  ASSERT_EQ(choices.warnings.size(), 1u);
  EXPECT_THAT(choices.warnings[0], HasSubstr("the checkpoint: 2 of its GEMM algorithms are not offered"));
}

TEST(GemmChoices, TheCpuHasNone) {
  Exec cpu;
  EXPECT_THAT(error_of<BackendError>([&] { gemm_chooser(cpu); }), HasSubstr("gemm_chooser"));
}

}  // namespace
}  // namespace megalith::ops
