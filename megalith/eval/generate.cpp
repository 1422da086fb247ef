#include "megalith/eval/generate.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"

namespace megalith::eval {
namespace {

model::ChunkRange whole_model(const model::ModelConfig& model) { return {{0, model.num_layers}, true, true}; }

/// The id drawn from softmax(logits / temperature), or the largest for temperature 0.
std::int32_t draw(std::span<const double> logits, double temperature, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
  double sum = 0;
  for (const double z : logits) sum += std::exp((z - *best) / temperature);
  double left = uniform * sum;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= std::exp((logits[i] - *best) / temperature);
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(logits.size()) - 1;
}

}  // namespace

Generator::Generator(const model::ModelConfig& model, const grid::Mesh& mesh, DType dtype)
    : model_(model), params_(model::declare_gpt(model, {whole_model(model)}, mesh, 0), dtype) {
  if (mesh.world.size() != 1) throw InternalError("[Generator] mesh: text is generated on one rank");
  params_.allocate(ledger_);
  chunk_ = std::make_unique<model::GptChunk>(model, whole_model(model), mesh, params_, 0);
  saved_ = chunk_->make_saved();
  Recording recording;
  Exec recorder(Device::cpu, recording);
  recording.begin_phase();
  const model::GptChunk::Inputs inputs{
      {1, model.seq_len, {}, nn::Mode::evaluate}, Tensor(nullptr, {model.seq_len}, DType::i32), {}, {}};
  chunk_->last_logits(recorder, inputs, 0, saved_);
  plan_ = make_plan(recording);
  scratch_ = ledger_.take("scratch", plan_.scratch_bytes);
  tokens_ = ledger_.take("inputs", model.seq_len * size_of(DType::i32));
  logits_.resize(static_cast<std::size_t>(model.vocab_size));
}

std::span<const double> Generator::logits(std::span<const std::int32_t> window) {
  // Attention is causal: what stands behind the last token (zeros) cannot change its logits.
  const Tensor tokens = tokens_.view({model_.seq_len}, DType::i32);
  std::fill_n(tokens.data<std::int32_t>(), model_.seq_len, 0);
  std::copy(window.begin(), window.end(), tokens.data<std::int32_t>());
  const model::GptChunk::Inputs inputs{{1, model_.seq_len, {}, nn::Mode::evaluate}, tokens, {}, {}};
  ex_.begin(plan_.phases[0], nullptr, scratch_.data());
  const Tensor z = chunk_->last_logits(ex_, inputs, static_cast<Index>(window.size()) - 1, saved_);
  ex_.end();
  dispatch_float(z.dtype(), "generate", [&]<class T>() {
    for (std::size_t i = 0; i < logits_.size(); ++i) logits_[i] = static_cast<double>(z.data<T>()[i]);
  });
  return logits_;
}

void Generator::run(std::vector<std::int32_t> prompt, const GenerateOptions& options,
                    const std::function<bool(std::int32_t)>& token) {
  if (prompt.empty()) throw InputError("prompt = \"\": must hold at least one token");
  const RandomSite random{.seed = options.seed, .site = 1};
  for (Index n = 0; n < options.max_tokens; ++n) {
    const std::size_t length = std::min(prompt.size(), static_cast<std::size_t>(model_.seq_len));
    const std::span<const double> z = logits(std::span(prompt).last(length));
    const double uniform = static_cast<double>(random.word(static_cast<std::uint64_t>(n))) * 0x1p-32;
    const std::int32_t id = draw(z, options.temperature, uniform);
    if (id == options.stop_token || !token(id)) return;
    prompt.push_back(id);
  }
}

}  // namespace megalith::eval
