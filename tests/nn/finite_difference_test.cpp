#include <gtest/gtest.h>

#include "tests/nn/layer_harness.h"

// Each layer's backward against central differences of its forward, in f64 on one rank.
namespace megalith {
namespace {

using support::LayerParams;
using support::SmallMicrobatch;

constexpr double kTolerance = 1e-7;  // of central differences with h = 1e-5: h^2 and rounding both near 1e-10

/// Compares dx and every parameter's gradient with differences of `loss`.
void expect_gradients(LayerParams& layer, const Tensor& x, const Tensor& dx, const std::function<double()>& loss) {
  if (x) {
    EXPECT_LT(support::relative_error(support::values_of(dx), support::numeric_gradient(x, loss)), kTolerance) << "dx";
  }
  for (const ParamBuffer& buffer : layer.params.trained()) {
    for (const Param& param : buffer.params()) {
      EXPECT_LT(support::relative_error(support::values_of(param.grad), support::numeric_gradient(param.value, loss)),
                kTolerance)
          << param.name();
    }
  }
}

void with_solo_group(const std::function<void(const comm::Group&)>& body) {
  comm::run_ranks(1, [&](comm::World& world) { body(world.all()); });
}

/// Layers as in a model. Each but the first ends the one before in its first norm, and makes the gradient of that one's
/// last bias; so does the op that makes dy for the last, as a head's norm does.
void check_layers(Index count, const nn::GptLayerConfig& config, nn::NormPlacement placement = nn::NormPlacement::pre) {
  with_solo_group([&](const comm::Group& group) {
    const nn::TensorParallel tp = support::whole_rows(group);
    const nn::LayerGroups groups{tp, nn::ExpertParallel(tp, group, group, group)};
    LayerParams layer(support::GptLayers::specs("b", count, config, groups));
    const nn::SublayerStack layers = support::GptLayers::stack("b", 0, count, config, groups, layer.params, placement);
    SmallMicrobatch microbatch;
    Exec ex;
    const Index experts = config.experts ? config.experts->config.num_experts : 0;
    const Tensor totals = ex.tensor({nn::MoeTotals::in(nullptr, 1, experts).bytes() / 8}, DType::f64);
    microbatch.moe.totals = nn::MoeTotals::in(static_cast<std::byte*>(totals.raw()), experts > 0 ? 1 : 0, experts);
    microbatch.make_rope_table(ex, config);
    const Tensor x = support::random_tensor(ex, {6, 8}, 1), dy = support::random_tensor(ex, {6, 8}, 2);
    const Tensor y = ex.tensor({6, 8}, DType::f64), dx = ex.tensor({6, 8}, DType::f64);
    nn::SublayerStack::Saved saved = layers.make_saved();
    saved.take_host_memory(Device::cpu);
    layers.forward(ex, microbatch.get(), x, y, saved);
    const Tensor bias_grad = layers.output_bias_grad();
    EXPECT_EQ(static_cast<bool>(bias_grad),
              config.dropout == 0 && config.biases == nn::Biases::all && placement == nn::NormPlacement::pre);
    if (bias_grad) ops::bias_backward(ex, dy, bias_grad);
    layers.backward(ex, microbatch.get(), {dy, bias_grad}, dx, saved);
    expect_gradients(layer, x, dx, [&] {
      Exec scratch;
      nn::SublayerStack::Saved ignored = layers.make_saved();
      ignored.take_host_memory(Device::cpu);
      ops::fill(scratch, totals, 0);
      layers.forward(scratch, microbatch.get(), x, y, ignored);
      const double balance = experts == 0 ? 0
                                          : microbatch.moe.totals.load_loss(0).data<double>()[0] +
                                                microbatch.moe.totals.z_loss(0).data<double>()[0];
      return support::dot(y, dy) + microbatch.state.loss_scale * balance;
    });
  });
}

TEST(FiniteDifference, ALayer) { check_layers(1, support::small_block()); }
TEST(FiniteDifference, ALayerWithDropout) { check_layers(1, support::small_block(0.3)); }
TEST(FiniteDifference, ALayerAfterAnother) { check_layers(2, support::small_block()); }
TEST(FiniteDifference, ALayerAfterAnotherWithDropout) { check_layers(2, support::small_block(0.3)); }
TEST(FiniteDifference, LlamaLayers) { check_layers(2, support::small_llama_block()); }
TEST(FiniteDifference, LlamaLayersWithDropout) { check_layers(2, support::small_llama_block(0.3)); }
TEST(FiniteDifference, PostNormLayers) {
  for (const double dropout : {0.0, 0.3}) {
    for (const nn::GptLayerConfig& config : {support::small_block(dropout), support::small_llama_block(dropout)}) {
      for (const Index count : {1, 2}) check_layers(count, config, nn::NormPlacement::post);
    }
  }
}
TEST(FiniteDifference, LayersWithExperts) {
  using Change = void (*)(nn::MoeSpec&);
  constexpr Change kChanges[] = {
      [](auto&) {},
      [](auto& m) { m.config.top_k = 1; },
      [](auto& m) { m.config.top_k = 4; },
      [](auto& m) { m.config.score_before_top_k = false; },
      [](auto& m) { m.config.normalize_top_k = true, m.config.scale = 2; },
      [](auto& m) { m.config.score = ops::RouterScore::sigmoid, m.config.normalize_top_k = true; },
      [](auto& m) { m.config.num_groups = 2, m.config.group_top_k = 1; },
      [](auto& m) { m.config.shared_ffn_hidden_size = 5; },
      [](auto& m) { m.config.shared_ffn_hidden_size = 5, m.config.shared_gate = true; },
      [](auto& m) { m.activation = nn::Activation::gelu, m.config.shared_ffn_hidden_size = 5; },
      [](auto& m) { m.config.aux_loss = 0.5; },
      [](auto& m) { m.config.aux_loss = 0.5, m.config.aux_scope = nn::AuxScope::sequence; },
      [](auto& m) { m.config.aux_loss = 0.5, m.config.score = ops::RouterScore::sigmoid; },
      [](auto& m) { m.config.z_loss = 0.3; },
      [](auto& m) { m.config.capacity = nn::ExpertCapacity::drop, m.config.capacity_factor = 1; },
      [](auto& m) { m.config.capacity = nn::ExpertCapacity::pad, m.config.capacity_factor = 1; }};
  for (std::size_t i = 0; i < std::size(kChanges); ++i) {
    SCOPED_TRACE(i);
    nn::GptLayerConfig config = support::small_llama_block();
    nn::MoeSpec experts{.config = {}, .activation = nn::Activation::swiglu, .capacity_run = 3};
    experts.config.num_experts = 4;
    experts.config.ffn_hidden_size = 6;
    kChanges[i](experts);
    config.experts = experts;
    check_layers(1, config);
  }
}

TEST(FiniteDifference, LayersOfEachPartByItself) {
  using Change = void (*)(nn::GptLayerConfig&);
  constexpr Change kChanges[] = {[](auto& c) { c.norm = nn::NormKind::rms; },
                                 [](auto& c) { c.num_kv_heads = 2; },
                                 [](auto& c) { c.num_kv_heads = 1, c.head_dim = 3; },
                                 [](auto& c) { c.position = nn::PositionKind::rope, c.head_dim = 2; },
                                 [](auto& c) { c.activation = nn::Activation::swiglu; },
                                 [](auto& c) { c.activation = nn::Activation::gelu_erf; },
                                 [](auto& c) { c.activation = nn::Activation::gelu_erf, c.biases = nn::Biases::none; },
                                 [](auto& c) { c.qk_norm = nn::QkNorm::head; },
                                 [](auto& c) { c.qk_norm = nn::QkNorm::all, c.num_kv_heads = 2; },
                                 [](auto& c) { c.biases = nn::Biases::qkv; },
                                 [](auto& c) { c.biases = nn::Biases::none; }};
  for (std::size_t i = 0; i < std::size(kChanges); ++i) {
    SCOPED_TRACE(i);
    nn::GptLayerConfig config = support::small_block();
    kChanges[i](config);
    check_layers(2, config);
  }
}

void check_norm(nn::NormKind kind) {
  with_solo_group([kind](const comm::Group& group) {
    const nn::NormSpec spec{"norm", 1e-5, kind};
    std::vector<ParamSpec> specs;
    nn::Norm::declare(specs, spec, 5, support::whole_rows(group));
    LayerParams layer(std::move(specs));
    const nn::Norm norm(spec, layer.params);
    Exec ex;
    const Tensor x = support::random_tensor(ex, {4, 5}, 1), dy = support::random_tensor(ex, {4, 5}, 2);
    const Tensor dx = ex.tensor({4, 5}, DType::f64);
    nn::Norm::Saved saved;
    norm.forward(ex, x, saved);
    norm.backward(ex, dy, saved, {}, {dx});
    expect_gradients(layer, x, dx, [&] {
      Exec scratch;
      nn::Norm::Saved ignored;
      return support::dot(norm.forward(scratch, x, ignored), dy);
    });
  });
}

TEST(FiniteDifference, LayerNorm) { check_norm(nn::NormKind::layer); }
TEST(FiniteDifference, RmsNorm) { check_norm(nn::NormKind::rms); }

TEST(FiniteDifference, LinearLayers) {
  with_solo_group([](const comm::Group& group) {
    const nn::TensorParallel tp = support::whole_rows(group);
    LayerParams layer({nn::rows_split("up", 6, 4, group, 1), nn::vector_split("up_bias", {6}, group),
                       nn::columns_split("down", 3, 6, group, 1),
                       nn::replicated("down_bias", {3}, group, Init::zeros)});
    const nn::ColumnParallelLinear up(tp, layer.params.at("up"), layer.params.find("up_bias"));
    const nn::RowParallelLinear down(tp, layer.params.at("down"), layer.params.find("down_bias"));
    Exec ex;
    const Tensor x = support::random_tensor(ex, {5, 4}, 1), dy = support::random_tensor(ex, {5, 3}, 2);
    struct Results {
      Tensor h, y;
    };
    const auto forward = [&](Exec& e) {
      Results r;
      nn::TensorParallel::InRegion rows = up.to_region(e, x, {});
      rows.messages.wait(e);
      up.forward(e, rows.x, r.h, {});
      down.forward(e, r.h, r.y, {}).wait(e);
      ops::add_bias(e, r.y, down.bias()->value);
      return r;
    };
    const Results results = forward(ex);
    const Tensor dh = ex.tensor({5, 6}, DType::f64), dx = ex.tensor({5, 4}, DType::f64);
    down.backward_input(ex, dy, dh);
    const nn::BackwardInRegion gathered_down{down.to_region_backward(ex, dy), {}};
    down.backward_weight(ex, gathered_down, results.h, ops::Write::accumulate);
    nn::TensorParallel::InRegion gathered = up.to_region_backward(ex, x);
    gathered.messages.wait(ex);
    nn::InFlight sums = up.backward_input(ex, dh, dx);
    up.backward_weight(ex, dh, gathered.x, ops::Write::overwrite);
    sums.wait(ex);
    expect_gradients(layer, x, dx, [&] {
      Exec scratch;
      return support::dot(forward(scratch).y, dy);
    });
  });
}

/// The types of the tokens of an embedding.
enum class TokenTypes : std::uint8_t { none, zeros, given };

/// With or without a norm after the sum of the tables.
void check_embedding(const std::optional<nn::NormSpec>& norm, TokenTypes types = TokenTypes::none) {
  with_solo_group([&norm, types](const comm::Group& group) {
    const nn::TensorParallel tp = support::whole_rows(group);
    const nn::VocabShard vocab = nn::vocab_shard(7, 10, group);
    std::vector<ParamSpec> specs = {nn::token_table("table", vocab, 4, 1),
                                    nn::replicated("position", {3, 4}, group, Init::normal, 1)};
    if (types != TokenTypes::none) specs.push_back(nn::replicated("types", {3, 4}, group, Init::normal, 1));
    if (norm) nn::Norm::declare(specs, *norm, 4, tp);
    LayerParams layer(std::move(specs));
    const nn::VocabParallelEmbedding embedding(
        vocab, tp,
        {.table = layer.params.at("table"),
         .position = layer.params.find("position"),
         .types = layer.params.find("types"),
         .dropout = {0.25, 5, 0},
         .norm = norm ? std::optional(nn::Norm(*norm, layer.params)) : std::nullopt});
    nn::VocabParallelEmbedding::Saved saved;
    SmallMicrobatch microbatch;
    std::int32_t ids[] = {0, 6, 2, 2, 6, 5};
    std::int32_t of_type[] = {0, 0, 2, 0, 2, 2};
    const nn::VocabParallelEmbedding::Ids tokens{
        .tokens = Tensor(ids, {6}, DType::i32),
        .types = types == TokenTypes::given ? Tensor(of_type, {6}, DType::i32) : Tensor()};
    Exec ex;
    const Tensor y = ex.tensor({6, 4}, DType::f64), dy = support::random_tensor(ex, {6, 4}, 2);
    embedding.forward(ex, microbatch.get(), tokens, y, saved);
    embedding.backward_weight(ex, microbatch.get(), tokens, dy, saved);
    expect_gradients(layer, {}, {}, [&] {
      Exec scratch;
      nn::VocabParallelEmbedding::Saved ignored;
      embedding.forward(scratch, microbatch.get(), tokens, y, ignored);
      return support::dot(y, dy);
    });
  });
}

TEST(FiniteDifference, EmbeddingWithDropout) { check_embedding(std::nullopt); }
TEST(FiniteDifference, EmbeddingWithANormAndDropout) {
  check_embedding(nn::NormSpec{"norm"});
  check_embedding(nn::NormSpec{"norm", 1e-5, nn::NormKind::rms});
}

TEST(FiniteDifference, EmbeddingWithTypes) {
  check_embedding(std::nullopt, TokenTypes::zeros);
  check_embedding(std::nullopt, TokenTypes::given);
  check_embedding(nn::NormSpec{"norm"}, TokenTypes::given);
}

void check_head(const std::optional<nn::NormSpec>& norm) {
  with_solo_group([&norm](const comm::Group& group) {
    const nn::TensorParallel tp = support::whole_rows(group);
    const nn::VocabShard vocab = nn::vocab_shard(7, 10, group);
    std::vector<ParamSpec> specs = {nn::token_table("table", vocab, 4, 1)};
    if (norm) nn::Norm::declare(specs, *norm, 4, tp);
    LayerParams layer(std::move(specs));
    const nn::LmHead head(vocab, tp, norm ? std::optional(nn::Norm(*norm, layer.params)) : std::nullopt,
                          layer.params.at("table"));
    SmallMicrobatch microbatch;
    std::int32_t ids[] = {0, 6, -1, 2, 6, 5};  // the third token has no loss
    const Tensor targets(ids, {6}, DType::i32);
    Exec ex;
    double sum = 0;
    const Tensor loss_sum(&sum, {1}, DType::f64);
    const Tensor x = support::random_tensor(ex, {6, 4}, 1), dx = ex.tensor({6, 4}, DType::f64);
    const std::unique_ptr<nn::Head::Saved> saved = head.make_saved();
    const nn::HeadInputs inputs{targets, loss_sum};
    const Tensor loss = head.forward(ex, microbatch.get(), x, inputs, *saved);
    EXPECT_EQ(loss.data<double>()[2], 0);
    head.backward(ex, microbatch.get(), inputs, *saved, {dx});
    // Padding rows are no parameters: their gradient is exactly zero, and they do not enter the comparison.
    Param& table = layer.params.at("table");
    for (Index i = 7 * 4; i < 10 * 4; ++i) EXPECT_EQ(table.grad.data<double>()[i], 0) << i;
    expect_gradients(layer, x, dx, [&] {
      Exec scratch;
      const std::unique_ptr<nn::Head::Saved> ignored = head.make_saved();
      sum = 0;
      head.forward(scratch, microbatch.get(), x, inputs, *ignored);
      return sum * microbatch.state.loss_scale;
    });
  });
}

TEST(FiniteDifference, LmHead) { check_head(nn::NormSpec{"norm"}); }
TEST(FiniteDifference, LmHeadAfterPostNormLayers) { check_head(std::nullopt); }

}  // namespace
}  // namespace megalith
