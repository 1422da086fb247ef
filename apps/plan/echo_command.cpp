#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/io/fs.h"
#include "megalith/report/echo_counts_file.h"
#include "megalith/report/echo_trace_report.h"

#include "apps/program/command.h"

namespace megalith::apps {
namespace {

constexpr Index kDefaultRanks = 4, kDefaultExperts = 64, kDefaultTokens = 8192, kDefaultTopK = 8;
constexpr Index kDefaultSlots = 3, kDefaultMinPairs = 1024;  // of a run

struct EchoOptions {
  std::string counts, trace;
  std::optional<double> zipf;
  std::optional<Index> ranks, experts, tokens, top_k, slots, min_pairs;
  std::optional<std::string> balance;
  std::optional<Index> micro_batch, dp, step, layer, microbatch;
  std::optional<double> link_gbps, tflops;
  std::optional<Index> hidden, ffn, weight_bytes;
  std::string stage = "all", format = "text";

  bool is_one_plan() const { return trace.empty() || (step && layer); }
  EchoCosts costs() const {
    EchoCosts of;
    of.link_gbps = link_gbps.value_or(0);
    of.tflops = tflops.value_or(0);
    of.hidden = hidden.value_or(0);
    of.ffn = ffn.value_or(0);
    of.weight_bytes = weight_bytes.value_or(of.weight_bytes);
    return of;
  }
};

/// Refuses an option that was given and does nothing without another.
void require_beside(Problems& problems, bool is_given, bool has_other, const char* option, const char* other) {
  if (is_given && !has_other) problems.add_line(str(option, ": does nothing without ", other));
}

/// What a clone costs is printed if both rates, or both sizes, are known.
void check_costs(const EchoOptions& o, Problems& problems) {
  const bool is_shown = !o.is_one_plan() || (o.format == "text" && (o.stage == "all" || o.stage == "plan"));
  const auto check = [&](bool is_given, bool has_other, const char* option, const char* other) {
    require_beside(problems, is_given, has_other, option, other);
    if (is_given && has_other && !is_shown)
      problems.add_line(str(option,
                            ": does nothing here: costs of one plan are printed with --format text, in "
                            "--stage plan or without --stage"));
  };
  const bool has_rates = o.link_gbps && o.tflops, has_bytes = o.hidden && o.ffn;
  check(o.link_gbps.has_value(), o.tflops.has_value(), "--link-gbps", "--tflops");
  check(o.tflops.has_value(), o.link_gbps.has_value(), "--tflops", "--link-gbps");
  check(o.hidden.has_value(), o.ffn.has_value(), "--hidden", "--ffn");
  check(o.ffn.has_value(), o.hidden.has_value(), "--ffn", "--hidden");
  check(o.weight_bytes.has_value(), has_rates || has_bytes, "--weight-bytes",
        "--link-gbps and --tflops, or --hidden and --ffn");
}

/// Rules between options; all broken ones at once.
void check_options(const EchoOptions& o) {
  Problems problems;
  const int sources = (o.counts.empty() ? 0 : 1) + (o.trace.empty() ? 0 : 1) + (o.zipf ? 1 : 0);
  if (sources != 1) problems.add_line("--counts, --router-trace, --zipf: must be given, and one of them only");
  const auto only_with = [&](bool is_given, bool is_allowed, const char* option, const char* with) {
    require_beside(problems, is_given, is_allowed, option, with);
  };
  only_with(o.tokens.has_value(), o.zipf.has_value(), "--tokens", "--zipf");
  only_with(o.top_k.has_value(), o.zipf.has_value(), "--top-k", "--zipf");
  only_with(o.step.has_value(), !o.trace.empty(), "--step", "--router-trace");
  only_with(o.layer.has_value(), !o.trace.empty(), "--layer", "--router-trace");
  only_with(o.microbatch.has_value(), !o.trace.empty() && o.is_one_plan(), "--microbatch", "--step and --layer");
  only_with(o.dp.has_value(), !o.trace.empty(), "--dp", "--router-trace");
  only_with(o.micro_batch.has_value(), !o.trace.empty(), "--micro-batch", "--router-trace");
  check_costs(o, problems);
  if (o.dp && o.ranks)
    problems.require(*o.dp % *o.ranks == 0, "--dp", *o.dp, str("must be a multiple of --ep = ", *o.ranks));
  if (!o.trace.empty() && !o.ranks) problems.add_line("--ep: must be given with --router-trace");
  if (!o.is_one_plan() && o.format == "svg")
    problems.add("--format", o.format, "draws one plan; choose it with --step and --layer");
  if (!o.is_one_plan() && o.stage != "all")
    problems.add("--stage", o.stage, "is of one plan; choose it with --step and --layer");
  if (o.stage != "all" && o.format != "text") problems.add("--stage", o.stage, "needs --format text");
  if (o.balance == "exact" && o.min_pairs.value_or(0) != 0)
    problems.add("--min-pairs", *o.min_pairs, "must be 0 with --balance exact");
  if (o.zipf) {
    const Index ranks = o.ranks.value_or(kDefaultRanks), experts = o.experts.value_or(kDefaultExperts);
    problems.require(experts % ranks == 0, "--experts", experts, str("must be a multiple of --ep = ", ranks));
    problems.require(o.top_k.value_or(kDefaultTopK) <= experts, "--top-k", o.top_k.value_or(kDefaultTopK),
                     str("must be at most --experts = ", experts));
    constexpr Index kMaxPairs = Index{1} << 31, kMaxLogits = Index{1} << 27;  // some 10 s
    const Index tokens = o.tokens.value_or(kDefaultTokens), all = ranks * tokens;
    problems.require(all * o.top_k.value_or(kDefaultTopK) < kMaxPairs && all * experts <= kMaxLogits, "--tokens",
                     tokens,
                     str("--ep * --tokens * --top-k must be below 2^31, and --ep * --tokens * --experts at most 2^27; "
                         "use fewer tokens"));
  }
  problems.throw_if_any("echo");
}

/// What was given, else what the file has, else the defaults of a run.
EchoSettings settings_of(const EchoOptions& o, const EchoFile::Asked& of_file, Index ranks, Index experts) {
  EchoSettings settings{.slots = o.slots.value_or(of_file.slots.value_or(std::min(kDefaultSlots, experts))),
                        .balance = of_file.balance.value_or(ops::EchoBalance::greedy)};
  if (o.balance) settings.balance = *o.balance == "exact" ? ops::EchoBalance::exact : ops::EchoBalance::greedy;
  settings.min_pairs = of_file.min_pairs.value_or(kDefaultMinPairs);
  if (settings.balance == ops::EchoBalance::exact) settings.min_pairs = 0;
  if (o.min_pairs) settings.min_pairs = *o.min_pairs;
  if (settings.slots > experts)
    throw ConfigError(str("--slots = ", settings.slots, ": must be at most the number of experts, ", experts));
  if (const std::string rule = why_too_many_columns(ranks, experts, settings.slots); !rule.empty())
    throw ConfigError(str("--slots = ", settings.slots, ": ", rule));
  if (settings.balance == ops::EchoBalance::exact && settings.min_pairs != 0)
    throw ConfigError(str("--min-pairs = ", settings.min_pairs, ": must be 0 with balance = exact"));
  return settings;
}

EchoFormat format_of(const EchoOptions& o) {
  return o.format == "json" ? EchoFormat::json : o.format == "svg" ? EchoFormat::svg : EchoFormat::text;
}

EchoStage stage_of(const EchoOptions& o) {
  constexpr std::pair<const char*, EchoStage> kStages[] = {{"spill", EchoStage::spill},
                                                           {"assign", EchoStage::assign},
                                                           {"slots", EchoStage::slots},
                                                           {"shares", EchoStage::shares},
                                                           {"plan", EchoStage::plan}};
  for (const auto& [name, stage] : kStages) {
    if (o.stage == name) return stage;
  }
  return EchoStage::all;
}

std::string one_plan(const EchoOptions& o, const EchoCounts& counts, const EchoFile::Asked& of_file = {}) {
  const EchoSettings settings = settings_of(o, of_file, counts.ranks, counts.experts);
  return echo_report(run_echo(counts, settings), format_of(o), stage_of(o), o.costs());
}

std::string trace_report(const EchoOptions& o) {
  const EchoTrace trace(*io::posix_fs(), o.trace, {.ranks = *o.ranks, .experts = o.experts.value_or(0)},
                        {.dp = o.dp.value_or(*o.ranks), .micro_batch = o.micro_batch.value_or(1)});
  Problems problems;
  if (o.step)
    problems.require(*o.step >= trace.first_step() && *o.step <= trace.last_step(), "--step", *o.step,
                     str("must be from ", trace.first_step(), " to ", trace.last_step(), ", as the trace has"));
  if (o.layer)
    problems.require(trace.moe_layer(*o.layer) >= 0, "--layer", *o.layer,
                     str("must have experts; the model's layers are ", trace.shape().pattern, " (m: with experts)"));
  const Index microbatch = o.microbatch.value_or(0);
  problems.require(microbatch < trace.microbatches(), "--microbatch", microbatch,
                   str("must be below ", trace.microbatches(), ", as a step has"));
  problems.throw_if_any("echo");
  if (o.is_one_plan()) return one_plan(o, trace.counts(*o.step, trace.moe_layer(*o.layer), microbatch));
  return echo_trace_report(trace, {.file = o.trace,
                                   .settings = settings_of(o, {}, trace.ranks(), trace.shape().experts),
                                   .costs = o.costs(),
                                   .step = o.step.value_or(0),
                                   .layer = o.layer.value_or(-1),
                                   .format = format_of(o)});
}

std::string echo_output(const EchoOptions& o) {
  check_options(o);
  if (!o.trace.empty()) return trace_report(o);
  if (!o.counts.empty()) {
    const io::MappedFile map = io::posix_fs()->map(o.counts);
    const EchoFile file =
        read_echo_counts(map.text(), o.counts, {.ranks = o.ranks.value_or(0), .experts = o.experts.value_or(0)});
    return one_plan(o, file.counts, file.asked);
  }
  const SkewedRouter router{
      .skew = *o.zipf, .tokens = o.tokens.value_or(kDefaultTokens), .top_k = o.top_k.value_or(kDefaultTopK)};
  return one_plan(o, skewed_counts(router, o.ranks.value_or(kDefaultRanks), o.experts.value_or(kDefaultExperts)));
}

constexpr const char* kEchoFooter =
    "A run's own routing: megalith train RECIPE.toml --router-trace FILE, then\n"
    "  megalith echo --router-trace FILE --ep 4 --link-gbps 400 --tflops 600\n";

void add_sources(CLI::App& command, EchoOptions& o) {
  command.add_option("--counts", o.counts,
                     "JSON file: R arrays of E pairs, by source rank and expert; or an entry of "
                     "the planner's test vectors");
  command.add_option("--router-trace", o.trace, "File of train --router-trace: all layers over all steps");
  command.add_option("--zipf", o.zipf, "A router without training under moe.router_skew = this")
      ->check(number_that([](double value) { return value >= 0 && value <= 100; }, "from 0 to 100"));
  command.add_option("--ep", o.ranks, "Ranks that share the experts (default with --zipf: 4)")
      ->check(between(1, ops::kMaxEchoRanks));
  command.add_option("--experts", o.experts, "Experts of all ranks (default with --zipf: 64)")
      ->check(between(1, ops::kMaxEchoExperts));
  command.add_option("--tokens", o.tokens, "Tokens of a rank, with --zipf (default: 8192)")->check(between(1, 1 << 20));
  command.add_option("--top-k", o.top_k, "Experts of a token, with --zipf (default: 8)")->check(between(1, 1024));
  command
      .add_option("--micro-batch", o.micro_batch, "Samples of a rank in a microbatch, with --router-trace (default: 1)")
      ->check(between(1, 1 << 20));
  command.add_option("--dp", o.dp, "Data parallel ranks of the run, with --router-trace (default: --ep)")
      ->check(between(1, 1 << 20));
  command.add_option("--step", o.step, "This step of the trace only");
  command.add_option("--layer", o.layer, "This layer of the model only; with --step: its plan");
  command.add_option("--microbatch", o.microbatch, "Which microbatch of --step and --layer (default: 0)")
      ->check(between(0, 1 << 30));
}

}  // namespace

void add_echo(CLI::App& program) {
  const auto options = std::make_shared<EchoOptions>();
  EchoOptions& o = *options;
  CLI::App* command = program.add_subcommand(
      "echo",
      "Plan clones of busy experts (ECHO) for given loads: what moves where, and whether it pays; needs no GPU");
  add_sources(*command, o);
  command->add_option("--slots", o.slots, "Slots of a rank for clones (default: 3)")
      ->check(between(0, ops::kMaxEchoSlots));
  command->add_option("--min-pairs", o.min_pairs, "The fewest pairs that a clone is made for (default: 1024)")
      ->check(between(0, 2147483647));
  command->add_option("--balance", o.balance, "greedy, or exact: takes no min_pairs (default: greedy)")
      ->check(CLI::IsMember({"greedy", "exact"}).description(""));
  command->add_option("--stage", o.stage, "Of one plan, only: spill, assign, slots, shares or plan (default: all)")
      ->check(CLI::IsMember({"spill", "assign", "slots", "shares", "plan"}).description(""));
  command->add_option("--format", o.format, "text, json, or svg (one plan: the loads, an arrow per clone)")
      ->check(CLI::IsMember({"text", "json", "svg"}).description(""))
      ->capture_default_str();
  const auto positive = [] {
    return number_that([](double value) { return value >= 1e-6 && value <= 1e9; }, "from 1e-6 to 1e9");
  };
  command->add_option("--link-gbps", o.link_gbps, "10^9 bytes/s that a rank sends and receives")->check(positive());
  command->add_option("--tflops", o.tflops, "TFLOP/s of a rank's GEMMs")->check(positive());
  command->add_option("--hidden", o.hidden, "Features of a token, for the bytes of a gated expert")
      ->check(between(1, 1 << 20));
  command->add_option("--ffn", o.ffn, "Features within an expert")->check(between(1, 1 << 20));
  command->add_option("--weight-bytes", o.weight_bytes, "Bytes of a weight that is sent; gradients have 4 (default: 2)")
      ->check(between(1, 8));
  command->footer(kEchoFooter);
  command->callback([options] {
    const std::string text = echo_output(*options);
    std::fwrite(text.data(), 1, text.size(), stdout);  // main checks that it could be written
  });
}

}  // namespace megalith::apps
