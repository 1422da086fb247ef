#pragma once
#include <algorithm>
#include <functional>
#include <iterator>

#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/train/engine.h"

#include "tests/support/gathered.h"

namespace megalith::support {

/// Runs a function on all ranks of a world of that size.
using RunRanks = void (*)(int, const std::function<void(comm::World&)>&);

/// A grid of the tests: how a small model is cut.
struct Grid {
  int tp = 1, pp = 1, dp = 1, chunks = 1;
  Sharding sharding = Sharding::none;
  nn::SequenceParallel sequence_parallel = nn::SequenceParallel::off;  ///< outside tensor-parallel regions
  ShardedState shard = ShardedState::moments;
  int ranks() const { return tp * pp * dp; }
  std::string name() const {
    return str("tp", tp, "_pp", pp, "_dp", dp, "_chunks", chunks, sharding == Sharding::none ? "" : "_sharded",
               shard == ShardedState::moments ? "" : "_gradients",
               sequence_parallel == nn::SequenceParallel::off ? "" : "_sequence_parallel");
  }
};

/// The grids over which a model must train alike.
inline std::vector<Grid> all_grids() {
  std::vector<Grid> grids = {{.tp = 1},
                             {.tp = 2},
                             {.tp = 4},
                             {.pp = 2},
                             {.pp = 4},
                             {.dp = 2},
                             {.tp = 2, .pp = 2},
                             {.tp = 2, .dp = 2},
                             {.pp = 2, .dp = 2},
                             {.tp = 2, .pp = 2, .dp = 2},
                             {.pp = 2, .chunks = 2},
                             {.pp = 2, .chunks = 4},
                             {.tp = 2, .pp = 2, .chunks = 2}};
  for (std::size_t i = 0, count = grids.size(); i < count; ++i) {
    Grid shared = grids[i];
    shared.sequence_parallel = nn::SequenceParallel::on;
    if (shared.tp > 1) grids.push_back(shared);
  }
  return grids;
}

/// Those that have several data-parallel ranks, with a sharded optimizer.
inline std::vector<Grid> sharded_grids() {
  std::vector<Grid> grids = {{.dp = 4}, {.pp = 2, .dp = 2, .chunks = 2}};
  std::ranges::copy_if(all_grids(), std::back_inserter(grids), [](const Grid& grid) { return grid.dp > 1; });
  for (Grid& grid : grids) grid.sharding = Sharding::optimizer;
  return grids;
}

/// The same grids with sharded gradients.
inline std::vector<Grid> gradient_grids() {
  std::vector<Grid> grids = sharded_grids();
  for (Grid& grid : grids) grid.shard = ShardedState::gradients;
  return grids;
}

/// A model with odd widths and a vocabulary that no shard divides; dropout everywhere. Its samples are of an odd
/// length, so that a microbatch whose rows are shared needs a sample for each rank.
inline config::RunConfig small_config(const Grid& grid, const std::string& precision, Index steps = 20) {
  config::RunConfig c;
  c.source = "small_config";
  c.model.num_layers = 8;
  c.model.hidden_size = 20;
  c.model.num_heads = 4;
  c.model.ffn_hidden_size = 28;
  c.model.seq_len = 9;
  c.model.vocab_size = 37;
  c.model.dropout = 0.1;
  c.parallel.ranks = grid.ranks();
  c.parallel.tp = grid.tp;
  c.parallel.pp = grid.pp;
  c.parallel.chunks = grid.chunks;
  c.train.steps = steps;
  c.train.global_batch = 8;
  c.parallel.sequence_parallel = grid.sequence_parallel == nn::SequenceParallel::on;
  c.train.micro_batch = grid.sequence_parallel == nn::SequenceParallel::on ? grid.tp : 1;
  c.train.precision = precision;
  c.optimizer.lr = 3e-3;
  c.optimizer.warmup_steps = 4;
  c.optimizer.distributed = grid.sharding == Sharding::optimizer;
  c.optimizer.shard = grid.shard == ShardedState::gradients ? "gradients" : "moments";
  c.data.tokenizer = "byte";
  c.data.train = std::vector<std::string>{"none"};
  return c;
}

inline config::RunPlan small_plan(const Grid& grid, const std::string& precision, Index steps = 20) {
  return config::resolve(small_config(grid, precision, steps));
}

/// Tokens as a function of the sample's number alone; of masked language models all inputs, for samples of 9 tokens.
class HashedBatches : public model::BatchSource {
 public:
  explicit HashedBatches(Index vocab) : vocab_(static_cast<std::uint32_t>(vocab)) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    const std::span<std::int32_t> tokens = batch.tokens, targets = batch.targets;
    const std::size_t length = tokens.size() / static_cast<std::size_t>(count);
    for (std::size_t i = 0; i < batch.lengths.size(); ++i)
      batch.lengths[i] = length_of(static_cast<std::uint64_t>(first_sample) + i);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = id(static_cast<std::uint64_t>(first_sample) + i / length, i % length);
    if (!batch.rows.empty()) return fill_masked(first_sample, count, batch);
    for (std::size_t i = 0; i < targets.size(); ++i)
      targets[i] = id(static_cast<std::uint64_t>(first_sample) + i / length, i % length + 1);
  }

 private:
  /// From 5 to 9.
  std::int32_t length_of(std::uint64_t sample) const { return static_cast<std::int32_t>(5 + word(sample, 100) % 5); }
  std::uint32_t word(std::uint64_t sample, std::uint64_t position) const {
    return RandomSite{.seed = 11, .step = static_cast<std::uint32_t>(sample)}.word(position);
  }
  std::int32_t id(std::uint64_t sample, std::uint64_t position) const {
    const std::uint32_t drawn = word(sample, position);
    return static_cast<std::int32_t>((drawn % vocab_) * (drawn / vocab_ % 7) /
                                     7);  // uneven, so that there is something to learn
  }
  /// Places 1, 3, 5, ... of a sample are masked, a different number in each.
  void fill_masked(Index first_sample, Index count, const model::Batch& batch) const {
    const std::size_t samples = static_cast<std::size_t>(count), masked = batch.targets.size() / samples;
    std::vector<std::int32_t> places(batch.targets.size(), -1);
    for (std::size_t i = 0; i < samples; ++i) {
      const std::uint64_t sample = static_cast<std::uint64_t>(first_sample) + i;
      const std::span<std::int32_t> targets = batch.targets.subspan(i * masked, masked);
      std::ranges::fill(targets, model::kNoTarget);
      for (std::size_t k = 0; k < masked - word(sample, 101) % masked; ++k) {
        const auto place = static_cast<std::int32_t>(2 * k + 1);
        if (place >= length_of(sample)) break;
        places[i * masked + k] = place;
        targets[k] = id(sample, 200 + k);
      }
      if (!batch.labels.empty()) batch.labels[i] = static_cast<std::int32_t>(word(sample, 102) % 2);
    }
    for (std::size_t i = 0; i < batch.types.size(); ++i) batch.types[i] = i % 9 < 4 ? 0 : 1;
    model::fill_rows(places, batch);
  }
  std::uint32_t vocab_;
};

/// What a run leaves behind, put together from all ranks.
struct RunRecord {
  std::vector<double> losses, norms;
  double evaluated = 0;  ///< loss without dropout, after the last step
  Gathered gradients;    ///< of the first step
  Gathered parameters;   ///< after the last
  Index clones = 0;      ///< of experts, of all layers and steps
};

/// The clones of experts in all layers.
inline Index clones_of(const train::StepReport& report) {
  Index clones = 0;
  for (const train::ExpertLoad& layer : report.moe.layers) clones += layer.echo ? layer.echo->clones : 0;
  return clones;
}

/// Once the stage's device has done what it was given.
inline void put_params(Gathered& out, model::Stage& stage, bool gradients) {
  Exec host, device(stage.config().device);
  for (const ParamBuffer& buffer : stage.params().buffers()) {
    if (gradients && !buffer.has_gradients()) continue;
    for (const Param& param : buffer.params()) {
      if (param.spec.slice.local.numel() == 0) continue;
      const Tensor values = param.without_padding(gradients ? param.grad : param.value);
      const Tensor on_host = host.tensor(values.shape(), values.dtype());
      device.copy(on_host.raw(), values.raw(), values.bytes());
      device.synchronize();
      out.put(param.spec.slice, on_host);
    }
  }
}

/// Trains plan.train.steps steps as one rank; `record` is shared by all ranks.
inline void train_rank(comm::World& world, const config::RunPlan& plan, const model::BatchSource& source,
                       RunRecord& record, nn::RouterDecisions* decisions = nullptr) {
  train::Engine engine(world, plan);
  engine.allocate();
  if (decisions != nullptr) engine.stage().moe().decisions = decisions;
  train::Progress progress;
  for (Index step = 0; step < plan.train.steps; ++step) {
    const train::StepReport result = engine.step(source, progress, train::Stop::no);
    progress = {step + 1, progress.samples + plan.train.batch_after(progress.samples)};
    if (step == 0) put_params(record.gradients, engine.stage(), true);
    if (world.rank() != 0) continue;
    record.losses.push_back(result.loss);
    record.norms.push_back(result.grad_norm);
    record.clones += clones_of(result);
  }
  const double evaluated = engine.evaluate(source, 2 * plan.train.global_batch);
  if (world.rank() == 0) record.evaluated = evaluated;
  put_params(record.parameters, engine.stage(), false);
}

inline void train_rank(comm::World& world, const config::RunPlan& plan, RunRecord& record) {
  train_rank(world, plan, HashedBatches(plan.model.vocab_size), record);
}

inline void train_on(const Grid& grid, const std::string& precision, RunRecord& record, Index steps = 20) {
  const config::RunPlan plan = small_plan(grid, precision, steps);
  comm::run_ranks(grid.ranks(), [&](comm::World& world) { train_rank(world, plan, record); });
}

}  // namespace megalith::support
