#include "megalith/model/chunk.h"

#include <algorithm>

#include "megalith/comm/mesh.h"
#include "megalith/comm/world.h"
#include "megalith/grid/parallel_config.h"
#include "megalith/model/layer_groups.h"
#include "megalith/nn/lm_head.h"
#include "megalith/nn/param_specs.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/rows.h"

namespace megalith::model {
namespace {

constexpr const char *kPositionTable = "embedding.position.weight", *kTypeTable = "embedding.type.weight";

nn::SublayerStack make_layers(const ModelSpec& model, const grid::LayerRange& layers, const nn::LayerGroups& groups,
                              ParamSet& params, const ChunkConfig& config) {
  nn::SublayerOptions options{config.seed, config.recompute, config.group_alignment};
  std::vector<nn::SublayerStack::Entry> entries;
  for (Index layer = layers.begin; layer < layers.end; ++layer) {
    options.gemms = nn::gemm_formats(params.policy().gemms, config.fp8, layer, config.model_layers);
    options.expert_gemms = nn::expert_formats(options.gemms, config.fp8, model.stream.hidden_size);
    const std::span<const nn::SublayerSpec> sublayers = model.of_layers(layer, layer + 1);
    const bool has_experts = std::ranges::any_of(
        sublayers, [](const nn::SublayerSpec& spec) { return std::holds_alternative<nn::MoeSpec>(spec.body); });
    const nn::LayerEdges& edges = has_experts ? config.capture.layers.moe : config.capture.layers.dense;
    for (std::size_t k = 0; k < sublayers.size(); ++k) {
      options.captured_end = nn::captured_end(edges, k);
      entries.push_back(nn::make_entry(sublayers[k], options, groups, params));
    }
  }
  return {groups.tp, std::move(entries), config.recompute, model.stream.norm_placement};
}

nn::VocabShard vocab_shard(const ModelSpec& model, const nn::TensorParallel& tp) {
  return nn::vocab_shard(model.embedding.vocab_size, model.embedding.padded_vocab_size, tp.group());
}

nn::HeadInputs head_inputs(const Chunk::Inputs& inputs) {
  return {.targets = inputs.batch.targets,
          .loss_sums = inputs.loss_sums,
          .rows = inputs.batch.rows,
          .row_of = inputs.batch.row_of,
          .labels = inputs.batch.labels,
          .label_state = inputs.label_state,
          .numbers = inputs.numbers};
}

void declare_head(std::vector<ParamSpec>& specs, const ModelSpec& model, const nn::TensorParallel& tp) {
  if (const auto* bert = std::get_if<nn::BertHeadSpec>(&model.head.body))
    nn::BertHead::declare(specs, *bert, vocab_shard(model, tp), model.stream, tp.group());
  if (const auto* task = std::get_if<nn::TaskHeadSpec>(&model.head.body))
    nn::TaskHead::declare(specs, *task, model.stream, tp.group());
}

std::unique_ptr<nn::Head> make_head(const ModelSpec& model, const nn::TensorParallel& tp, ParamSet& params,
                                    std::optional<nn::Norm> norm, const ChunkConfig& config) {
  if (const auto* task = std::get_if<nn::TaskHeadSpec>(&model.head.body))
    return std::make_unique<nn::TaskHead>(*task, tp, params, std::move(norm), config.seed);
  Param& table = params.at(model.head.tying == Tying::tied ? kTokenTable : kHeadTable);
  if (const auto* bert = std::get_if<nn::BertHeadSpec>(&model.head.body))
    return std::make_unique<nn::BertHead>(*bert, vocab_shard(model, tp), tp, params,
                                          nn::BertHead::Parts{std::move(norm), table});
  return std::make_unique<nn::LmHead>(vocab_shard(model, tp), tp, std::move(norm), table,
                                      nn::head_formats(params.policy().gemms, config.fp8));
}

/// Gathers layers' parameters before they are read, and sends their gradients once they are done. The memory plan has
/// neither.
class LayerTraffic final : public nn::LayerEvents {
 public:
  LayerTraffic(optim::ParamExchange* values, optim::ParamExchange* gradients)
      : values_(values), gradients_(gradients) {}
  void layer_needed(Exec& ex, Index layer) override {
    if (values_ != nullptr) ex.unplanned([&] { values_->layer_needed(ex, layer); });
  }
  void layer_begins(Exec& ex, Index layer) override {
    if (gradients_ != nullptr) ex.unplanned([&] { gradients_->layer_begins(ex, layer); });
  }
  void layer_done(Exec& ex, Index layer) override {
    if (gradients_ != nullptr) ex.unplanned([&] { gradients_->layer_done(ex, layer); });
  }

 private:
  optim::ParamExchange *values_, *gradients_;
};

}  // namespace

std::vector<ParamSpec> declare_model(const ModelSpec& model, const std::vector<ChunkRange>& chunks,
                                     const nn::LayerGroups& groups) {
  const nn::TensorParallel& tp = groups.tp;
  std::vector<ParamSpec> specs;
  const Index hidden_size = model.stream.hidden_size;
  const double init_std = model.stream.init_std;
  const bool ends = std::any_of(chunks.begin(), chunks.end(), [](const ChunkRange& c) { return c.head; });
  const bool embeds = std::any_of(chunks.begin(), chunks.end(), [](const ChunkRange& c) { return c.embedding; });
  const bool reads_table = !std::holds_alternative<nn::TaskHeadSpec>(model.head.body);
  const bool tied = model.head.tying == Tying::tied && reads_table;
  ParamSpec table = nn::token_table(kTokenTable, vocab_shard(model, tp), hidden_size, init_std);
  ParamSpec head = tied ? table : nn::token_table(kHeadTable, vocab_shard(model, tp), hidden_size, init_std);
  if (tied && (!embeds || !ends)) table.placement = head.placement = grid::kTiedEnds;
  head.first_grad = FirstGrad::overwritten;  // by the head's GEMM, which comes first in backward
  if (tied && ends) table.first_grad = FirstGrad::overwritten;
  for (const ChunkRange& chunk : chunks) {
    if (chunk.embedding) {
      specs.push_back(table);
      if (const Index positions = model.embedding.num_positions; positions > 0)
        specs.push_back(nn::replicated(kPositionTable, {positions, hidden_size}, tp.group(), Init::normal, init_std));
      if (const Index types = model.embedding.num_types; types > 0)
        specs.push_back(nn::replicated(kTypeTable, {types, hidden_size}, tp.group(), Init::normal, init_std));
      if (model.embedding.norm) nn::Norm::declare(specs, *model.embedding.norm, hidden_size, tp);
    }
    for (const nn::SublayerSpec& spec : model.of_layers(chunk.layers.begin, chunk.layers.end))
      nn::declare(specs, spec, model.stream, groups);
    if (chunk.head) {
      if (model.head.norm) nn::Norm::declare(specs, *model.head.norm, hidden_size, tp);
      declare_head(specs, model, tp);
      if (reads_table && (!tied || !embeds)) specs.push_back(head);
    }
  }
  return specs;
}

std::vector<ParamSpec> declare_whole_model(ModelConfig model) {
  if (model.padded_vocab_size == 0) model.padded_vocab_size = model.vocab_size;
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 1);
  const comm::Mesh mesh = comm::make_mesh(*world, grid::resolve({}));
  const nn::LayerGroups groups = layer_groups({mesh.tp, nn::SequenceParallel::off, 1}, model, mesh);
  return declare_model(model_spec(model), {{{0, model.num_layers}, true, true}}, groups);
}

Chunk::Chunk(const ModelSpec& model, const ChunkRange& range, const nn::LayerGroups& groups, ParamSet& params,
             const ChunkConfig& config)
    : range_(range),
      boundaries_(config.capture.boundaries),
      tp_(groups.tp),
      hidden_size_(model.stream.hidden_size),
      dtype_(params.policy().compute),
      layers_(make_layers(model, range.layers, groups, params, config)) {
  const auto norm = [&](const std::optional<nn::NormSpec>& spec) {
    return spec ? std::optional(nn::Norm(*spec, params)) : std::nullopt;
  };
  if (range.embedding) {
    embedding_.emplace(vocab_shard(model, tp_), tp_,
                       nn::VocabParallelEmbedding::Parts{.table = params.at(kTokenTable),
                                                         .position = params.find(kPositionTable),
                                                         .types = params.find(kTypeTable),
                                                         .dropout = {model.embedding.dropout, config.seed, 0},
                                                         .norm = norm(model.embedding.norm)});
  }
  if (range.head) head_ = make_head(model, tp_, params, norm(model.head.norm), config);
}

Tensor Chunk::boundary(Exec& ex, const Inputs& inputs) const {
  return ex.tensor({tp_.rows_outside(inputs.microbatch.tokens()), hidden_size_}, dtype_);
}

void Chunk::gather_params(Exec& ex, optim::ParamExchange& values) const {
  if (embedding_) values.start(ex, kOutsideLayers);
  for (Index layer = range_.layers.begin; layer < range_.layers.end; ++layer) values.start(ex, layer);
  if (head_) values.start(ex, kOutsideLayers);
}

Tensor Chunk::body(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
                   optim::ParamExchange* values) const {
  LayerTraffic traffic(values, nullptr);
  const bool has_layers = !layers_.empty();
  Tensor x = input;
  if (embedding_) {
    traffic.layer_needed(ex, kOutsideLayers);
    x = output && !has_layers ? output : boundary(ex, inputs);
    embedding_->forward(ex, inputs.microbatch, {inputs.batch.tokens, inputs.batch.types}, x, saved.embedding);
  } else if (output && !has_layers) {
    ops::copy(ex, input, output);
    x = output;
  }
  if (!has_layers) return x;
  const Tensor y = layers_.forward(ex, inputs.microbatch, embedding_ ? x : in_fixed_buffer(ex, inputs, x),
                                   has_fixed_buffers() ? Tensor() : output, saved.layers, &traffic, inputs.graphs);
  if (!output || !has_fixed_buffers()) return y;
  ops::copy(ex, y, output);
  return output;
}

Tensor Chunk::in_fixed_buffer(Exec& ex, const Inputs& inputs, const Tensor& message) const {
  if (!has_fixed_buffers() || !message) return message;
  const Tensor own = boundary(ex, inputs);
  ops::copy(ex, message, own);
  return own;
}

void Chunk::forward(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
                    optim::ParamExchange* values) const {
  const Tensor x = body(ex, inputs, input, output, saved, values);
  if (!head_) return;
  LayerTraffic(values, nullptr).layer_needed(ex, kOutsideLayers);
  ex.set_layer(kOutsideLayers);
  head_->forward(ex, inputs.microbatch, x, head_inputs(inputs), *saved.head);
}

Tensor Chunk::logits(Exec& ex, const Inputs& inputs, const StreamEnds& ends, Rows rows, Saved& saved) const {
  const Tensor x = body(ex, inputs, ends.input, ends.output, saved, nullptr);
  return head_ ? head_->outputs(ex, x.rows(rows.first, rows.count), *saved.head) : Tensor();
}

Tensor Chunk::token_losses(Exec& ex, const Inputs& inputs, Saved& saved) const {
  const Tensor x = body(ex, inputs, {}, {}, saved, nullptr);
  return head_->forward(ex, inputs.microbatch, x, head_inputs(inputs), *saved.head);
}

void Chunk::infer(Exec& ex, const Inputs& inputs, const Tensor& input, const nn::HeadResults& results,
                  Saved& saved) const {
  const Tensor x = body(ex, inputs, input, {}, saved, nullptr);
  ex.set_layer(kOutsideLayers);
  const Tensor& asked = inputs.batch.rows;
  const Index rows = inputs.batch.targets.dim(0), samples = inputs.microbatch.batch;
  const Tensor chosen = ex.tensor({asked.dim(0), hidden_size_}, dtype_);
  ops::permute_rows(ex, {.x = x, .pair_of = asked, .rows = chosen});
  for (Index begin = 0; begin < rows && nn::has_results(results, nn::ResultOf::row); begin += kRowsOfHead) {
    const Index count = std::min(kRowsOfHead, rows - begin);
    head_->infer_rows(ex, inputs.microbatch, chosen.rows(begin, count),
                      {inputs.batch.targets.rows(begin, count), inputs.loss_sums}, nn::of_rows(results, begin, count));
  }
  if (!nn::has_results(results, nn::ResultOf::sample)) return;
  head_->infer_samples(ex, inputs.microbatch, chosen.rows(rows, samples),
                       {.targets = {}, .loss_sums = inputs.loss_sums, .labels = inputs.batch.labels}, results);
}

void Chunk::backward(Exec& ex, const Inputs& inputs, const Tensor& output_grad, const Tensor& input_grad, Saved& saved,
                     optim::ParamExchange* gradients) const {
  const bool has_layers = !layers_.empty();
  nn::GradWithBias dy{has_layers ? in_fixed_buffer(ex, inputs, output_grad) : output_grad};
  if (head_) {
    dy.grad = !has_layers && input_grad ? input_grad : boundary(ex, inputs);
    if (has_layers) dy.bias_grad = layers_.output_bias_grad();
    head_->backward(ex, inputs.microbatch, head_inputs(inputs), *saved.head, dy);
  }
  Tensor dx = dy.grad;
  if (has_layers) {
    LayerTraffic traffic(nullptr, gradients);
    dx = layers_.backward(ex, inputs.microbatch, dy, has_fixed_buffers() ? Tensor() : input_grad, saved.layers,
                          &traffic, inputs.graphs);
  }
  ex.set_layer(kOutsideLayers);
  if (embedding_) {
    embedding_->backward_weight(ex, inputs.microbatch, {inputs.batch.tokens, inputs.batch.types}, dx, saved.embedding);
  } else if (!has_layers && !head_) {
    ops::copy(ex, output_grad, input_grad);
  } else if (has_layers && has_fixed_buffers()) {
    ops::copy(ex, dx, input_grad);
  }
}

}  // namespace megalith::model
