#include "megalith/grid/layer_assignment.h"

#include <gtest/gtest.h>

#include "tests/grid/grid_testing.h"

namespace megalith::grid {
namespace {

TEST(LayerAssignment, EvenInterleaved) {
  const LayerAssignment got = LayerAssignment::even(32, 4, 2);
  EXPECT_EQ(got.at(0, 0), (LayerRange{0, 4}));
  EXPECT_EQ(got.at(3, 0), (LayerRange{12, 16}));
  EXPECT_EQ(got.at(0, 1), (LayerRange{16, 20}));
  EXPECT_EQ(got.at(3, 1), (LayerRange{28, 32}));
  EXPECT_EQ(got.pp(), 4);
  EXPECT_EQ(got.chunks(), 2);
}

TEST(LayerAssignment, UnevenStagesHoldConsecutiveLayers) {
  const std::vector<Index> stage_layers{1, 3, 0, 2};
  const LayerAssignment got = LayerAssignment::uneven(6, 2, 2, stage_layers);
  EXPECT_EQ(got.at(0, 0), (LayerRange{0, 1}));
  EXPECT_EQ(got.at(1, 0), (LayerRange{1, 4}));
  EXPECT_EQ(got.at(0, 1), (LayerRange{4, 4}));  // an empty chunk: embedding or head only
  EXPECT_EQ(got.at(1, 1), (LayerRange{4, 6}));
  EXPECT_EQ(got.at(0, 1).size(), 0);
}

TEST(LayerAssignment, EvenIsUnevenWithEqualNumbers) {
  for (int pp = 1; pp <= 4; ++pp) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      const std::vector<Index> stage_layers(static_cast<std::size_t>(pp * chunks), 5);
      const Index layers = 5 * pp * chunks;
      EXPECT_EQ(LayerAssignment::even(layers, pp, chunks).stages(),
                LayerAssignment::uneven(layers, pp, chunks, stage_layers).stages())
          << "pp " << pp << " chunks " << chunks;
    }
  }
}

std::string uneven_error(Index num_layers, const std::vector<Index>& stage_layers) {
  return config_error([&] { LayerAssignment::uneven(num_layers, 2, 2, stage_layers); });
}

TEST(LayerAssignment, Errors) {
  EXPECT_EQ(config_error([] { LayerAssignment::even(10, 4, 1); }),
            "E_LAYERS_NOT_DIVISIBLE: num_layers (10) is not divisible by 4 (pp 4 * vpp 1); stage_layers can give every "
            "stage its "
            "own number");
  EXPECT_EQ(config_error([] { LayerAssignment::even(0, 4, 1); }),
            "E_SIZE_NOT_POSITIVE: num_layers=0: every size must be at least 1");
  EXPECT_EQ(config_error([] { LayerAssignment::even(8, 4, 0); }),
            "E_SIZE_NOT_POSITIVE: vpp=0: every size must be at least 1");
  EXPECT_EQ(uneven_error(6, {1, 2, 3}), "stage_layers = 3 numbers: must be 4, one for each stage (pp 2 * vpp 2)");
  EXPECT_EQ(uneven_error(6, {1, -2, 3, 4}), "stage_layers[1] = -2: must be at least 0");
  EXPECT_EQ(uneven_error(6, {1, 2, 4, 0}),
            "stage_layers[2] = 4: the stages up to this one hold more than num_layers = 6 layers");
  EXPECT_EQ(uneven_error(6, {1, 2, 1, 1}), "stage_layers = 5 layers in all: must be num_layers = 6");
  EXPECT_EQ(config_error([] { LayerAssignment::even(8, 2, 2).at(2, 0); }), "[grid] pp rank = 2: must be in 0..1");
  EXPECT_EQ(config_error([] { LayerAssignment::even(8, 2, 2).at(0, -1); }), "[grid] chunk = -1: must be in 0..1");
}

}  // namespace
}  // namespace megalith::grid
