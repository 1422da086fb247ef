#include "megalith/capture/memory_copy.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::capture {
namespace {

/// Two owners' memory, the second larger than what is staged at once.
class MemoryCopyTest : public ::testing::Test {
 protected:
  static constexpr Index kLarge = (Index{33} << 20) + 40;

  double& number(Index place) { return small_.view({1}, DType::f64, place * 8).data<double>()[0]; }
  std::byte& byte(Index place) { return large_.data()[place]; }
  NamedMemory named(Index place, StepOrder::Part part, std::string name) {
    return {small_.data() + place * 8, 8, {part, place}, std::move(name)};
  }
  /// What differs once `change`() has run.
  template <class Change>
  std::string difference(Change&& change) {
    copy_.keep(ex_);
    change();
    const auto found = copy_.first_difference(ex_, [&] {
      return MemoryNames{named(1, StepOrder::Part::parameters, "value of w"),
                         named(2, StepOrder::Part::activations, "result of matmul, microbatch 1"),
                         named(3, StepOrder::Part::activations, "result of gelu, microbatch 1")};
    });
    copy_.exchange(ex_);
    return found ? found->text : "";
  }

  Exec ex_;
  MemoryLedger ledger_{Device::cpu};
  Buffer small_ = ledger_.take("parameters", 64, "scratch", 192);
  Buffer large_ = ledger_.take("activations", kLarge);
  MemoryCopy copy_{Device::cpu, ledger_.blocks()};  // one for all comparisons
};

TEST_F(MemoryCopyTest, WhatAStepWritesFirstIsNamed) {
  EXPECT_EQ(difference([] {}), "");
  EXPECT_EQ(difference([&] { number(1) = 1; }), "value of w at byte 6 of 8");
  EXPECT_EQ(difference([&] { number(1) = number(3) = 1; }), "result of gelu, microbatch 1 at byte 6 of 8");
  EXPECT_EQ(difference([&] { number(1) = number(2) = number(3) = 1; }),
            "result of matmul, microbatch 1 at byte 6 of 8");
}

TEST_F(MemoryCopyTest, WhatHasNoNameIsFoundByOwner) {
  EXPECT_EQ(difference([&] { number(0) = 1; }), "parameters at byte 6 of 64");
  EXPECT_EQ(difference([&] { number(9) = 1; }), "scratch at byte 14 of 192");
  EXPECT_EQ(difference([&] { byte(kLarge - 1) = std::byte{1}; }), "activations at byte 34603047 of 34603048");
}

TEST_F(MemoryCopyTest, AnExchangeBringsBackWhatWasKept) {
  number(1) = 7;
  byte(kLarge - 3) = std::byte{5};
  EXPECT_NE(difference([&] {
              number(1) = 8;
              byte(kLarge - 3) = std::byte{6};
            }),
            "");
  EXPECT_EQ(number(1), 7);
  EXPECT_EQ(byte(kLarge - 3), std::byte{5});
}

TEST_F(MemoryCopyTest, AGraphThatTookAValueByValueIsFound) {
  double rate = 0.5;
  const auto update = [&] {
    const Tensor w = small_.view({1}, DType::f64, 8);
    ex_.run({.name = "update", .reads = {w}, .writes = {w}}, [w, rate](Exec&, Stream) { w.data<double>()[0] += rate; });
  };
  Capture capture("training", ledger_.memory());
  Graph graph = ex_.captured(capture, update);
  graph.prepare(ex_);
  for (const double now : {0.5, 0.25}) {
    rate = now;
    copy_.keep(ex_);
    graph.launch(ex_);
    copy_.exchange(ex_);
    update();
    const auto found =
        copy_.first_difference(ex_, [&] { return MemoryNames{named(1, StepOrder::Part::parameters, "value of w")}; });
    EXPECT_EQ(found.has_value(), now != 0.5);
    EXPECT_EQ(number(1), now == 0.5 ? 0.5 : 0.75) << "the eager result stays";
  }
}

TEST_F(MemoryCopyTest, TakesWhatItSays) {
  EXPECT_EQ(MemoryCopy::host_bytes(ledger_.blocks()), 256 + kLarge + (Index{16} << 20));
}

TEST_F(MemoryCopyTest, ANameOutsideThePlanIsAnError) {
  copy_.keep(ex_);
  number(1) = 1;
  double foreign = 0;
  const auto names = [&] {
    return MemoryNames{{reinterpret_cast<const std::byte*>(&foreign), 8, {StepOrder::Part::inputs, 0}, "foreign"}};
  };
  EXPECT_THROW(static_cast<void>(copy_.first_difference(ex_, names)), InternalError);
}

}  // namespace
}  // namespace megalith::capture
