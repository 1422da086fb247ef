#include "tests/eval/whole_model.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/host_limits.h"
#include "megalith/base/str.h"
#include "megalith/model/layer_groups.h"

namespace megalith::eval {
namespace {

model::ChunkRange whole(const model::ModelConfig& model) { return {{0, model.num_layers}, true, true}; }

nn::LayerGroups one_rank(const model::ModelConfig& model, const comm::Mesh& mesh) {
  return model::layer_groups({mesh.tp, nn::SequenceParallel::off, 1}, model, mesh);
}

}  // namespace

WholeModel::WholeModel(const model::ModelConfig& model, const comm::Mesh& mesh, DType dtype, Device device)
    : model_(model),
      params_(model::declare_model(model::model_spec(model), {whole(model)}, one_rank(model, mesh)),
              Policy{dtype, dtype}, ParamContents::values),
      ex_(device),
      ledger_(device),
      host_tokens_(static_cast<std::size_t>(model.seq_len)),
      host_targets_(static_cast<std::size_t>(model.seq_len)),
      logits_(static_cast<std::size_t>(model.vocab_size)) {
  if (mesh.world.size() != 1) throw InternalError("[WholeModel] mesh: must be of one rank");
  require_host_memory("the model", total(params_.bytes()));
  params_.allocate(ledger_);
  chunk_ = std::make_unique<model::Chunk>(model::model_spec(model), whole(model), one_rank(model, mesh), params_,
                                          model::ChunkConfig{});
  saved_ = chunk_->make_saved();
  saved_.take_host_memory(device);
  const Index ids = round_up(model.seq_len * size_of(DType::i32), kAlignment);
  inputs_ = ledger_.take("inputs", 2 * ids + kAlignment);
  tokens_ = inputs_.view({model.seq_len}, DType::i32);
  targets_ = inputs_.view({model.seq_len}, DType::i32, ids);
  loss_sum_ = inputs_.view({1}, DType::f64, 2 * ids);
  if (model.has_rope()) make_rope_table(statistics_dtype(dtype));
}

void WholeModel::make_rope_table(DType dtype) {
  const Shape shape = model_.rope_table_shape();
  require_host_memory("the rotations", bytes_of(shape, dtype));
  rope_memory_ = ledger_.take("rotations", bytes_of(shape, dtype));
  rope_table_ = rope_memory_.view(shape, dtype);
  ops::rope_table(ex_, model_.rope_frequencies(), rope_table_);
}

void WholeModel::require_host_memory(std::string_view what, Index bytes) const {
  if (ex_.device() == Device::cpu)
    require_memory(host_limits(), bytes, what, "use a machine or a control group with more, or a smaller model");
}

void WholeModel::fill_params(const ReadValues& read) { eval::fill_params(ex_, params_, params_.policy().master, read); }

Tensor WholeModel::ask(Exec& ex, Question question, Index row, const model::Chunk::Inputs& inputs) {
  return question == Question::last_logits ? chunk_->logits(ex, inputs, {}, {row, 1}, saved_)
                                           : chunk_->token_losses(ex, inputs, saved_);
}

Index WholeModel::pass_tokens(Index window) const { return std::min(round_up(window, kWindowStep), model_.seq_len); }

const MemoryPlan& WholeModel::plan_for(Question question, const model::Chunk::Inputs& inputs) {
  const auto [place, is_new] = plans_.try_emplace({question, inputs.microbatch.tokens()});
  MemoryPlan& plan = place->second;
  if (is_new) {
    Recording recording;
    Exec recorder(ex_.device(), recording);
    recording.begin_phase();
    ask(recorder, question, 0, inputs);
    plan = make_plan(recording);
  }
  if (scratch_.bytes() < plan.scratch_bytes) {
    scratch_ = {};  // both at once need not fit
    require_host_memory(str("a window of ", inputs.microbatch.tokens(), " tokens"), plan.scratch_bytes);
    scratch_ = ledger_.take(kScratchOwner, plan.scratch_bytes);
  }
  return plan;
}

Tensor WholeModel::run(Question question, Index window) {
  const Index tokens = pass_tokens(window);
  const model::Chunk::Inputs inputs{
      {.batch = 1, .seq_len = tokens, .step_state = {}, .mode = nn::Mode::evaluate, .rope_table = rope_table_},
      {tokens_.rows(0, tokens), targets_.rows(0, tokens)},
      loss_sum_};
  const MemoryPlan& plan = plan_for(question, inputs);  // may replace the scratch memory
  ex_.begin(plan.phases[0], nullptr, scratch_.data());
  const Tensor answer = ask(ex_, question, window - 1, inputs);
  ex_.end();
  return answer;
}

void WholeModel::put_tokens(std::span<const std::int32_t> window) {
  if (window.empty() || static_cast<Index>(window.size()) > model_.seq_len) {
    throw InternalError(str("[WholeModel] a window of ", window.size(), " tokens: must be 1 to ", model_.seq_len));
  }
  // Attention is causal: what stands after the last token (zeros) cannot change what comes before.
  const auto rest = std::ranges::copy(window, host_tokens_.begin()).out;
  std::fill(rest, host_tokens_.end(), 0);
  ex_.copy(tokens_.raw(), host_tokens_.data(), tokens_.bytes());
}

void WholeModel::read(const Tensor& from, std::span<double> to) {
  dispatch_float(from.dtype(), "WholeModel", [&]<class T>() {
    std::vector<T> host(to.size());
    ex_.copy(host.data(), from.raw(), static_cast<Index>(host.size() * sizeof(T)));
    ex_.synchronize();
    std::ranges::transform(host, to.begin(), [](T value) { return converted<double>(value); });
  });
}

std::span<const double> WholeModel::last_logits(std::span<const std::int32_t> window) {
  put_tokens(window);
  read(run(Question::last_logits, static_cast<Index>(window.size())), logits_);
  return logits_;
}

std::vector<double> WholeModel::log_probabilities(std::span<const std::int32_t> window) {
  put_tokens(window);
  if (window.size() == 1) return {};
  const auto rest = std::ranges::copy(window.subspan(1), host_targets_.begin()).out;
  std::fill(rest, host_targets_.end(), model::kNoTarget);
  ex_.copy(targets_.raw(), host_targets_.data(), targets_.bytes());
  std::vector<double> answer(window.size() - 1);
  read(run(Question::losses, static_cast<Index>(window.size())), answer);
  for (double& one : answer) one = -one;
  return answer;
}

}  // namespace megalith::eval
