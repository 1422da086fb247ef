#include "apps/bench/bench_moe.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/ops/echo_plan.h"
#include "megalith/ops/router.h"

#include "apps/bench/bench.h"
#include "apps/bench/layer_bench.h"
#include "apps/bench/ops_runner.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"

namespace megalith::apps {
namespace {

struct MoeBench {
  std::string device = "cpu", precision, format = "text", load = "even";
  Index tokens = 1024, hidden = 768, ffn = 768, experts = 8, top_k = 2, ep = 1, steps = 10, warmup = 2;
  Index echo = 0;
  bool deterministic = false;
  std::vector<std::string> settings;  ///< settings KEY=VALUE of the recipe
  std::vector<std::string> shape;     ///< the given options that a preset also sets
  std::vector<std::string> given;     ///< the options that were given
};

/// Throws ConfigError, which lists all, if an option and the key that it stands for were given.
void refuse_options_beside_keys(const MoeBench& b, const config::RunConfig& c) {
  Problems problems;
  const auto one_of = [&](const char* option, const char* key, bool is_set) {
    if (is_set && std::ranges::find(b.given, option) != b.given.end())
      problems.add_line(str(option, ": --set ", key, " sets it, too; leave one of the two out"));
  };
  one_of("--tokens", "model.seq_len", c.model.seq_len.has_value());
  one_of("--hidden", "model.hidden_size", c.model.hidden_size.has_value());
  one_of("--ffn", "moe.ffn_hidden_size", c.moe.ffn_hidden_size.has_value());
  one_of("--experts", "moe.num_experts", c.moe.num_experts.has_value());
  one_of("--top-k", "moe.top_k", c.moe.top_k.has_value());
  one_of("--ep", "parallel.ep", c.parallel.ep.has_value());
  one_of("--echo", "moe.echo.slots", c.moe.echo.slots.has_value());
  one_of("--device", "device.type", c.device.type.has_value());
  one_of("--precision", "train.precision", c.train.precision.has_value());
  one_of("--deterministic", "train.deterministic", c.train.deterministic.has_value());
  one_of("--steps", "train.steps", c.train.steps.has_value());
  problems.throw_if_any("bench moe");
}

config::RunPlan layer_plan(const MoeBench& b) {
  config::RunConfig c = config::parse_recipe("", "bench moe", b.settings);
  const auto set = [](auto& key, const auto& value) {
    if (!key) key = value;
  };
  refuse_sizes_beside_preset(c, b.shape);
  refuse_options_beside_keys(b, c);
  if (!c.model.preset) {
    constexpr Index kHead = 64;  // attention does not run
    set(c.model.family, "llama");
    set(c.model.num_layers, Index{1});
    set(c.model.hidden_size, b.hidden);
    set(c.model.num_heads, b.hidden % kHead == 0 ? b.hidden / kHead : Index{1});
    set(c.model.position, "learned");
    set(c.moe.num_experts, b.experts);
    set(c.moe.top_k, b.top_k);
    set(c.moe.ffn_hidden_size, b.ffn);
  }
  set(c.model.seq_len, b.tokens);
  if (b.echo > 0) set(c.moe.echo.slots, b.echo);
  set(c.parallel.ep, b.ep);
  set(c.parallel.ranks, *c.parallel.ep);
  set(c.train.steps, b.steps);
  set(c.train.micro_batch, Index{1});
  set(c.train.global_batch, *c.parallel.ep * *c.train.micro_batch);
  if (!b.precision.empty()) set(c.train.precision, b.precision);
  if (c.train.precision == "fp8") set(c.fp8.experts, "all");
  set(c.train.deterministic, b.deterministic);
  set(c.device.type, b.device);
  set(c.data.tokenizer, "byte");
  set(c.data.train, std::vector<std::string>{"random tokens"});
  return config::resolve(c);
}

/// What the timed layer needs, beyond the rules of recipes.
void check_layer(const config::RunPlan& plan) {
  const nn::MoeConfig& moe = plan.model.moe;
  const auto require = [](bool holds, std::string_view key, const auto& value, const std::string& rule) {
    if (!holds) throw ConfigError(str(key, " = ", value, ": ", rule));
  };
  require(moe.has_experts(), "moe.num_experts", "none", "must be given: bench moe times a layer of experts");
  for (const auto& [key, size] : {std::pair{"parallel.tp", plan.grid.tp}, std::pair{"parallel.pp", plan.grid.pp},
                                  std::pair{"parallel.etp", plan.grid.etp}})
    require(size == 1, key, size, "must be 1: ranks of bench moe only share out experts");
  require(plan.grid.world_size == plan.grid.ep, "parallel.ranks", plan.grid.world_size,
          str("must be --ep = ", plan.grid.ep, ": ranks of bench moe only share out experts"));
  require(plan.model.hidden_size >= moe.num_experts, "--hidden", plan.model.hidden_size,
          str("must be at least --experts = ", moe.num_experts, ", as the first numbers of a row are its logits"));
  require(moe.group_top_k == moe.num_groups, "moe.group_top_k", moe.group_top_k,
          str("must be moe.num_groups = ", moe.num_groups, ": a load names experts of all groups"));
  const std::string because = "--load gives every token its experts: leave it out";
  require(!moe.force_balance, "moe.force_balance", "true", because + ", or use --load even");
  require(moe.replay.empty(), "moe.replay", moe.replay, because + ", or use --load trace:FILE");
  require(moe.router_skew == 0, "moe.router_skew", moe.router_skew, because);
  require(plan.graphs.mode == capture::GraphMode::none, "graphs.mode", capture::name(plan.graphs.mode),
          "must be none: the parts of a graph cannot be timed");
}

/// How uneven a load is: the greatest number over the mean, in the worst step.
struct Unevenness {
  double of_experts = 1, of_ranks = 1;
};

struct MoeResult {
  std::vector<LayerTimes> times;            ///< by step
  std::vector<std::vector<Index>> choices;  ///< by step and expert
  LayerBytes bytes;                         ///< of rank 0
};

Unevenness unevenness(const MoeResult& result, int ranks) {
  Unevenness worst;
  for (const std::vector<Index>& counts : result.choices) {
    const std::size_t of_a_rank = counts.size() / static_cast<std::size_t>(ranks);
    const auto sum = static_cast<double>(std::accumulate(counts.begin(), counts.end(), Index{0}));
    const auto over_mean = [&](Index most, std::size_t shares) {
      return static_cast<double>(most) * static_cast<double>(shares) / sum;
    };
    worst.of_experts = std::max(worst.of_experts, over_mean(std::ranges::max(counts), counts.size()));
    for (auto first = counts.begin(); first != counts.end(); first += static_cast<std::ptrdiff_t>(of_a_rank)) {
      const Index rows = std::accumulate(first, first + static_cast<std::ptrdiff_t>(of_a_rank), Index{0});
      worst.of_ranks = std::max(worst.of_ranks, over_mean(rows, static_cast<std::size_t>(ranks)));
    }
  }
  return worst;
}

/// Over the steps.
struct OverSteps {
  double median_s = 0, max_s = 0;
};
template <class Of>
OverSteps over_steps(const MoeResult& result, Of&& of) {
  std::vector<double> all;
  for (const LayerTimes& times : result.times) all.push_back(of(times));
  return {median(all), std::ranges::max(all)};
}

/// A part of the layer in one pass.
struct PartTimes {
  OverSteps whole, communication;  ///< communication: in clone_times() what is exposed
};
PartTimes part_times(const MoeResult& result, LayerPass pass, std::size_t part) {
  const auto of = [&](double LayerTimes::Part::*member) {
    return over_steps(
        result, [&](const LayerTimes& times) { return times.parts[static_cast<std::size_t>(pass)][part].*member; });
  };
  return {of(&LayerTimes::Part::seconds), of(&LayerTimes::Part::communication_s)};
}
OverSteps pass_times(const MoeResult& result, LayerPass pass) {
  return over_steps(result, [&](const LayerTimes& times) { return times.whole_s[static_cast<std::size_t>(pass)]; });
}
/// The transfer, or the ops, of a part of clones in one pass, and what of it is exposed.
PartTimes clone_times(const MoeResult& result, LayerPass pass, std::size_t part) {
  const auto of = [&](double LayerTimes::ClonePart::*member) {
    return over_steps(
        result, [&](const LayerTimes& times) { return times.clones[static_cast<std::size_t>(pass)][part].*member; });
  };
  return {of(&LayerTimes::ClonePart::seconds), of(&LayerTimes::ClonePart::exposed_s)};
}
/// Pairs of the most loaded rank with clones, over the mean, in the worst step; 0 without clones.
double load_with_clones(const MoeResult& result) {
  return over_steps(result, [](const LayerTimes& times) { return times.max_over_mean; }).max_s;
}
Index lacking_rows(const MoeResult& result) {
  Index most = 0;
  for (const LayerTimes& times : result.times) most = std::max(most, times.lacking_rows);
  return most;
}
constexpr std::pair<LayerPass, std::string_view> kPasses[] = {{LayerPass::forward, "forward"},
                                                              {LayerPass::backward, "backward"}};

void print_layer_json(const MoeBench& b, const config::RunPlan& plan, const MoeResult& result) {
  const nn::MoeConfig& moe = plan.model.moe;
  const Unevenness load = unevenness(result, plan.grid.world_size);
  nlohmann::ordered_json out = {{"ranks", plan.grid.world_size},
                                {"tokens", plan.train.micro_batch * plan.model.seq_len},
                                {"hidden", plan.model.hidden_size},
                                {"ffn", moe.ffn_hidden_size},
                                {"experts", moe.num_experts},
                                {"top_k", moe.top_k},
                                {"precision", plan.train.precision},
                                {"load", b.load},
                                {"expert_max_over_mean", load.of_experts},
                                {"rank_max_over_mean", load.of_ranks},
                                {"kept_bytes", result.bytes.kept},
                                {"scratch_bytes", result.bytes.scratch}};
  const bool has_clones = load_with_clones(result) > 0;
  if (has_clones) out["rank_max_over_mean_with_clones"] = load_with_clones(result);
  if (lacking_rows(result) > 0) out["pairs_left_out"] = lacking_rows(result);
  for (const auto& [pass, name] : kPasses) {
    const OverSteps whole = pass_times(result, pass);
    nlohmann::ordered_json& of = out[std::string(name)];
    of = {{"seconds", whole.median_s}, {"max_seconds", whole.max_s}};
    for (std::size_t part = 0; part < kMoeParts.size(); ++part) {
      const PartTimes times = part_times(result, pass, part);
      of["parts"].push_back({{"name", kMoeParts[part]},
                             {"seconds", times.whole.median_s},
                             {"max_seconds", times.whole.max_s},
                             {"communication_seconds", times.communication.median_s}});
    }
    for (std::size_t part = 0; has_clones && part < kCloneParts.size(); ++part) {
      const PartTimes times = clone_times(result, pass, part);
      of["clones"].push_back({{"name", kCloneParts[part]},
                              {"seconds", times.whole.median_s},
                              {"max_seconds", times.whole.max_s},
                              {"exposed_seconds", times.communication.median_s}});
    }
  }
  out["choices"] = result.choices;
  std::printf("%s\n", out.dump(2).c_str());
}

void print_clones(const MoeResult& result) {
  std::printf("clones: at most %.3f times the mean for a rank\n%-12s %12s %15s %12s %15s\n", load_with_clones(result),
              "", "forward", "exposed", "backward", "exposed");
  for (std::size_t part = 0; part < kCloneParts.size(); ++part) {
    std::printf("%-12s", std::string(kCloneParts[part]).c_str());
    for (const auto& [pass, name] : kPasses) {
      const PartTimes times = clone_times(result, pass, part);
      std::printf(" %9.1f us %12.1f us", 1e6 * times.whole.median_s, 1e6 * times.communication.median_s);
    }
    std::printf("\n");
  }
}

void print_layer_table(const MoeBench& b, const config::RunPlan& plan, const MoeResult& result) {
  const nn::MoeConfig& moe = plan.model.moe;
  const Unevenness load = unevenness(result, plan.grid.world_size);
  std::printf(
      "%d ranks with %lld tokens each, hidden %lld, %lld experts of %lld, top-%lld, %s, median of %zu steps\n"
      "load %s: at most %.2f times the mean for an expert, %.2f for a rank\n"
      "%-12s %12s %15s %12s %15s\n",
      plan.grid.world_size, static_cast<long long>(plan.train.micro_batch) * static_cast<long long>(plan.model.seq_len),
      static_cast<long long>(plan.model.hidden_size), static_cast<long long>(moe.num_experts),
      static_cast<long long>(moe.ffn_hidden_size), static_cast<long long>(moe.top_k), plan.train.precision.c_str(),
      result.times.size(), b.load.c_str(), load.of_experts, load.of_ranks, "", "forward", "communication", "backward",
      "communication");
  for (std::size_t part = 0; part < kMoeParts.size(); ++part) {
    std::printf("%-12s", std::string(kMoeParts[part]).c_str());
    for (const auto& [pass, name] : kPasses) {
      const PartTimes times = part_times(result, pass, part);
      std::printf(" %9.1f us %12.1f us", 1e6 * times.whole.median_s, 1e6 * times.communication.median_s);
    }
    std::printf("\n");
  }
  std::printf("%-12s", "layer");
  for (const auto& [pass, name] : kPasses) std::printf(" %9.1f us %15s", 1e6 * pass_times(result, pass).median_s, "");
  std::printf("\n%-12s", "slowest step");
  for (const auto& [pass, name] : kPasses) std::printf(" %9.1f us %15s", 1e6 * pass_times(result, pass).max_s, "");
  std::printf("\n");
  if (load_with_clones(result) > 0) print_clones(result);
  if (const Index pairs = lacking_rows(result); pairs > 0)
    std::printf(
        "up to %lld pairs of a step had no room on their ranks and were left out: --set "
        "moe.rank_capacity_factor=worst has room for all\n",
        static_cast<long long>(pairs));
}

void run_moe_bench(const MoeBench& b) {
  const Launcher launcher = detect_launcher();
  const config::RunPlan plan = layer_plan(b);
  check_layer(plan);
  const LoadSizes sizes{.tokens = plan.train.micro_batch * plan.model.seq_len,
                        .experts = plan.model.moe.num_experts,
                        .top_k = plan.model.moe.top_k,
                        .ranks = plan.grid.world_size};
  const ExpertLoad load(*io::posix_fs(), b.load, sizes);
  std::optional<MoeResult> result;
  const auto shape = [&] {
    require_processes(launcher, "--ep", plan.grid.world_size);
    return shape_of(plan);
  };
  const auto body = [&](comm::World& world) {
    LayerBench layer(world, plan, load);
    layer.warm_up();
    MoeResult mine{.times = {}, .choices = {}, .bytes = layer.bytes()};
    for (Index step = 0; step < b.warmup; ++step) layer.step(0);
    for (Index step = 0; step < b.steps; ++step) {
      mine.times.push_back(layer.step(step));
      mine.choices.push_back(load.counts(step));
    }
    if (world.rank() == 0) result = std::move(mine);
  };
  // Those about what a layer does; others are about training.
  constexpr std::string_view kOfLayers[] = {"moe.echo.", "moe.gemm", "fp8.experts"};
  for (const std::string& warning : plan.warnings()) {
    const bool is_of_layer = std::ranges::any_of(kOfLayers, [&](auto key) { return warning.starts_with(key); });
    if (launcher.process == 0 && is_of_layer) log::warning(warning);
  }
  run_job(launcher, {.shape = shape, .body = body});
  if (!result) return;
  if (b.format == "json")
    print_layer_json(b, plan, *result);
  else
    print_layer_table(b, plan, *result);
}

constexpr const char* kLoads =
    "Choices of each expert. even: equal; hot: expert 0 is among those of every token; rank: the experts of rank 0 get "
    "all they can take; rotate: as hot, another rank's expert in each step; burst: even, and every fourth step as "
    "rank; trace:FILE: those of the first MoE layer in a file of train --router-trace, step after step";

}  // namespace

void add_bench_moe(CLI::App& bench) {
  const auto b = std::make_shared<MoeBench>();
  CLI::App* command = bench.add_subcommand(
      "moe",
      "A layer of experts, forward and backward, by its parts: router; preprocess (counts, and rows in the order of "
      "their ranks); dispatch (to the ranks of the experts); experts (GEMMs); combine (weighted sums). Backward: "
      "combine (gradients as rows), experts (the way to the experts, GEMMs), dispatch (the way back, beside the last "
      "weight gradient), preprocess (sums of rows), router. Results come back in experts by moe.dispatcher = "
      "all_to_all, in combine by peer. Times are those of the slowest rank, by the host's clock on a CPU and by "
      "events on a GPU. Communication is the time in calls between ranks and waits, of a second run, so it can be more "
      "than its row's. Rows are random, but for the numbers that make the router choose the load's experts");
  add_device_options(*command, b->device, b->precision);
  command->get_option("--precision")
      ->description("fp64, fp32, bf16, fp16 or fp8 (default: fp32 on the CPU, bf16 on a GPU)");
  const auto size = [&](const char* name, Index& value, const char* what, Index max) {
    return command->add_option(name, value, what)->check(between(1, max))->capture_default_str();
  };
  constexpr Index kMaxSize = std::numeric_limits<std::int32_t>::max();
  size("--tokens", b->tokens, "Tokens of a rank; or --set model.seq_len", kMaxSize);
  const std::vector<CLI::Option*> shape = {size("--hidden", b->hidden, "Hidden size", kMaxSize),
                                           size("--ffn", b->ffn, "Width of an expert", kMaxSize),
                                           size("--experts", b->experts, "Experts", ops::kMaxRouterExperts),
                                           size("--top-k", b->top_k, "Experts of a token", ops::kMaxRouterExperts)};
  size("--ep", b->ep, "Ranks, among which the experts are divided", kMaxSize);
  command
      ->add_option("--echo", b->echo,
                   "Slots of a rank for clones of experts, as --set moe.echo.slots=S; also prints the planner and the "
                   "rewriting (parts of preprocess), the transfers of weights and gradients beside the other parts, "
                   "and what of each is exposed")
      ->check(between(0, ops::kMaxEchoSlots))
      ->capture_default_str();
  command->add_option("--load", b->load, kLoads)->capture_default_str();
  size("--steps", b->steps, "Steps measured", kMaxSize);
  command->add_option("--warmup", b->warmup, "Steps before them")->check(between(0, kMaxSize))->capture_default_str();
  command->add_flag("--deterministic", b->deterministic, "The same bits every time");
  command->add_option("--set", b->settings, "KEY=VALUE of a recipe, as moe.capacity=pad or model.preset=olmoe-1b-7b");
  command->add_option("--format", b->format, "text or json")->check(CLI::IsMember({"text", "json"}));
  command->callback([b, shape, command] {
    for (const CLI::Option* option : shape) {
      if (option->count() > 0) b->shape.push_back(option->get_name());
    }
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() > 0) b->given.push_back(option->get_name());
    }
    run_moe_bench(*b);
  });
}

}  // namespace megalith::apps
