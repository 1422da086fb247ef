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
                               const PassCounts& samples)
    : config_(std::move(config)),
      world_(world),
      mesh_(mesh),
      memory_({.model = config_.model,
               .ranges = chunk_ranges(config_, mesh_),
               .tp = {mesh_.tp, nn::SequenceParallel::off, 1},
               .chunk = {.fp8 = config_.fp8, .model_layers = config_.model.num_layers},
               .policy = {config_.dtype, config_.dtype, config_.gemms},
               .device = config_.device},
              mesh_),
      ledger_(config_.device) {
  Shape widest{0, config_.model.hidden_size};
  for (const auto& [shape, count] : samples) {
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

bool InferenceModel::has_results_of(nn::ResultOf of) const {
  return std::ranges::any_of(config_.results,
                             [of](const AskedResult& asked) { return nn::row_of(asked.result).of == of; });
}

model::BatchLayout InferenceModel::layout(const PassShape& shape) const {
  model::BatchShape sizes = model::batch_shape(config_.model, batch(shape), shape.tokens);
  sizes.masked = shape.rows;
  sizes.documents = ops::DocumentMask::none;  // a window is one
  const bool of_samples = has_results_of(nn::ResultOf::sample);
  sizes.sequences = 1;
  sizes.has_targets = true;
  sizes.labels = of_samples ? 1 : 0;
  sizes.first_tokens = of_samples ? model::FirstTokens::read : model::FirstTokens::unread;
  return model::BatchLayout(sizes);
}

Index InferenceModel::result_bytes(const PassShape& shape) const {
  Carver outs(nullptr);
  results(outs, shape);
  return outs.offset();
}

nn::HeadResults InferenceModel::results(Carver& outs, const PassShape& shape) const {
  nn::HeadResults results;
  for (const AskedResult& asked : config_.results) {
    const nn::ResultRow& row = nn::row_of(asked.result);
    const DType dtype = row.dtype == nn::ResultDType::id        ? DType::i32
                        : row.dtype == nn::ResultDType::compute ? config_.dtype
                                                                : statistics_dtype(config_.dtype);
    const Index count = batch(shape) * (row.of == nn::ResultOf::row ? shape.rows : 1);
    const bool is_matrix = row.dtype == nn::ResultDType::compute;
    results.*row.tensor = outs.next(is_matrix ? Shape{count, asked.width} : Shape{count}, dtype);
  }
  return results;
}

Index InferenceModel::round_bytes() const {
  Index most = 0;
  for (const auto& [shape, batch] : batches_)
    most = std::max(most, max_microbatches() * (input_bytes(shape) + result_bytes(shape)));
  return most + kAlignment;
}

InferenceModel::Block InferenceModel::block(std::byte* round, const PassShape& shape, int microbatch) const {
  const Index bytes = input_bytes(shape);
  Carver ins(round, microbatch * bytes);
  Carver outs(round, max_microbatches() * bytes + microbatch * result_bytes(shape));
  return {layout(shape).inputs_of(ins.next({bytes}, DType::u8)), results(outs, shape)};
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
  const comm::HostsMeet meet(world_);
  memory_.warm_up(*ex_, [&] {
    for (const auto& [shape, batch] : batches_) {
      const Tensor message = ex_->tensor_like(memory_.message(pass(shape)));
      ops::fill(*ex_, message, 0.5);
      ex_->copy(round_.data(), host_round_.data(), input_bytes(shape));  // zeros, not results of the shape before
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

void InferenceModel::copy_params(ParamSet& from) { eval::copy_params(*ex_, memory_.params(), from); }

// ---- Passes ----

void InferenceModel::run_chunk(Exec& ex, int chunk, const PassShape& shape, const Block& block, const Tensor& input,
                               const Tensor& output, model::Chunk::Saved& saved) const {
  model::Chunk::Inputs inputs{memory_.microbatch(pass(shape)), block.inputs, loss_sums_};
  inputs.microbatch.lengths = block.inputs.lengths;
  const model::Chunk& own = memory_.chunk(chunk);
  if (own.range().head)
    own.infer(ex, inputs, input, block.results, saved);
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

void InferenceModel::fill_block(const Round& round, const Samples& samples, int microbatch) {
  std::byte* const host = config_.device == Device::cpu ? round_.data() : host_round_.data();
  const Index bytes = input_bytes(round.shape), count = batch(round.shape);
  const model::Batch to = layout(round.shape).on_host({host + microbatch * bytes, static_cast<std::size_t>(bytes)});
  for (const std::span<std::int32_t> ids : {to.tokens, to.types, to.lengths}) std::ranges::fill(ids, 0);
  for (const std::span<std::int32_t> none : {to.targets, to.rows, to.labels}) std::ranges::fill(none, model::kNoTarget);
  const auto tokens = static_cast<std::size_t>(round.shape.tokens), rows = static_cast<std::size_t>(round.shape.rows);
  for (const Placed& one : placed(round, mesh_.dp_rank())) {
    if (one.microbatch != microbatch) continue;
    const auto place = static_cast<std::size_t>(one.place);
    const std::span<std::int32_t> asked = to.rows.subspan(place * rows, rows);
    std::int32_t length = 0, label = model::kNoTarget;
    samples.fill(one.sample, {.tokens = to.tokens.subspan(place * tokens, tokens),
                              .types = to.types.empty() ? to.types : to.types.subspan(place * tokens, tokens),
                              .rows = asked,
                              .targets = to.targets.subspan(place * rows, rows),
                              .length = length,
                              .label = label});
    for (std::int32_t& row : asked)
      if (row >= 0) row += static_cast<std::int32_t>(place * tokens);
    if (!to.lengths.empty()) to.lengths[place] = length;
    if (!to.labels.empty()) to.labels[place] = label;
  }
  for (std::size_t sample = 0; sample < to.labels.size(); ++sample)  // the first row of each
    to.rows[static_cast<std::size_t>(count) * rows + sample] = static_cast<std::int32_t>(sample * tokens);
}

std::vector<InferenceModel::Placed> InferenceModel::placed(const Round& round, int dp_rank) const {
  std::vector<Placed> own;
  const Index dp = mesh_.dp.size(), batch = this->batch(round.shape);
  for (std::size_t k = 0; k < round.samples.size(); ++k) {
    const Index number = static_cast<Index>(k), in_order = number / batch;
    if (in_order % dp == dp_rank) own.push_back({round.samples[k], static_cast<int>(in_order / dp), number % batch});
  }
  return own;
}

void InferenceModel::run(const Round& round, const Samples& samples) {
  const comm::HostWait waiting(world_);
  world_.check_health();
  running_ = round.shape;
  for (int microbatch = 0; microbatch < round.microbatches; ++microbatch) fill_block(round, samples, microbatch);
  const Index in = max_microbatches() * input_bytes(round.shape);
  if (config_.device != Device::cpu) ex_->copy(round_.data(), host_round_.data(), in);
  executor_->change(schedule(round.microbatches), memory_.message(pass(round.shape)).shape());
  executor_->run(*ex_, *this);
  if (config_.device != Device::cpu && is_owner())
    ex_->copy(host_round_.data() + in, round_.data() + in, round.microbatches * result_bytes(round.shape));
  world_.wait_for(*ex_);
}

Index InferenceModel::numbers_of(const AskedResult& asked, const Samples& samples, Index sample) {
  return asked.width * (nn::row_of(asked.result).of == nn::ResultOf::row ? samples.rows(sample) : 1);
}

std::vector<double> InferenceModel::own_numbers(const Round& round, const Samples& samples) {
  std::byte* const host = config_.device == Device::cpu ? round_.data() : host_round_.data();
  std::vector<double> numbers;
  for (const Placed& one : placed(round, mesh_.dp_rank())) {
    const Block from = block(host, round.shape, one.microbatch);
    for (const AskedResult& asked : config_.results) {
      const nn::ResultRow& row = nn::row_of(asked.result);
      const Tensor& all = from.results.*row.tensor;
      const Index first = one.place * asked.width * (row.of == nn::ResultOf::row ? round.shape.rows : 1);
      const auto add = [&]<class T>() {
        const std::span<const T> some = all.span<T>().subspan(
            static_cast<std::size_t>(first), static_cast<std::size_t>(numbers_of(asked, samples, one.sample)));
        for (const T value : some) numbers.push_back(converted<double>(value));
      };
      if (row.dtype == nn::ResultDType::id)
        add.operator()<std::int32_t>();
      else
        dispatch_float(all.dtype(), "InferenceModel", add);
    }
  }
  return numbers;
}

void InferenceModel::deliver(const Round& round, const Samples& samples, const TakeNumbers& take) {
  Exec host;
  const comm::Group& all = world_.all();
  std::vector<double> own;
  if (is_owner()) own = own_numbers(round, samples);
  if (world_.rank() != 0) {
    if (!own.empty())
      comm::send(host, all, Tensor(own.data(), {static_cast<Index>(own.size())}, DType::f64), 0).wait(host);
    return;
  }
  for (int dp_rank = 0; dp_rank < mesh_.dp.size(); ++dp_rank) {
    const std::vector<Placed> theirs = placed(round, dp_rank);
    const int owner = owners_[static_cast<std::size_t>(dp_rank)];
    Index count = 0;
    for (const Placed& one : theirs)
      for (const AskedResult& asked : config_.results) count += numbers_of(asked, samples, one.sample);
    if (count == 0 && theirs.empty()) continue;
    std::vector<double> numbers = owner == 0 ? own : std::vector<double>(static_cast<std::size_t>(count));
    if (owner != 0 && count > 0) comm::recv(host, all, Tensor(numbers.data(), {count}, DType::f64), owner).wait(host);
    auto next = numbers.begin();
    for (const Placed& one : theirs) {
      SampleNumbers of_sample;
      for (const AskedResult& asked : config_.results) {
        const auto end = next + numbers_of(asked, samples, one.sample);
        const auto bad = std::find_if(next, end, [](double number) { return !std::isfinite(number); });
        if (config_.requires_finite && bad != end)
          throw NonFiniteError(str("[passage ", one.sample, "] ", nn::row_of(asked.result).name, " ", bad - next, " = ",
                                   *bad, ": must be finite; the parameters may be broken, or --precision too narrow"));
        of_sample.of(asked.result).assign(next, end);
        next = end;
      }
      take(one.sample, of_sample);
    }
  }
}

void InferenceModel::infer(const Samples& samples, const TakeNumbers& take) {
  for (const Round& round : make_rounds(samples, [this](const PassShape& shape) { return round_size(shape); })) {
    run(round, samples);
    deliver(round, samples, take);
  }
}

void InferenceModel::score(std::span<const Passage> passages, const Take& take) {
  infer(PassageSamples(passages, config_.model.seq_len),
        [&](Index passage, const SampleNumbers& numbers) { take(passage, score_of(numbers)); });
}

}  // namespace megalith::eval
