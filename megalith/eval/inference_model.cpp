#include "megalith/eval/inference_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/model/stage.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/library.h"

namespace megalith::eval {
namespace {

std::vector<model::ChunkRange> chunk_ranges(const InferenceConfig& config, const comm::Mesh& mesh) {
  return model::chunk_ranges({.model = config.model, .stage_layers = config.stage_layers, .chunks = config.chunks},
                             mesh);
}

}  // namespace

InferenceModel::InferenceModel(InferenceConfig config, comm::World& world, const comm::Mesh& mesh,
                               const PassCounts& passages)
    : config_(std::move(config)),
      world_(world),
      mesh_(mesh),
      memory_({.model = config_.model,
               .ranges = chunk_ranges(config_, mesh_),
               .tp = {mesh_.tp, nn::SequenceParallel::off, 1},
               .policy = {config_.dtype, config_.dtype},
               .device = config_.device},
              mesh_),
      ledger_(config_.device) {
  Shape widest{0, config_.model.hidden_size};
  for (const auto& [shape, count] : passages) {
    batches_[shape] = balanced_batch(count, config_.batch, mesh_.dp.size());
    plan(shape);
    if (const Shape message = memory_.message(pass(shape)).shape(); message.numel() > widest.numel()) widest = message;
  }
  pipeline::LoweredSchedule most = schedule(max_microbatches());
  for (const int slots : most.num_slots) served_.emplace_back(static_cast<std::size_t>(slots));
  executor_.emplace(std::move(most), mesh_.pp, pipeline::Executor::Boundary{widest, config_.dtype});
}

int InferenceModel::max_microbatches() const {
  constexpr int kMicrobatchesPerStage = 4, kOnGpu = 8;
  const int stages = mesh_.pp.size(), least = config_.device == Device::cpu ? 1 : kOnGpu;
  return std::max(least, stages == 1 ? 1 : kMicrobatchesPerStage * stages);
}

pipeline::LoweredSchedule InferenceModel::schedule(int microbatches) const {
  return pipeline::lower({.num_stages = mesh_.pp.size(),
                          .num_chunks = config_.chunks,
                          .num_microbatches = microbatches,
                          .group_size = config_.group_size,
                          .mode = pipeline::ScheduleMode::forward_only},
                         mesh_.pp_rank());
}

// ---- Memory ----

void InferenceModel::plan(const PassShape& shape) {
  const Tensor message = memory_.message(pass(shape));
  for (int chunk = 0; chunk < config_.chunks; ++chunk) {
    memory_.plan(pass(shape), chunk, [&](Exec& ex) {
      model::Chunk::Saved saved = memory_.chunk(chunk).make_saved();
      run_chunk(ex, chunk, shape, block(nullptr, shape, 0), memory_.input_of(chunk, message),
                memory_.output_of(chunk, message), saved);
    });
  }
}

Index InferenceModel::input_bytes(const PassShape& shape) const {
  const auto ids = [&](Index rows) { return round_up(batch(shape) * rows * size_of(DType::i32), kAlignment); };
  return ids(shape.tokens) + 2 * ids(shape.rows);
}

Index InferenceModel::result_bytes(const PassShape& shape) const {
  const auto results = [&](DType dtype) { return round_up(batch(shape) * shape.rows * size_of(dtype), kAlignment); };
  return results(statistics_dtype(config_.dtype)) + (config_.best_ids == BestIds::asked ? results(DType::i32) : 0);
}

Index InferenceModel::round_bytes() const {
  Index most = 0;
  for (const auto& [shape, batch] : batches_)
    most = std::max(most, max_microbatches() * (input_bytes(shape) + result_bytes(shape)));
  return most + kAlignment;
}

InferenceModel::Block InferenceModel::block(std::byte* round, const PassShape& shape, int microbatch) const {
  const Index rows = batch(shape) * shape.rows;
  Carver ins(round, microbatch * input_bytes(shape));
  Carver outs(round, max_microbatches() * input_bytes(shape) + microbatch * result_bytes(shape));
  Block block;
  block.tokens = ins.next({batch(shape) * shape.tokens}, DType::i32);
  block.targets = ins.next({rows}, DType::i32);
  block.rows = ins.next({rows}, DType::i32);
  block.losses = outs.next({rows}, statistics_dtype(config_.dtype));
  if (config_.best_ids == BestIds::asked) block.best_ids = outs.next({rows}, DType::i32);
  return block;
}

BytesByOwner InferenceModel::planned_bytes() const {
  BytesByOwner bytes = memory_.bytes();
  bytes[kScratchOwner] = memory_.scratch_bytes();
  bytes["inputs"] = round_bytes();
  if (mesh_.pp.size() > 1) bytes["pipeline buffers"] = executor_->buffer_bytes();
  if (const Index workspace = ops::library_workspace_bytes(config_.device); workspace > 0)
    bytes["library workspace"] = workspace;
  return bytes;
}

void InferenceModel::allocate() {
  ex_.emplace(config_.device);
  ops::start_libraries(*ex_, mesh_.tp.channel().multiprocessors());
  if (const Index workspace = ops::library_workspace_bytes(config_.device); workspace > 0)
    ledger_.note("library workspace", workspace);
  memory_.allocate(ledger_, {}, memory_.scratch_bytes());
  memory_.fill_tables(*ex_);
  round_ = ledger_.take("inputs", round_bytes());
  loss_sums_ = round_.view({1}, DType::f64, round_bytes() - kAlignment);
  for (int chunk = 0; chunk < config_.chunks; ++chunk)
    saved_.push_back(std::move(memory_.make_saved(chunk, 1).front()));
  if (config_.device != Device::cpu) host_round_ = Buffer(round_bytes(), config_.device, Side::host);
  if (mesh_.pp.size() > 1) executor_->allocate(ledger_);
  owners_.assign(static_cast<std::size_t>(mesh_.dp.size()), 0);
  const std::vector<int> served = comm::gather_values(world_.all(), is_owner() ? mesh_.dp_rank() : -1);
  for (std::size_t rank = 0; rank < served.size(); ++rank) {
    if (served[rank] >= 0) owners_[static_cast<std::size_t>(served[rank])] = static_cast<int>(rank);
  }
  if (config_.device != Device::cpu) warm_up();
}

void InferenceModel::warm_up() {
  memory_.warm_up(*ex_, [&] {
    for (const auto& [shape, batch] : batches_) {
      const Tensor message = ex_->tensor_like(memory_.message(pass(shape)));
      ops::fill(*ex_, message, 0.5);
      for (int chunk = 0; chunk < config_.chunks; ++chunk) {
        memory_.run(*ex_, pass(shape), chunk, 0, nullptr, [&] {
          run_chunk(*ex_, chunk, shape, block(round_.data(), shape, 0), memory_.input_of(chunk, message),
                    memory_.output_of(chunk, message), saved_[static_cast<std::size_t>(chunk)]);
        });
      }
      world_.wait_for(*ex_);
      ex_->release();
    }
  });
}

void InferenceModel::fill_params(DType stored, const ReadValues& read) {
  eval::fill_params(*ex_, memory_.params(), stored, read);
}

// ---- Passes ----

void InferenceModel::run_chunk(Exec& ex, int chunk, const PassShape& shape, const Block& block, const Tensor& input,
                               const Tensor& output, model::Chunk::Saved& saved) const {
  const model::Chunk::Inputs inputs{memory_.microbatch(pass(shape)), {block.tokens, block.targets}, loss_sums_};
  const model::Chunk& own = memory_.chunk(chunk);
  if (own.range().head)
    own.score(ex, inputs, input, {block.rows, block.losses, block.best_ids}, saved);
  else
    own.forward(ex, inputs, input, output, saved, nullptr);
}

void InferenceModel::set_step_state(Exec& /*ex*/, int chunk, int microbatch, int slot) {
  served_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(slot)] = microbatch;
}

void InferenceModel::forward(Exec& ex, int chunk, int slot, const Tensor& input, const Tensor& output) {
  const auto c = static_cast<std::size_t>(chunk);
  const int microbatch = served_[c][static_cast<std::size_t>(slot)];
  memory_.run(ex, pass(running_), chunk, 0, nullptr, [&] {
    run_chunk(ex, chunk, running_, block(round_.data(), running_, microbatch), input, output, saved_[c]);
  });
}

void InferenceModel::backward(Exec& /*ex*/, int /*chunk*/, int /*slot*/, const Tensor& /*output_grad*/,
                              const Tensor& /*input_grad*/, const pipeline::BackwardTurn& /*turn*/) {
  throw InternalError("[InferenceModel] backward: a forward-only schedule has none");
}
void InferenceModel::gather_params(Exec& /*ex*/, int /*chunk*/) {
  throw InternalError("[InferenceModel] gather_params: a forward-only schedule has none");
}
void InferenceModel::reduce_grads(Exec& /*ex*/) {
  throw InternalError("[InferenceModel] reduce_grads: a forward-only schedule has none");
}

void InferenceModel::fill_block(const Round& round, std::span<const Passage> passages, int microbatch) {
  std::byte* const host = config_.device == Device::cpu ? round_.data() : host_round_.data();
  const Block to = block(host, round.shape, microbatch);
  const auto tokens = to.tokens.span<std::int32_t>(), targets = to.targets.span<std::int32_t>(),
             rows = to.rows.span<std::int32_t>();
  // Attention is causal: zeros after the last token cannot change what comes before.
  std::ranges::fill(tokens, 0);
  std::ranges::fill(targets, model::kNoTarget);
  std::ranges::fill(rows, -1);
  for (const Placed& one : placed(round, mesh_.dp_rank())) {
    if (one.microbatch != microbatch) continue;
    const Passage& passage = passages[static_cast<std::size_t>(one.passage)];
    const Index first_token = one.sample * round.shape.tokens, first_row = one.sample * round.shape.rows;
    std::ranges::copy(passage.ids.first(static_cast<std::size_t>(passage.inputs())), tokens.begin() + first_token);
    for (Index i = 0; i < passage.targets(); ++i) {
      const auto row = static_cast<std::size_t>(first_row + i);
      rows[row] = static_cast<std::int32_t>(first_token + passage.first_target - 1 + i);
      targets[row] = passage.ids[static_cast<std::size_t>(passage.first_target + i)];
    }
  }
}

std::vector<InferenceModel::Placed> InferenceModel::placed(const Round& round, int dp_rank) const {
  std::vector<Placed> own;
  const Index dp = mesh_.dp.size(), batch = this->batch(round.shape);
  for (std::size_t k = 0; k < round.passages.size(); ++k) {
    const Index number = static_cast<Index>(k), in_order = number / batch;
    if (in_order % dp == dp_rank) own.push_back({round.passages[k], static_cast<int>(in_order / dp), number % batch});
  }
  return own;
}

void InferenceModel::run(const Round& round, std::span<const Passage> passages) {
  const comm::HostWait waiting(world_);
  world_.check_health();
  running_ = round.shape;
  for (int microbatch = 0; microbatch < round.microbatches; ++microbatch) fill_block(round, passages, microbatch);
  const Index in = max_microbatches() * input_bytes(round.shape);
  if (config_.device != Device::cpu) ex_->copy(round_.data(), host_round_.data(), in);
  executor_->change(schedule(round.microbatches), memory_.message(pass(round.shape)).shape());
  executor_->run(*ex_, *this);
  if (config_.device != Device::cpu && is_owner())
    ex_->copy(host_round_.data() + in, round_.data() + in, round.microbatches * result_bytes(round.shape));
  world_.wait_for(*ex_);
}

std::vector<double> InferenceModel::own_scores(const Round& round, std::span<const Passage> passages) {
  std::byte* const host = config_.device == Device::cpu ? round_.data() : host_round_.data();
  std::vector<double> scores;
  for (const Placed& one : placed(round, mesh_.dp_rank())) {
    const Block from = block(host, round.shape, one.microbatch);
    const Index first = one.sample * round.shape.rows;
    const Index targets = passages[static_cast<std::size_t>(one.passage)].targets();
    dispatch_wide(from.losses.dtype(), "InferenceModel", [&]<class T>() {
      const auto losses = from.losses.rows(first, targets).span<T>();
      scores.insert(scores.end(), losses.begin(), losses.end());
    });
    if (config_.best_ids != BestIds::asked) continue;
    const auto ids = from.best_ids.rows(first, targets).span<std::int32_t>();
    scores.insert(scores.end(), ids.begin(), ids.end());
  }
  return scores;
}

void InferenceModel::deliver(const Round& round, std::span<const Passage> passages, const Take& take) {
  Exec host;
  const comm::Group& all = world_.all();
  std::vector<double> own;
  if (is_owner()) own = own_scores(round, passages);
  if (world_.rank() != 0) {
    if (!own.empty())
      comm::send(host, all, Tensor(own.data(), {static_cast<Index>(own.size())}, DType::f64), 0).wait(host);
    return;
  }
  const Index of_target = config_.best_ids == BestIds::asked ? 2 : 1;
  for (int dp_rank = 0; dp_rank < mesh_.dp.size(); ++dp_rank) {
    const std::vector<Placed> theirs = placed(round, dp_rank);
    const int owner = owners_[static_cast<std::size_t>(dp_rank)];
    Index count = 0;
    for (const Placed& one : theirs) count += of_target * passages[static_cast<std::size_t>(one.passage)].targets();
    if (count == 0) continue;
    std::vector<double> scores = owner == 0 ? own : std::vector<double>(static_cast<std::size_t>(count));
    if (owner != 0) comm::recv(host, all, Tensor(scores.data(), {count}, DType::f64), owner).wait(host);
    auto next = scores.begin();
    for (const Placed& one : theirs) {
      PassageScore score;
      const auto targets = passages[static_cast<std::size_t>(one.passage)].targets();
      for (Index i = 0; i < targets; ++i) {
        if (!std::isfinite(*next))
          throw NonFiniteError(str("[passage ", one.passage, "] the loss of target ", i, " = ", *next,
                                   ": must be finite; the parameters may be broken, or --precision too narrow"));
        score.log_probabilities.push_back(-*next++);
      }
      for (Index i = 0; of_target == 2 && i < targets; ++i)
        score.best_ids.push_back(static_cast<std::int32_t>(*next++));
      take(one.passage, std::move(score));
    }
  }
}

void InferenceModel::score(std::span<const Passage> passages, const Take& take) {
  for (const Round& round :
       make_rounds(passages, config_.model.seq_len, [this](const PassShape& shape) { return round_size(shape); })) {
    run(round, passages);
    deliver(round, passages, take);
  }
}

}  // namespace megalith::eval
