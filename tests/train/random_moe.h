#pragma once
#include <initializer_list>
#include <optional>
#include <set>

#include "megalith/base/error.h"

#include "tests/train/moe_run.h"

// Random recipes of models with experts on random grids, and texts of repeated letters, in fp64 against one rank.

namespace megalith::support {

/// Runs of repeated letters: tokens with the same past, or nearly so, so that experts get many rows that are equal but
/// for rounding. A function of the sample's number and of the seed.
class RepeatedLetters final : public model::BatchSource {
 public:
  explicit RepeatedLetters(std::uint64_t seed) : seed_(seed) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    const std::size_t length = batch.tokens.size() / static_cast<std::size_t>(count);
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      const auto sample = static_cast<std::uint64_t>(first_sample) + i / length;
      batch.tokens[i] = letter(sample, i % length);
      batch.targets[i] = letter(sample, i % length + 1);
    }
  }

 private:
  /// Letters change at one position in four.
  std::int32_t letter(std::uint64_t sample, std::uint64_t position) const {
    const RandomSite site{.seed = seed_, .step = static_cast<std::uint32_t>(sample)};
    while (position > 0 && site.word(position) % 4 != 0) --position;
    return static_cast<std::int32_t>(site.word(1000 + position) % 5 + 3);
  }
  std::uint64_t seed_;
};

/// Draws of a recipe.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[next() % values.size()];
  }
  bool one_in(std::uint32_t n) { return next() % n == 0; }
  double between(double low, double high) { return low + (high - low) * next() / 4294967296.0; }

 private:
  std::uint32_t next() { return RandomSite{.seed = seed_}.word(count_++); }
  std::uint64_t seed_, count_ = 0;
};

inline void draw_model(Draws& draw, config::RunConfig& c) {
  c.model.family = "llama";
  c.model.num_layers = draw.of<Index>({2, 4});
  c.model.num_kv_heads = draw.of<Index>({2, 4});
  c.model.head_dim = 6;
  c.model.seq_len = draw.of<Index>({8, 12, 16});
  c.model.dropout = draw.one_in(4) ? 0.1 : 0;
  if (!draw.one_in(5)) return;
  c.model.family = "gpt2";
  c.model.num_kv_heads.reset(), c.model.head_dim.reset();
}

inline void draw_experts(Draws& draw, config::RunConfig& c) {
  auto& m = c.moe;
  m.num_experts = draw.of<Index>({4, 8});
  m.top_k = draw.of<Index>({1, 2, 2, 3, 4});
  m.ffn_hidden_size = draw.of<Index>({8, 12});
  m.pattern = draw.of<const char*>({"m", "m", "dm", "mmd"});
  m.score = draw.of<const char*>({"softmax", "softmax", "sigmoid"});
  if (draw.one_in(3)) m.score_before_top_k = false;
  m.normalize_top_k = draw.one_in(2);
  m.scale = draw.of({1.0, 1.0, 2.5});
  if (draw.one_in(3)) m.num_groups = draw.of<Index>({2, 4}), m.group_top_k = draw.of<Index>({1, 2});
  if (draw.one_in(3)) m.shared_ffn_hidden_size = 8, m.shared_gate = draw.one_in(2);
  m.aux_loss = draw.of({0.0, 0.01, 0.1});
  m.aux_scope = draw.of<const char*>({"microbatch", "sequence", "global"});
  m.z_loss = draw.of({0.0, 0.01});
  if (draw.one_in(3)) m.expert_bias_rate = 0.01;
  if (draw.one_in(3)) return;
  m.capacity = draw.of<const char*>({"drop", "drop", "pad"});
  m.capacity_factor = draw.between(0.3, 1.6);
  m.capacity_run = draw.of<Index>({1, 2, 4, 4, 8, *c.model.seq_len});
  m.drop_by = draw.of<const char*>({"probability", "probability", "position"});
}

/// The grid, and what else must not change results.
inline void draw_grid(Draws& draw, config::RunConfig& c) {
  auto& p = c.parallel;
  p.ranks = draw.of<Index>({1, 2, 4, 4, 8});
  p.tp = draw.of<Index>({1, 1, 2, 4});
  p.pp = draw.of<Index>({1, 1, 2});
  p.ep = draw.of<Index>({1, 2, 2, 4});
  p.etp = draw.of<Index>({1, 1, 2, 4});
  p.chunks = *p.pp == 2 && *c.model.num_layers == 4 ? draw.of<Index>({1, 2}) : 1;
  p.sequence_parallel = *p.tp > 1 && draw.one_in(2);
  c.optimizer.distributed = draw.one_in(2);
  const bool is_of_microbatches = *c.moe.aux_loss > 0 && *c.moe.aux_scope == "microbatch";
  if (!is_of_microbatches) c.train.micro_batch = draw.of<Index>({1, 2, 4});
  if (draw.one_in(4)) c.recompute.mode = "full";
  if (!draw.one_in(5)) return;
  c.recompute.mode = "selective";
  c.recompute.modules = std::vector<std::string>{draw.of<const char*>({"gelu", "norms", "mlp", "attention"})};
}

/// A recipe on one rank, and the same on a grid.
struct RandomMoe {
  config::RunConfig one, many;
};

inline RandomMoe random_moe(std::uint64_t seed) {
  Draws draw(seed);
  config::RunConfig c = small_config({}, "fp64", 5);
  c.parallel = {};
  c.train.global_batch = 16;
  c.train.micro_batch = draw.of<Index>({1, 2, 4});
  c.train.seed = static_cast<Index>(seed % 1000);
  draw_model(draw, c);
  draw_experts(draw, c);
  RandomMoe recipe{c, c};
  recipe.one.parallel.ranks = 1;
  draw_grid(draw, recipe.many);
  recipe.one.moe.router_skew = recipe.many.moe.router_skew = draw.one_in(4) ? draw.between(0, 2) : 0;
  return recipe;
}

/// What differs from one rank by more than the grid promise of fp64 allows; a line each.
inline std::vector<std::string> mismatches(const RunRecord& got, const RunRecord& want, Sharding sharding) {
  std::vector<std::string> all;
  const auto compare = [&](const std::string& what, const std::vector<double>& a, const std::vector<double>& b,
                           double limit) {
    const double error = relative_error(a, b);
    if (!(error < limit)) all.push_back(str(what, " differ by ", error));
  };
  compare("losses", got.losses, want.losses, 1e-12);
  compare("norms", got.norms, want.norms, 1e-12);
  compare("evaluated losses", {got.evaluated}, {want.evaluated}, 1e-12);
  for (const auto& [name, values] : want.parameters.tensors())
    compare("values of " + name, got.parameters.at(name), values, 1e-10);
  if (sharding == Sharding::none) {
    for (const auto& [name, values] : want.gradients.tensors()) {
      // A router of one choice whose weights are normalised has no gradient but rounding.
      const bool is_rounding = std::ranges::all_of(values, [](double value) { return std::abs(value) < 1e-15; });
      if (!is_rounding) compare("gradients of " + name, got.gradients.at(name), values, 1e-12);
    }
  }
  for (const std::string& name : got.parameters.disagreeing()) all.push_back("ranks disagree about " + name);
  return all;
}

/// The mismatches of a recipe's grid; nothing where a rule refuses the recipe.
inline std::optional<std::vector<std::string>> try_random_moe(std::uint64_t seed) {
  const RandomMoe recipe = random_moe(seed);
  std::array<config::RunPlan, 2> plans;
  try {
    plans = {config::resolve(recipe.one), config::resolve(recipe.many)};
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  std::array<RunRecord, 2> records;
  std::vector<std::string> all;
  std::array<std::vector<std::int32_t>, 2> decided;
  const RepeatedLetters source(seed);
  for (std::size_t i = 0; i < 2; ++i) {
    KeptDecisions decisions(plans[i], nn::RouterDecisions::Use::record);
    try {
      comm::run_ranks(plans[i].grid.world_size,
                      [&](comm::World& world) { train_rank(world, plans[i], source, records[i], &decisions); });
    } catch (const std::exception& error) {
      return std::vector{str(i == 0 ? "one rank: " : "the grid: ", error.what())};
    }
    decided[i] = decisions.all();
  }
  const Sharding sharding = *recipe.many.optimizer.distributed ? Sharding::optimizer : Sharding::none;
  all = mismatches(records[1], records[0], sharding);
  if (decided[0] != decided[1]) all.emplace_back("decisions of routers differ");
  return all;
}

}  // namespace megalith::support
