// Random recipes of experts on random grids, with texts of repeated letters, in fp64 against one rank
// (tests/train/random_moe.h). Prints every mismatch with its recipe, and returns 1 if there is one:
//   moe_fuzz SECONDS [FIRST_SEED]
// It also measures how often rounding picks what drop_by = "probability" drops: the pairs that grids drop of indented
// text and of hashed tokens, against one rank's, with parameters that no step moves:
//   moe_fuzz straddles [SEEDS]
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tests/train/random_moe.h"

namespace megalith {
namespace {

using Use = nn::RouterDecisions::Use;

int fuzz(double seconds, std::uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  int runs = 0, refused = 0, bad = 0;
  for (; Clock::now() < end; ++seed) {
    const auto found = support::try_random_moe(seed);
    ++(found ? runs : refused);
    if (!found || found->empty()) continue;
    ++bad;
    std::cout << "seed " << seed << ":\n";
    for (const std::string& line : *found) std::cout << "  " << line << "\n";
    std::cout << config::to_toml(support::random_moe(seed).many) << std::endl;
  }
  std::cout << runs << " recipes compared, " << refused << " refused by rules, " << bad << " mismatches; next seed "
            << seed << "\n";
  return bad == 0 ? 0 : 1;
}

/// What is measured: a text, a precision and an order.
struct Measured {
  support::MoeText text = support::MoeText::indented;
  const char *precision = "fp32", *drop_by = "probability";
};
constexpr Index kSteps = 4, kRun = 8;

/// The decisions of a run whose parameters stay the first ones: differences are those of one pass.
std::vector<std::int32_t> decided(const support::MoeGrid& grid, const Measured& of, Index seed) {
  const auto& models = support::moe_models();
  const auto model = std::ranges::find(models, std::string_view("DropIndentedText"),
                                       [](const support::MoeModel& m) { return std::string_view(m.name); });
  config::RunConfig c = support::moe_config(grid, *model, of.precision, kSteps);
  c.train.seed = seed;
  c.optimizer.lr = 1e-30;
  c.moe.drop_by = of.drop_by;
  c.moe.capacity_run = kRun;
  const config::RunPlan plan = config::resolve(c);
  support::KeptDecisions decisions(plan, Use::record);
  support::RunRecord record;
  support::run_moe(plan, record, &decisions, of.text);
  return decisions.all();
}

/// Blocks of a capacity, and pairs of those in which routers chose alike.
struct Counts {
  std::size_t blocks = 0, other_choices = 0, blocks_differ = 0, pairs = 0, pairs_differ = 0;

  void add(const std::vector<std::int32_t>& got, const std::vector<std::int32_t>& want) {
    constexpr std::size_t kPairs = kRun * 2;
    const auto expert = [](std::int32_t decision) { return std::max(decision, ~decision); };
    for (std::size_t first = 0; first < want.size(); first += kPairs, ++blocks) {
      std::size_t dropped_otherwise = 0;
      bool is_alike = true;
      for (std::size_t i = first; i < first + kPairs; ++i) {
        is_alike = is_alike && expert(got[i]) == expert(want[i]);
        dropped_otherwise += got[i] != want[i];
      }
      if (!is_alike) {
        ++other_choices;
        continue;
      }
      pairs += kPairs;
      pairs_differ += dropped_otherwise;
      if (dropped_otherwise > 0) ++blocks_differ;
    }
  }
};

void measure(const Measured& of, Index seeds) {
  const std::array<support::MoeGrid, 2> grids = {support::MoeGrid{2, 1, 1, 2, 1}, {2, 2, 1, 2, 1}};
  std::array<Counts, 2> counts;
  for (Index seed = 1; seed <= seeds; ++seed) {
    const std::vector<std::int32_t> want = decided({}, of, seed);
    for (std::size_t i = 0; i < grids.size(); ++i) counts[i].add(decided(grids[i], of, seed), want);
  }
  for (std::size_t i = 0; i < grids.size(); ++i) {
    const Counts& c = counts[i];
    std::cout << (of.text == support::MoeText::indented ? "indented " : "hashed ") << of.precision << " " << of.drop_by
              << " tp " << grids[i].tp << " ep " << grids[i].ep << ": of " << c.blocks << " blocks " << c.other_choices
              << " have other choices than on one rank; of " << c.pairs << " pairs in the others " << c.pairs_differ
              << " are dropped otherwise, in " << c.blocks_differ << " blocks" << std::endl;
  }
}

int straddles(Index seeds) {
  for (const auto text : {support::MoeText::indented, support::MoeText::hashed}) {
    for (const char* precision : {"fp32", "bf16"}) {
      for (const char* drop_by : {"probability", "position"}) measure({text, precision, drop_by}, seeds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first.empty()) {
    std::cerr << "usage: moe_fuzz SECONDS [FIRST_SEED] | moe_fuzz straddles [SEEDS]\n";
    return 64;
  }
  const auto second = [&](unsigned long long otherwise) {
    return argc > 2 ? std::strtoull(argv[2], nullptr, 10) : otherwise;
  };
  if (first == "straddles") return megalith::straddles(static_cast<megalith::Index>(second(5)));
  return megalith::fuzz(std::strtod(argv[1], nullptr), second(1));
}
