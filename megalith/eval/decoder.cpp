#include "megalith/eval/decoder.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/host_limits.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/comm/synchronize_ranks.h"

namespace megalith::eval {
namespace {

// Passes over first tokens are rounded up to this step on a CPU. On a GPU, where a plan of cuDNN's takes longer than
// hundreds of tokens, they are rounded up to powers of two.
constexpr Index kStartStep = 32;

/// The layers of this rank's stage.
model::ChunkRange stage_of(const model::ModelConfig& model, const comm::Mesh& mesh) {
  const Index stages = mesh.pp.size(), stage = mesh.pp_rank();
  if (model.num_layers < stages) {
    throw ConfigError(
        str("parallel.pp = ", stages, ": must be at most model.num_layers = ", model.num_layers, " to generate"));
  }
  return {{model.num_layers * stage / stages, model.num_layers * (stage + 1) / stages},
          mesh.first_stage(),
          mesh.last_stage()};
}

auto rows_of_caches(Index first, Index count) {
  return [=](const nn::KvCache& cache) {
    return nn::KvCache{cache.keys.rows(first, count), cache.values.rows(first, count)};
  };
}

}  // namespace

Steps steps_for(const model::ModelConfig& model, const model::ExpertSetting& setting) {
  const bool host_reads = host_counts(model, setting) != model::HostCounts::none;
  return setting.device == Device::cuda && !host_reads ? Steps::from_graph : Steps::eager;
}

Index rows_step(const model::ModelConfig& model, const grid::ResolvedSizes& grid) {
  return model.moe.has_experts() && grid.etp != grid.tp ? grid.tp : 1;
}

Decoder::Decoder(const DecoderConfig& config, comm::World& world, const comm::Mesh& mesh)
    : config_(config),
      world_(world),
      mesh_(mesh),
      memory_({.model = config.model,
               .ranges = {stage_of(config.model, mesh)},
               .tp = {mesh.tp, nn::SequenceParallel::off, 1},
               .policy = {config.dtype, config.dtype},
               .device = config.device,
               .positions = config.capacity},
              mesh),
      ex_(config.device),
      ledger_(config.device),
      all_slots_(chunk().make_saved()) {
  if (config.slots < 1 || config.capacity < 1 || config.capacity > config.model.seq_len) {
    throw InternalError(str("[Decoder] slots, capacity = ", config.slots, ", ", config.capacity,
                            ": must be at least 1, and capacity at most ", config.model.seq_len));
  }
  if (const Index step = rows_step(config.model, mesh.sizes); config.slots % step != 0 || config.capacity % step != 0) {
    throw InternalError(str("[Decoder] slots, capacity = ", config.slots, ", ", config.capacity,
                            ": must be divisible by parallel.tp = ", step, " where parallel.etp differs"));
  }
  for (const Index length : config.lengths) {
    if (length < 1 || length > config.capacity)
      throw InternalError(str("[Decoder] length = ", length, ": must be from 1 to ", config.capacity));
  }
  const model::HostCounts counts = host_counts(config.model, {config.device, config.dtype, mesh.sizes});
  if (config.steps == Steps::from_graph && counts != model::HostCounts::none)
    throw InternalError("[Decoder] steps from a graph: the host reads counts of experts in every step");
  chunk().take_caches(
      [this](Index kv_heads, Index head_dim) {
        const Shape shape{cache_rows(), kv_heads, config_.capacity, head_dim};
        caches_.push_back({Tensor(nullptr, shape, config_.dtype), Tensor(nullptr, shape, config_.dtype)});
        return caches_.back();
      },
      all_slots_);
  make_views();
  plan(step_pass());
  for (const Index tokens : classes()) plan(start_pass(tokens));
}

bool Decoder::copies_meet() const {
  return has_copies() && config_.model.moe.has_experts() && mesh_.tp.size() % mesh_.etp_ep.size() != 0;
}

Index Decoder::start_tokens(Index length) const {
  const Index stepped = round_up(length, kStartStep);
  const auto doubled = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(stepped)));
  return std::min(config_.device == Device::cpu ? stepped : doubled, config_.capacity);
}

Index Decoder::max_tokens() const { return std::max(start_tokens(config_.capacity), config_.slots); }

std::set<Index> Decoder::classes() const {
  std::set<Index> all;
  for (const Index length : config_.lengths) all.insert(start_tokens(length));
  for (Index length = 1; config_.lengths.empty() && length <= config_.capacity; length = *all.rbegin() + 1)
    all.insert(start_tokens(length));
  return all;
}

BytesByOwner Decoder::planned_bytes() const {
  BytesByOwner bytes = memory_.bytes();
  Index caches = 0;
  for (const nn::KvCache& cache : caches_) caches += 2 * round_up(cache.keys.bytes(), kAlignment);
  bytes[kCacheOwner] = caches;
  bytes[kScratchOwner] = memory_.scratch_bytes();
  bytes["inputs"] = 2 * round_up(max_tokens() * size_of(DType::i32), kAlignment) +
                    round_up(config_.slots * size_of(DType::i32), kAlignment);
  const Index message = round_up(bytes_of({max_tokens(), config_.model.hidden_size}, config_.dtype), kAlignment);
  if (mesh_.pp.size() > 1) bytes["messages"] = message * (receives() + sends());
  return bytes;
}

void Decoder::make_views() {
  Carver inputs(inputs_.data());
  tokens_ = inputs.next({max_tokens()}, DType::i32);
  positions_ = inputs.next({max_tokens()}, DType::i32);
  ids_ = inputs.next({config_.slots}, DType::i32);
  Carver messages(messages_.data());
  const Shape stream{max_tokens(), config_.model.hidden_size};
  if (receives()) input_ = messages.next(stream, config_.dtype);
  if (sends()) output_ = messages.next(stream, config_.dtype);
}

void Decoder::allocate() {
  const BytesByOwner planned = planned_bytes();
  if (config_.device == Device::cpu) {
    require_memory(host_limits(), total(planned), "generation",
                   "use a machine or a control group with more, a smaller --batch or fewer --max-tokens");
  }
  const auto take = [&](const char* owner) {
    const auto found = planned.find(owner);
    return found == planned.end() ? Buffer() : ledger_.take(owner, found->second);
  };
  memory_.allocate(ledger_, {}, planned.at(kScratchOwner));
  cache_memory_ = take(kCacheOwner);
  inputs_ = take("inputs");
  messages_ = take("messages");
  make_views();
  take_caches();
  host_inputs_.resize(static_cast<std::size_t>(2 * max_tokens()));
  logits_.resize(static_cast<std::size_t>(has_logits() ? config_.slots * config_.model.vocab_size : 0));
  if (config_.steps == Steps::from_graph) {
    prepare_captures(config_.device);
    replays_.emplace(world_, ex_);
  }
  memory_.fill_tables(ex_);
}

/// Every slot's passes see its part of the caches; steps see them all.
void Decoder::take_caches() {
  Carver memory(cache_memory_.data());
  for (nn::KvCache& cache : caches_) {
    const Shape shape = cache.keys.shape();
    cache.keys = memory.next(shape, config_.dtype);
    cache.values = memory.next(shape, config_.dtype);
  }
  give_caches(all_slots_, rows_of_caches(0, config_.slots));
  all_slots_.take_host_memory(config_.device);
  one_slot_ = memory_.make_saved(0, static_cast<std::size_t>(cache_rows()));
  for (Index slot = 0; slot < cache_rows(); ++slot) {
    give_caches(one_slot_[static_cast<std::size_t>(slot)], rows_of_caches(slot, 1));
  }
}

void Decoder::fill_params(DType stored, const ReadValues& read) {
  eval::fill_params(ex_, memory_.params(), stored, read);
}

Tensor Decoder::compute(Exec& ex, const Pass& pass, model::Chunk::Rows rows, model::Chunk::Saved& saved) const {
  const Index tokens = pass.tokens();
  nn::Microbatch microbatch = memory_.microbatch(pass);
  microbatch.positions = positions_.rows(0, tokens);
  const model::Chunk::Inputs inputs{std::move(microbatch), {.tokens = tokens_.rows(0, tokens), .targets = {}}, {}};
  const auto part = [&](const Tensor& message) { return message ? message.rows(0, tokens) : Tensor(); };
  const Tensor own = chunk().logits(ex, inputs, {part(input_), part(output_)}, rows, saved);
  if (!own || mesh_.tp.size() == 1) return own;
  const Tensor all = ex.tensor({mesh_.tp.size() * own.dim(0), own.dim(1)}, own.dtype());
  comm::all_gather(ex, mesh_.tp, own, all).wait(ex);
  return all;
}

void Decoder::plan(const Pass& pass) {
  memory_.plan(pass, 0, [&](Exec& recorder) {
    model::Chunk::Saved saved = chunk().make_saved();
    give_caches(saved, rows_of_caches(0, pass.batch));
    compute(recorder, pass, {0, pass.batch}, saved);
  });
}

void Decoder::put_inputs(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions) {
  const auto count = static_cast<Index>(tokens.size());
  const auto middle = host_inputs_.begin() + max_tokens();
  std::ranges::copy(tokens, host_inputs_.begin());
  std::ranges::copy(positions, middle);
  ex_.copy(tokens_.raw(), host_inputs_.data(), tokens_.rows(0, count).bytes());
  ex_.copy(positions_.raw(), &*middle, positions_.rows(0, count).bytes());
}

Tensor Decoder::run_planned(const Pass& pass, model::Chunk::Rows rows, model::Chunk::Saved& saved) {
  Tensor logits;
  memory_.run(ex_, pass, 0, 0, nullptr, [&] { logits = compute(ex_, pass, rows, saved); });
  return logits;
}

// No rank captures while another waits for it, and none launches before all have made their graphs (NcclChannel).
void Decoder::capture_step() {
  comm::synchronize_ranks(world_, ex_, "before a step of generation is captured");
  Capture capture("generation", ledger_.memory());
  step_graph_ = ex_.captured(capture, [this] {
    step_logits_ = run_planned(step_pass(), {0, config_.slots}, all_slots_);
  });
  step_graph_.prepare(ex_);
  comm::synchronize_ranks(world_, ex_, "after a step of generation was captured");
}

std::span<const double> Decoder::run(const Pass& pass, model::Chunk::Rows rows, model::Chunk::Saved& saved) {
  if (receives()) comm::recv(ex_, mesh_.pp, input_.rows(0, pass.tokens()), mesh_.pp_rank() - 1).wait(ex_);
  Tensor all;
  if (step_graph_ && pass == step_pass()) {
    step_graph_.launch(ex_);
    all = step_logits_;
  } else {
    all = run_planned(pass, rows, saved);
  }
  if (sends()) {
    comm::send(ex_, mesh_.pp, output_.rows(0, pass.tokens()), mesh_.pp_rank() + 1).wait(ex_);
    return {};
  }
  read_logits(all, rows.count);
  return {logits_.data(), static_cast<std::size_t>(rows.count * config_.model.vocab_size)};
}

std::span<const double> Decoder::start(Index slot, std::span<const std::int32_t> tokens, Index longest) {
  const auto length = static_cast<Index>(tokens.size());
  if (slot < 0 || slot >= config_.slots || length < 1 || length > config_.capacity) {
    throw InternalError(str("[Decoder::start] slot, tokens = ", slot, ", ", length, ": must be below ", config_.slots,
                            ", and 1 to ", config_.capacity));
  }
  return start_in(slot, tokens, longest);
}

void Decoder::start_of_others(Index longest) {
  constexpr std::int32_t kAnyToken = 0;
  if (!copies_meet()) throw InternalError("[Decoder::start_of_others] copies of the model do not meet");
  start_in(config_.slots, {&kAnyToken, 1}, longest);
}

std::span<const double> Decoder::start_in(Index row, std::span<const std::int32_t> tokens, Index longest) {
  const auto length = static_cast<Index>(tokens.size());
  // Attention is causal: what stands after the last token (zeros) changes nothing before it, and its keys and values
  // are overwritten before a token that comes later can see them.
  const Pass pass = start_pass(std::max(length, longest));
  std::vector<std::int32_t> padded(tokens.begin(), tokens.end()), positions(static_cast<std::size_t>(pass.seq_len));
  padded.resize(positions.size());
  std::iota(positions.begin(), positions.end(), 0);
  put_inputs(padded, positions);
  return run(pass, {length - 1, 1}, one_slot_[static_cast<std::size_t>(row)]);
}

std::span<const double> Decoder::step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions) {
  if (static_cast<Index>(tokens.size()) != config_.slots || positions.size() != tokens.size())
    throw InternalError(str("[Decoder::step] tokens = ", tokens.size(), ": must be one of each slot"));
  put_inputs(tokens, positions);
  return run(step_pass(), {0, config_.slots}, all_slots_);
}

void Decoder::warm_up() {
  const comm::HostsMeet meet(world_);
  memory_.warm_up(ex_, [&] {
    if (config_.device == Device::cuda) {
      for (const Index tokens : classes()) start(0, std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 0));
    }
    if (config_.device == Device::cpu && config_.steps == Steps::eager) return;
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(config_.slots), 0);
    step(zeros, zeros);
  });
  if (config_.steps == Steps::from_graph && !step_graph_) capture_step();
}

void Decoder::share_ids(std::span<std::int32_t> ids) {
  if (mesh_.pp.size() == 1) return;
  const auto bytes = static_cast<Index>(ids.size_bytes());
  ex_.copy(ids_.raw(), ids.data(), bytes);
  comm::broadcast(ex_, mesh_.pp, ids_, mesh_.pp.size() - 1).wait(ex_);
  ex_.copy(ids.data(), ids_.raw(), bytes);
  world_.wait_for(ex_);
}

void Decoder::read_logits(const Tensor& all, Index count) {
  const Index vocab = config_.model.vocab_size, held = all.dim(1), parts = mesh_.tp.size();
  if (config_.device == Device::cuda) {
    if (staging_.bytes() < all.bytes()) staging_ = Buffer(all.bytes(), Device::cuda, Side::host);
    ex_.copy(staging_.data(), all.raw(), all.bytes());
  }
  world_.wait_for(ex_);
  const void* const raw = config_.device == Device::cuda ? staging_.data() : all.raw();
  dispatch_float(all.dtype(), "Decoder", [&]<class T>() {
    share(parts * count, [&](Index i) {
      const Index row = i % count, first = i / count * held, real = std::clamp<Index>(vocab - first, 0, held);
      const T* const from = static_cast<const T*>(raw) + i * held;
      std::transform(from, from + real, logits_.data() + row * vocab + first,
                     [](T value) { return converted<double>(value); });
    });
  });
}

}  // namespace megalith::eval
