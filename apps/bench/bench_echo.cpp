#include "apps/bench/bench_echo.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/comm/group.h"
#include "megalith/comm/peer/row_kernels.h"
#include "megalith/comm/peer/rows_alone.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/ops/echo_routing.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/router.h"

#include "apps/bench/expert_loads.h"
#include "apps/bench/ops_runner.h"
#include "apps/program/command.h"

namespace megalith::apps {
namespace {

struct EchoBench {
  OpsBench ops;
  Index ranks = 4, experts = 64, top_k = 8, tokens = 16384, slots = 3, min_pairs = 1024, hidden = 2048, ffn = 1024;
  std::string load = "rank", balance = "greedy";
};

constexpr Index kLargestInt32 = std::numeric_limits<std::int32_t>::max();

/// All broken rules between options at once.
void check_echo_bench(const EchoBench& o) {
  Problems problems;
  if (o.experts % o.ranks != 0) problems.add("--experts", o.experts, str("must be a multiple of --ranks = ", o.ranks));
  if (o.top_k > o.experts) problems.add("--top-k", o.top_k, str("must be at most --experts = ", o.experts));
  if (o.slots > o.experts) problems.add("--slots", o.slots, str("must be at most --experts = ", o.experts));
  if (const Index of_a_token = o.ranks * o.top_k; o.tokens > kLargestInt32 / of_a_token)
    problems.add(
        "--tokens", o.tokens,
        str("--ranks * --tokens * --top-k must be below 2^31; with these the most is ", kLargestInt32 / of_a_token));
  if (o.hidden * o.ffn > kLargestInt32)
    problems.add("--ffn", o.ffn,
                 str("--hidden * --ffn must be below 2^31; with --hidden = ", o.hidden, " the most is ",
                     kLargestInt32 / o.hidden));
  problems.throw_if_any("bench echo");
}

std::vector<std::int32_t> ints_on_host(Exec& ex, const Tensor& ints) {
  std::vector<std::int32_t> host(static_cast<std::size_t>(ints.numel()));
  ex.copy(host.data(), ints.raw(), ints.bytes());
  ex.synchronize();
  return host;
}

/// What each rank runs for a layer and a microbatch between its router and its first row, without the gather of
/// choices.
class PlanOps {
 public:
  PlanOps(OpsRunner& bench, const EchoBench& o)
      : bench_(bench),
        o_(o),
        choices_(choices_of_all()),
        columns_(bench.empty(choices_.shape(), DType::i32)),
        counts_(bench.empty({o.ranks, o.experts}, DType::i32)),
        plan_(ops::make_echo_plan(bench.ex(), o.ranks, o.experts, o.slots)),
        stages_(ops::make_echo_stages(bench.ex(), o.ranks, o.experts, o.slots)),
        lists_(ops::make_clone_lists(bench.ex(), o.ranks, o.experts, o.slots)) {
    plan_.hash = {};  // for moe.echo.check_plan alone
  }

  void measure() {
    const auto bytes = [](std::initializer_list<Tensor> tensors) {
      double sum = 0;
      for (const Tensor& tensor : tensors) sum += static_cast<double>(tensor.bytes());
      return sum;
    };
    const double counting = bytes({choices_, counts_}), planning = bytes({counts_, plan_.rows, plan_.take}),
                 rewriting = bytes({choices_, columns_}), listing = bytes({plan_.src, lists_.sent, lists_.places});
    bench_.measure("count_pairs", 0, counting, [this](Exec& e) { count(e); });
    bench_.measure("plan_echo", 0, planning, [this](Exec& e) { plan(e); });
    bench_.measure("rewrite_choices", 0, rewriting, [this](Exec& e) { rewrite(e); });
    bench_.measure("list_clones", 0, listing, [this](Exec& e) { list(e); });
    bench_.measure("plan and rewriting, all four", 0, counting + planning + rewriting + listing, [this](Exec& e) {
      count(e);
      plan(e);
      rewrite(e);
      list(e);
    });
  }

  struct Facts {
    Index clones = 0, moved = 0;
    double before = 0, after = 0;  ///< pairs of the most loaded rank over the mean
  };
  Facts facts() const {
    Exec& ex = bench_.ex();
    Facts facts;
    for (const std::int32_t expert : ints_on_host(ex, plan_.src)) facts.clones += expert >= 0 ? 1 : 0;
    for (const std::int32_t pairs : ints_on_host(ex, plan_.cap)) facts.moved += pairs;
    const double mean = static_cast<double>(o_.tokens * o_.top_k);
    facts.before = std::ranges::max(ints_on_host(ex, stages_.load)) / mean;
    facts.after = std::ranges::max(ints_on_host(ex, plan_.load_after)) / mean;
    return facts;
  }

 private:
  Tensor choices_of_all() const {
    const ExpertLoad load(*io::posix_fs(), o_.load,
                          {.tokens = o_.tokens, .experts = o_.experts, .top_k = o_.top_k, .ranks = o_.ranks});
    std::vector<std::int32_t> all;
    for (Index rank = 0; rank < o_.ranks; ++rank) {
      const std::vector<std::int32_t> of_rank = load.choices(0, rank);
      all.insert(all.end(), of_rank.begin(), of_rank.end());
    }
    return bench_.on_device(all).reshaped({o_.ranks, o_.tokens, o_.top_k});
  }
  void count(Exec& e) const { ops::count_pairs(e, {.experts = choices_, .counts = counts_}); }
  void plan(Exec& e) const {
    const bool is_exact = o_.balance == "exact";
    ops::plan_echo(e, {.counts = counts_,
                       .plan = plan_,
                       .stages = stages_,
                       .balance = is_exact ? ops::EchoBalance::exact : ops::EchoBalance::greedy,
                       .min_pairs = is_exact ? 0 : o_.min_pairs});
  }
  void rewrite(Exec& e) const {
    ops::rewrite_choices(
        e, {.experts = choices_, .src = plan_.src, .take = plan_.take, .columns = columns_, .num_experts = o_.experts});
  }
  void list(Exec& e) const {
    ops::list_clones(e, {.src = plan_.src, .lists = lists_, .num_experts = o_.experts, .ranks = o_.ranks, .rank = 0});
  }

  OpsRunner& bench_;
  const EchoBench& o_;
  Tensor choices_, columns_;  // [R, T, K]
  Tensor counts_;             // [R, E]
  ops::EchoPlan plan_;
  ops::EchoStages stages_;
  ops::CloneLists lists_;
};

/// Runs one gather_rows of a rank with itself.
using GatherAlone = std::function<void(Exec&, const comm::GatherRows&)>;

/// Weights of clones come to their slots: both matrices of each, from rows of the same device.
class SlotWeights {
 public:
  SlotWeights(OpsRunner& bench, const EchoBench& o) : bench_(bench), slots_(o.slots) {
    for (const Index numbers : {2 * o.ffn * o.hidden, o.ffn * o.hidden}) {
      const Shape rows{slots_, numbers};
      matrices_.push_back({bench.random(rows), bench.empty(rows)});
    }
  }

  /// For one slot, and for all at once.
  void measure(const GatherAlone& gather) {
    measure(1, gather);
    if (slots_ > 1) measure(slots_, gather);
  }
  /// The rate of gather_rows over that of a copy of the same bytes.
  struct ShareOfCopy {
    std::string what;
    Index slots = 0;
    double share = 0;
  };
  const std::vector<ShareOfCopy>& shares_of_copy() const { return shares_; }

 private:
  struct Matrices {
    Tensor of_experts, in_slots;  ///< [S, N K]
  };

  void measure(Index count, const GatherAlone& gather) {
    const comm::RowPulls pulls = pulls_of(count);
    double bytes = 0;
    for (const Matrices& of : matrices_) bytes += 2 * static_cast<double>(of.in_slots.rows(0, count).bytes());
    const std::string what = count == 1 ? "weights of a slot" : str("weights of ", count, " slots");
    bench_.measure(what + ", gather_rows", 0, bytes, [&](Exec& e) {
      for (const Matrices& of : matrices_) gather(e, {.mine = of.of_experts, .pulls = pulls, .out = of.in_slots});
    });
    const double gathered_s = bench_.last().seconds;
    bench_.measure(what + ", copy", 0, bytes, [&](Exec& e) {
      for (const Matrices& of : matrices_) ops::copy(e, of.of_experts.rows(0, count), of.in_slots.rows(0, count));
    });
    shares_.push_back({what, count, bench_.last().seconds / gathered_s});
  }

  /// Slot i takes the expert i.
  comm::RowPulls pulls_of(Index count) {
    const auto n = static_cast<std::size_t>(count);
    std::vector<std::int32_t> up(n + 1), places(2 * n, 0);
    std::iota(up.begin(), up.end(), 0);
    for (std::size_t i = 0; i < n; ++i) places[2 * i + 1] = static_cast<std::int32_t>(i);
    const auto number = static_cast<std::int32_t>(count);
    return {.counts = bench_.on_device(std::vector<std::int32_t>{number, number}),
            .sources = bench_.on_device(places).reshaped({count, 2}),
            .begin = bench_.on_device(up),
            .wants = bench_.on_device(std::vector<std::int32_t>(up.begin(), up.end() - 1))};
  }

  OpsRunner& bench_;
  Index slots_;
  std::vector<Matrices> matrices_;
  std::vector<ShareOfCopy> shares_;
};

void measure_weights(OpsRunner& bench, SlotWeights& weights) {
  if (bench.ex().device() == Device::cpu) {
    comm::run_ranks(1, [&](comm::World& world) {
      weights.measure([&](Exec& e, const comm::GatherRows& args) {
        comm::gather_rows(e, world.all(), args.mine, args.pulls, args.out).wait(e);
      });
    });
    return;
  }
  const comm::RowsAlone alone;
  weights.measure([&](Exec& e, const comm::GatherRows& args) {
    e.run({.name = "gather_rows", .reads = {args.mine}, .writes = {args.out}},
          [&alone, args](Exec&, Stream stream) { alone.gather_rows(stream, args, comm::kMaxRowCtas); });
  });
}

void run_echo_bench(const EchoBench& o) {
  check_echo_bench(o);
  OpsRunner bench(o.ops);
  bench.measure_roofs();
  PlanOps plan(bench, o);
  plan.measure();
  SlotWeights weights(bench, o);
  measure_weights(bench, weights);
  const PlanOps::Facts of = plan.facts();
  nlohmann::ordered_json facts = {{"ranks", o.ranks},           {"experts", o.experts},
                                  {"top_k", o.top_k},           {"tokens", o.tokens},
                                  {"slots", o.slots},           {"load", o.load},
                                  {"clones", of.clones},        {"moved", of.moved},
                                  {"max_over_mean", of.before}, {"max_over_mean_after", of.after}};
  char loads[64];
  std::snprintf(loads, sizeof loads, "%.3f > %.3f", of.before, of.after);
  std::string title =
      str(o.ranks, " ranks, ", o.experts, " experts, top-", o.top_k, ", ", o.tokens, " tokens a rank, slots ", o.slots,
          "; load ", o.load, ", most loaded rank over the mean ", loads, ", ", of.clones, " clones");
  for (const auto& [what, slots, share] : weights.shares_of_copy()) {
    facts["share_of_copy"].push_back({{"slots", slots}, {"share", share}});
    char percent[32];
    std::snprintf(percent, sizeof percent, "%.1f %%", 100 * share);
    title += str("\n", what, ": gather_rows has ", percent, " of the rate of a copy");
  }
  bench.print(facts, title);
}

}  // namespace

void add_bench_echo(CLI::App& bench) {
  const auto o = std::make_shared<EchoBench>();
  CLI::App* command = bench.add_subcommand(
      "echo",
      "What clones of experts (moe.echo) cost on one device, without communication: counts of pairs, the plan, the "
      "columns of pairs and the lists of clones, which every rank computes for all ranks; and the weights of a slot, "
      "two matrices of 2 F H and F H numbers, by gather_rows from the same device, beside a copy of the same bytes. "
      "The defaults are the experts of docs/echo.md's benchmark on four GPUs, with 16,384 tokens of a rank");
  add_device_options(*command, o->ops.device, o->ops.precision);
  const auto size = [&](const char* name, Index& value, const std::string& what, Index max, Index min = 1) {
    command->add_option(name, value, what)->check(between(min, max))->capture_default_str();
  };
  size("--ranks", o->ranks, "Ranks that share the experts (parallel.ep)", ops::kMaxEchoRanks);
  size("--experts", o->experts, "Experts of a layer", ops::kMaxEchoExperts);
  size("--top-k", o->top_k, "Experts of a token", ops::kMaxRouterExperts);
  size("--tokens", o->tokens, "Tokens of a rank in a microbatch", kLargestInt32);
  size("--slots", o->slots, "Slots of a rank (moe.echo.slots)", ops::kMaxEchoSlots);
  size("--min-pairs", o->min_pairs, "Of a clone (moe.echo.min_pairs); exact takes none", kLargestInt32, 0);
  size("--hidden", o->hidden, "H", kLargestInt32);
  size("--ffn", o->ffn, "F, the width of an expert", kLargestInt32);
  command->add_option("--balance", o->balance, "greedy or exact (moe.echo.balance)")
      ->check(CLI::IsMember({"greedy", "exact"}))
      ->capture_default_str();
  command->add_option("--load", o->load, "As of bench moe; its first step")->capture_default_str();
  add_repeat_options(*command, o->ops);
  command->callback([o] { run_echo_bench(*o); });
}

}  // namespace megalith::apps
