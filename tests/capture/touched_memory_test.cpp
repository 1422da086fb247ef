#include "megalith/capture/touched_memory.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::capture {
namespace {

using Key = GraphCache::Key;
using Stretch = Stretches::Stretch;

TEST(Stretches, AreWhatASetOfBytesIs) {
  constexpr std::size_t kBytes = 24;
  std::array<bool, kBytes> bytes{};
  Stretches stretches;
  std::uint32_t random = 1;
  const auto next = [&random](std::size_t below) {
    random = random * 1664525U + 1013904223U;
    return (random >> 8U) % below;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::size_t begin = next(kBytes), end = begin + next(kBytes - begin + 1);
    const Stretch stretch{begin, end};
    const Index missing = std::count(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(end), false);
    ASSERT_EQ(stretches.missing(stretch).bytes(), missing);
    Stretches other;
    other.add(stretch);
    ASSERT_EQ(common(stretches, other).bytes(), static_cast<Index>(end - begin) - missing);
    ASSERT_EQ(common(other, stretches).bytes(), static_cast<Index>(end - begin) - missing);
    const bool adds = round % 2 == 0;
    adds ? stretches.add(stretch) : stretches.remove(stretch);
    for (std::size_t i = begin; i < end; ++i) bytes[i] = adds;
    ASSERT_EQ(stretches.bytes(), std::count(bytes.begin(), bytes.end(), true));
    for (const Stretch& part : stretches.all()) {
      ASSERT_LT(part.begin, part.end);
      ASSERT_TRUE(part.begin == 0 || !bytes[part.begin - 1]) << "stretches that meet are one";
      ASSERT_TRUE(part.end == kBytes || !bytes[part.end]);
    }
  }
}

/// Two layers of a chunk, two microbatches in flight, with [4] f64 between layers: what is right, and ways to be wrong.
class TouchedMemoryTest : public ::testing::Test {
 protected:
  static constexpr Index kActivation = 32;

  /// Where a layer's passes find things: by microbatch and layer.
  struct Layer {
    Tensor input, output, saved, output_grad, input_grad;
  };

  TouchedMemoryTest() {
    for (const char* owner : {"activations", kScratchOwner, "pipeline buffers", "inputs", "parameters", "gradients"})
      buffers_.push_back(ledger_.take(owner, 1024));
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (int layer = 0; layer < 2; ++layer) {
        // Activations of a microbatch: input of layer 0, saved of layer 0, input of layer 1, saved of layer 1.
        const Index slot = 512 * microbatch + 128 * layer;
        Layer& at = layers_[microbatch][layer];
        at.input = activation("activations", slot);
        at.saved = activation("activations", slot + 64);
        at.output = layer == 0 ? activation("activations", slot + 128) : activation("pipeline buffers", 0);
        at.output_grad = layer == 1 ? activation("pipeline buffers", 64) : activation(kScratchOwner, 0);
        at.input_grad = activation(kScratchOwner, 64 * layer);
      }
      layers_[microbatch][0].output_grad = layers_[microbatch][1].input_grad;
    }
  }

  Tensor tensor(std::string_view owner, Index offset, Index count = 4) const {
    const auto& pieces = ledger_.blocks();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].owner == owner) return buffers_[i].view({count}, DType::f64, offset);
    }
    throw InternalError("no such owner");
  }
  Tensor activation(std::string_view owner, Index offset) const { return tensor(owner, offset); }

  void op(const char* name, std::initializer_list<Tensor> reads, std::initializer_list<Tensor> writes,
          OpKind kind = OpKind::local, const Tensor& scratch = {}) {
    ex_.run({.name = name, .reads = reads, .writes = writes, .kind = kind, .scratch = scratch}, [](Exec&, Stream) {});
  }
  /// `extra`: what the pass does besides.
  void forward(GraphCache& graphs, int microbatch, int layer, const std::function<void()>& extra = {}) {
    const Layer& at = layers_[microbatch][layer];
    graphs.run(ex_, {0, microbatch, layer, 0}, [&] {
      const Tensor inner = activation(kScratchOwner, 512);
      op("in", {at.input.rows(0, 2), tensor("parameters", 0)}, {inner.rows(0, 2), at.saved.rows(0, 2)});
      op("in", {at.input.rows(2, 2), tensor("parameters", 0)}, {inner.rows(2, 2), at.saved.rows(2, 2)});
      op("sum", {inner}, {inner}, OpKind::communication);
      op("wait", {inner}, {}, OpKind::wait);
      op("out", {inner, at.saved, tensor("inputs", 0, 1)}, {at.output}, OpKind::communication);
      op("wait", {at.output}, {}, OpKind::wait);
      if (extra) extra();
    });
  }
  void backward(GraphCache& graphs, int microbatch, int layer, const std::function<void()>& extra = {}) {
    const Layer& at = layers_[microbatch][layer];
    graphs.run(ex_, {0, microbatch, layer, 1}, [&] {
      op("dx", {at.output_grad, at.saved, tensor("parameters", 0)}, {at.input_grad}, OpKind::local,
         activation(kScratchOwner, 768));
      op("dw", {at.output_grad, at.input, tensor("gradients", 0)}, {tensor("gradients", 0)});
      if (extra) extra();
    });
  }
  void start(GraphCache& graphs) {
    graphs.start("training", ledger_.memory());
    graphs.set_state(GraphCache::State::capturing);
  }
  /// Both forwards, then both backwards.
  TouchedMemory step(const std::function<void()>& in_forward = {}, const std::function<void()>& in_backward = {}) {
    GraphCache graphs;
    start(graphs);
    for (const int microbatch : {0, 1}) {
      for (const int layer : {0, 1}) forward(graphs, microbatch, layer, in_forward);
    }
    for (const int microbatch : {0, 1}) {
      for (const int layer : {1, 0}) backward(graphs, microbatch, layer, in_backward);
    }
    return touched_memory(graphs, ledger_.blocks());
  }

  static std::size_t owner(std::string_view name) {
    return static_cast<std::size_t>(std::ranges::find(kTouchedOwners, name) - kTouchedOwners.begin());
  }
  static Index in(const TouchedMemory& touched, Role role, std::string_view of) { return touched.in(role, owner(of)); }
  static Index shared(const TouchedMemory& touched, Role a, Role b) {
    return touched.shared[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
  }

  MemoryLedger ledger_{Device::cpu};
  std::vector<Buffer> buffers_;
  Layer layers_[2][2];
  Exec ex_;
};

TEST_F(TouchedMemoryTest, CountsWhatIsAliveAtOnce) {
  const TouchedMemory touched = step();
  EXPECT_EQ(touched.inputs, (TouchedMemory::Buffers{4, 4 * kActivation})) << "read in two parts, which are one";
  EXPECT_EQ(touched.saved, (TouchedMemory::Buffers{4, 4 * kActivation}));
  EXPECT_EQ(touched.outputs, (TouchedMemory::Buffers{3, 3 * kActivation})) << "microbatches share the send buffer";
  EXPECT_EQ(touched.output_grads, (TouchedMemory::Buffers{1, kActivation}));
}

TEST_F(TouchedMemoryTest, SaysWhereEverythingLiesAndWhatIsTheSame) {
  const TouchedMemory touched = step();
  EXPECT_EQ(in(touched, Role::layer_input, "activations"), 2 * kActivation);
  EXPECT_EQ(in(touched, Role::chunk_input, "activations"), 2 * kActivation);
  EXPECT_EQ(in(touched, Role::saved, "activations"), 4 * kActivation);
  EXPECT_EQ(in(touched, Role::output, "activations"), 2 * kActivation);
  EXPECT_EQ(in(touched, Role::output, "pipeline buffers"), kActivation);
  EXPECT_EQ(in(touched, Role::output_grad, kScratchOwner), kActivation);
  EXPECT_EQ(in(touched, Role::output_grad, "pipeline buffers"), kActivation);
  EXPECT_EQ(in(touched, Role::input_grad, kScratchOwner), 2 * kActivation);
  EXPECT_EQ(in(touched, Role::step_state, "inputs"), 8);
  EXPECT_EQ(in(touched, Role::weights, "parameters"), kActivation);
  EXPECT_EQ(in(touched, Role::weights, "gradients"), kActivation);
  EXPECT_EQ(in(touched, Role::any, kScratchOwner), 4 * kActivation) << "two gradients, what is inner, an op's scratch";
  EXPECT_EQ(in(touched, Role::any, "elsewhere"), 0);
  EXPECT_EQ(shared(touched, Role::layer_input, Role::output), 2 * kActivation);
  EXPECT_EQ(shared(touched, Role::output, Role::layer_input), 2 * kActivation);
  EXPECT_EQ(shared(touched, Role::chunk_input, Role::output), 0);
  EXPECT_EQ(shared(touched, Role::output_grad, Role::input_grad), kActivation);
  EXPECT_EQ(shared(touched, Role::saved, Role::layer_input), 0);
}

TEST_F(TouchedMemoryTest, SeesTwoMicrobatchesInFlightWithOneInput) {
  layers_[1][1].input = layers_[0][1].input;
  EXPECT_EQ(step().inputs, (TouchedMemory::Buffers{3, 3 * kActivation}));
}

TEST_F(TouchedMemoryTest, SeesAnInputTooMany) {
  const TouchedMemory touched = step([&] { op("more", {activation("pipeline buffers", 256)}, {layers_[0][0].saved}); });
  EXPECT_EQ(touched.inputs, (TouchedMemory::Buffers{5, 5 * kActivation})) << "one that all have in common";
}

TEST_F(TouchedMemoryTest, SeesAResultThatNobodyWasMeantToGet) {
  const TouchedMemory touched = step([&] { op("more", {}, {activation("activations", 960)}); });
  EXPECT_EQ(touched.outputs, (TouchedMemory::Buffers{4, 4 * kActivation}));
}

TEST_F(TouchedMemoryTest, SeesABackwardThatReadsWhatOnlyItsForwardHadInScratch) {
  const TouchedMemory touched = step({}, [&] { op("late", {activation(kScratchOwner, 512)}, {}); });
  EXPECT_EQ(touched.output_grads, (TouchedMemory::Buffers{2, 2 * kActivation}));
  EXPECT_EQ(touched.saved.bytes, 4 * kActivation);
}

TEST_F(TouchedMemoryTest, SeesMemoryThatNoOwnerOfTheStepHas) {
  buffers_.push_back(ledger_.take("something else", 256));
  const TouchedMemory touched = step([&] { op("stray", {tensor("something else", 0)}, {}); });
  EXPECT_EQ(in(touched, Role::any, "elsewhere"), kActivation);
}

TEST_F(TouchedMemoryTest, RefusesABackwardWithoutItsForward) {
  GraphCache graphs;
  start(graphs);
  forward(graphs, 0, 0);
  backward(graphs, 0, 0);
  backward(graphs, 0, 0);
  try {
    touched_memory(graphs, ledger_.blocks());
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "[graphs] chunk 0, instance 0, layer 0: a backward without its forward");
  }
}

TEST_F(TouchedMemoryTest, CountsCallsBetweenRanksAndNotTheirWaits) {
  GraphCache graphs;
  start(graphs);
  forward(graphs, 0, 0);
  EXPECT_EQ(graphs.stats().ops, 6);
  EXPECT_EQ(graphs.stats().comm_calls, 2);
}

}  // namespace
}  // namespace megalith::capture
