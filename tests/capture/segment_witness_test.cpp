#include "megalith/capture/segment_witness.h"

#include <array>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::capture {
namespace {

using Key = GraphCache::Key;
using State = GraphCache::State;
using Part = StepOrder::Part;

constexpr Index kLayers = 2;

/// The last layer's passes of two microbatches that use one slot in turn, so that one pair of graphs serves both.
/// Every op passes on one number, which is put there before the pass.
class SegmentWitnessTest : public ::testing::Test {
 protected:
  struct Numbers {
    double workspace = 1, gelu = 2, sum = 3, send = 4, weight = 5;  ///< by op
  };
  using Step = std::array<Numbers, 2>;  ///< by microbatch

  SegmentWitnessTest() {
    graphs_.start("training", ledger_.memory());
    graphs_.set_state(State::capturing);
    run({});
    graphs_.prepare(ex_);
    graphs_.set_observer([this](Exec& ex, const Key& key, const Graph& graph) { witness_.see(ex, key, graph); });
  }

  static Tensor number(const Buffer& buffer, Index place) { return buffer.view({1}, DType::f64, 8 * place); }
  static double& value(const Buffer& buffer, Index place) { return number(buffer, place).data<double>()[0]; }
  void op(const char* name, const Tensor& from, const Tensor& to) {
    ex_.run({.name = name, .reads = {from}, .writes = {to}},
            [=](Exec&, Stream) { to.data<double>()[0] = from.data<double>()[0]; });
  }
  void forward() {
    op("workspace", number(scratch_, 0), number(scratch_, 5));
    op("gelu", number(scratch_, 1), number(slot_, 0));
    op("sum", number(scratch_, 2), number(slot_, 1));
  }
  void backward() {
    op("send", number(scratch_, 3), number(slot_, 2));
    const Tensor from = number(scratch_, 4), to = number(gradients_, 1);
    ex_.run({.name = "weight", .reads = {from, to}, .writes = {to}},
            [=](Exec&, Stream) { to.data<double>()[0] += from.data<double>()[0]; });
  }
  void run_microbatch(int microbatch, const Numbers& n) {
    ex_.set_call_site({.chunk = 0, .microbatch = microbatch, .layer = 1});
    Index place = 0;
    for (const double number : {n.workspace, n.gelu, n.sum, n.send, n.weight}) value(scratch_, place++) = number;
    graphs_.run(ex_, {0, 0, 1, Key::kForward}, [this] { forward(); });
    graphs_.run(ex_, {0, 0, 1, Key::kBackward}, [this] { backward(); });
  }
  void run(const Step& step) {
    value(gradients_, 1) = 0;
    for (const int microbatch : {0, 1}) run_microbatch(microbatch, step[static_cast<std::size_t>(microbatch)]);
  }
  void begin_first() {
    witness_.keep_from_here();
    graphs_.set_state(State::replaying);
  }
  void begin_second() {
    witness_.compare_from_here();
    graphs_.set_state(State::comparing);
  }
  MemoryNames names() {
    ++asked_;
    MemoryNames all;
    add_name(all, number(slot_, 0), {Part::activations, 0}, "what memory holds");
    add_name(all, number(gradients_, 0), {Part::gradients, -2}, "gradient of v");
    add_name(all, gradients_.view({2}, DType::f64, 8), {Part::gradients, -1}, "gradient of w");
    return all;
  }
  /// What a step from graphs and an eager one that `change`() is made to leave after each piece.
  template <class Change>
  std::string difference(Change&& change) {
    Step step;
    begin_first();
    run(step);
    copy_.keep(ex_);
    change(step);
    begin_second();
    run(step);
    memory_agrees_ = !copy_.first_difference(ex_, [] { return MemoryNames{}; });
    const auto found = witness_.first_difference([this] { return names(); });
    order_ = found ? found->order : StepOrder{};
    return found ? found->text : "";
  }
  /// The error where the first run has these microbatches, and the second those.
  std::string error_of(int first, int second) {
    begin_first();
    for (int microbatch = 0; microbatch < first; ++microbatch) run_microbatch(microbatch, {});
    begin_second();
    for (int microbatch = 0; microbatch < second; ++microbatch) run_microbatch(microbatch, {});
    try {
      static_cast<void>(witness_.first_difference([this] { return names(); }));
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  }

  Exec ex_;
  MemoryLedger ledger_{Device::cpu};
  Buffer slot_ = ledger_.take("activations", 64), gradients_ = ledger_.take("gradients", 64);
  const std::vector<MemoryLedger::Block> pieces_ = ledger_.blocks();
  Buffer scratch_ = ledger_.take(kScratchOwner, 64);
  SegmentWitness witness_{Device::cpu, pieces_, kLayers};
  MemoryCopy copy_{Device::cpu, pieces_};
  GraphCache graphs_;
  bool memory_agrees_ = false;
  StepOrder order_;
  int asked_ = 0;
};

TEST_F(SegmentWitnessTest, WhereAllAgreesThereIsNothing) {
  EXPECT_EQ(difference([](Step&) {}), "");
  EXPECT_EQ(asked_, 0);
  EXPECT_TRUE(memory_agrees_);
}

TEST_F(SegmentWitnessTest, AnEarlyMicrobatchIsNamedThoughMemoryAgreesAtTheEnd) {
  EXPECT_EQ(difference([](Step& step) { step[0].gelu = 7; }), "result of gelu, chunk 0, microbatch 0, layer 1");
  EXPECT_TRUE(memory_agrees_);
  // After what memory names of the microbatch, whose numbers are those of the chunk's ops.
  EXPECT_GT(order_, forward_order(0, 1, kLayers, 1000));
  EXPECT_LT(order_, forward_order(1, 0, kLayers, 0));
  EXPECT_EQ(difference([](Step& step) { step[0].send = 7; }),
            "result of send in the backward pass, chunk 0, microbatch 0, layer 1");
  EXPECT_TRUE(memory_agrees_);
  EXPECT_GE(order_, backward_order(0, 1, kLayers, 0));
  EXPECT_LT(order_, backward_order(0, 0, kLayers, 0));
  EXPECT_EQ(difference([](Step&) {}), "") << "what was seen before is forgotten";
}

TEST_F(SegmentWitnessTest, OfAllThatDiffersTheFirstIsNamed) {
  EXPECT_EQ(difference([](Step& step) { step[0].sum = step[1].gelu = 7; }),
            "result of sum, chunk 0, microbatch 0, layer 1");
  EXPECT_EQ(difference([](Step& step) { step[1].send = step[1].gelu = 7; }),
            "result of gelu, chunk 0, microbatch 1, layer 1");
}

TEST_F(SegmentWitnessTest, GradientsGoByTheirNames) {
  const char* const of_first = "gradient of w, chunk 0, microbatch 0, layer 1";
  EXPECT_EQ(difference([](Step& step) { step[0].weight = 7; }), of_first);
  EXPECT_FALSE(memory_agrees_);
  EXPECT_LT(order_, (StepOrder{Part::gradients, -2})) << "before the gradients in memory";
  EXPECT_EQ(difference([](Step& step) {
              ++step[0].weight;
              --step[1].weight;
            }),
            of_first);
  EXPECT_TRUE(memory_agrees_);
  EXPECT_EQ(difference([](Step& step) { step[1].weight = 7; }), "gradient of w, chunk 0, microbatch 1, layer 1");
}

TEST_F(SegmentWitnessTest, WhatLiesElsewhereIsNotLookedAt) {
  EXPECT_EQ(difference([](Step& step) { step[0].workspace = 7; }), "");
}

TEST_F(SegmentWitnessTest, BothRunsMustLeaveAsMuch) {
  EXPECT_EQ(error_of(2, 2), "");
  EXPECT_EQ(
      error_of(2, 1),
      "[SegmentWitness] pieces left 8 results in the first run and 4 in the second: both must run the same pieces");
  EXPECT_EQ(
      error_of(1, 2),
      "[SegmentWitness] pieces left 4 results in the first run and 8 in the second: both must run the same pieces");
}

TEST(SegmentWitness, SeesEveryByteOfALargeTensor) {
  constexpr Index kBlock = SegmentWitness::host_bytes(), kBytes = 2 * kBlock + 40;
  Exec ex;
  MemoryLedger ledger(Device::cpu);
  const Buffer buffer = ledger.take("activations", kBytes);
  GraphCache graphs;
  graphs.start("training", ledger.memory());
  graphs.set_state(State::capturing);
  const auto run = [&] {
    graphs.run(ex, {}, [&] {
      ex.run({.name = "spread", .reads = {}, .writes = {buffer.view({kBytes}, DType::u8)}}, [](Exec&, Stream) {});
    });
  };
  run();
  graphs.prepare(ex);
  SegmentWitness witness(Device::cpu, ledger.blocks(), kLayers);
  graphs.set_observer([&](Exec& with, const Key& key, const Graph& graph) { witness.see(with, key, graph); });
  const auto differ = [&](Index first, Index second) {
    const auto run_with = [&](Index place) {
      buffer.data()[place] = std::byte{1};
      graphs.set_state(State::replaying);
      run();
      buffer.data()[place] = std::byte{0};
    };
    witness.keep_from_here();
    run_with(first);
    witness.compare_from_here();
    run_with(second);
    return witness.first_difference([] { return MemoryNames{}; }).has_value();
  };
  EXPECT_FALSE(differ(5, 5));
  for (const Index place : {Index{0}, kBlock - 1, kBlock, kBlock + 5, 2 * kBlock, kBytes - 1})
    EXPECT_TRUE(differ(5, place)) << place;
}

}  // namespace
}  // namespace megalith::capture
