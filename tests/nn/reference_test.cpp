#include "tests/support/reference.h"

#include <gtest/gtest.h>

#include "tests/nn/layer_harness.h"

// One block against PyTorch in f64 (tests/reference/make_reference.py): output and every gradient.
namespace megalith {
namespace {

TEST(Reference, BlockEqualsPyTorch) {
  const support::Reference reference;
  const nlohmann::json& want = reference.json().at("block");
  comm::run_ranks(1, [&](comm::World& world) {
    const nn::GptLayerConfig config{.hidden_size = reference.size("hidden_size"),
                                    .num_heads = reference.size("num_heads"),
                                    .ffn_hidden_size = reference.size("ffn_hidden_size")};
    const nn::TensorParallel tp = support::whole_rows(world.all());
    support::LayerParams layer(support::GptLayers::specs("layers", 1, config, tp));
    reference.load_weights(layer.params.dense());
    const nn::SublayerStack block = support::GptLayers::stack("layers", 0, 1, config, tp, layer.params);
    const Index tokens = reference.size("batch") * reference.size("seq_len");
    StepState state;
    const nn::Microbatch microbatch{reference.size("batch"), reference.size("seq_len"),
                                    Tensor(&state, {sizeof(state)}, DType::u8)};
    std::vector<double> x = want.at("x"), dy = want.at("dy");
    const Shape shape{tokens, config.hidden_size};
    Exec ex;
    const Tensor y = ex.tensor(shape, DType::f64), dx = ex.tensor(shape, DType::f64);
    nn::SublayerStack::Saved saved = block.make_saved();
    block.forward(ex, microbatch, Tensor(x.data(), shape, DType::f64), y, saved);
    block.backward(ex, microbatch, {Tensor(dy.data(), shape, DType::f64)}, dx, saved);
    EXPECT_LT(support::relative_error(support::values_of(y), want.at("y")), 1e-13);
    EXPECT_LT(support::relative_error(support::values_of(dx), want.at("dx")), 1e-12);
    for (const auto& [name, gradient] : want.at("gradients").items()) {
      EXPECT_LT(support::relative_error(support::values_of(layer.params.at(name).grad), gradient), 1e-12) << name;
    }
  });
}

}  // namespace
}  // namespace megalith
