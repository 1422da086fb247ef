// Trains a small GPT on 13 grids in 6 ways of graphs, on rank threads, and prints the bits of every loss and norm with
// the bytes that were planned: one line a run. Run it before and after a change that must change no result, on the same
// machine, and compare the lines:
//   same_bits > before.txt; ...; same_bits before.txt
// With a file it prints the runs that differ, and those that plan more bytes, and returns 1 where bits differ.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/config/run_plan.h"
#include "megalith/train/engine.h"

namespace megalith {
namespace {

constexpr Index kSteps = 6, kBatch = 16;

class Batches final : public model::BatchSource {
 public:
  void fill(Index first, Index, const model::Batch& batch) const override {
    const std::span<std::int32_t> tokens = batch.tokens, targets = batch.targets;
    constexpr Index kVocab = 37;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = static_cast<Index>(i), id = (first * 131 + at * 17 + at * at) % kVocab;
      tokens[i] = static_cast<std::int32_t>(id);
      targets[i] = static_cast<std::int32_t>((id * 5 + 1) % kVocab);
    }
  }
};

struct Grid {
  int tp = 1, pp = 1, chunks = 1, dp = 1;
  bool sequence_parallel = false;
  const char *overlap = "none", *precision = "fp64";
  double dropout = 0.1;
};

constexpr Grid kGrids[] = {
    {},
    {.precision = "fp32", .dropout = 0},
    {.tp = 2},
    {.tp = 2, .overlap = "halves"},
    {.tp = 2, .sequence_parallel = true},
    {.tp = 2, .sequence_parallel = true, .overlap = "halves", .dropout = 0},
    {.tp = 4, .sequence_parallel = true, .overlap = "halves"},
    {.pp = 2},
    {.pp = 2, .chunks = 2},
    {.tp = 2, .pp = 2, .chunks = 2, .overlap = "halves", .dropout = 0},
    {.tp = 2, .dp = 2, .sequence_parallel = true, .precision = "bf16"},
    {.dp = 2, .precision = "fp32"},
    {.pp = 4},
};

constexpr const char* kGraphs[] = {
    "mode = 'none'",
    "mode = 'layers'\nwarmup_steps = 1",
    "mode = 'layers'\nper = 'slot'\nwarmup_steps = 1",
    "mode = 'layers'\nscopes = ['attn']\nwarmup_steps = 1",
    "mode = 'layers'\nscopes = ['mlp']\nper = 'slot'\nwarmup_steps = 1",
    "mode = 'iteration'\nwarmup_steps = 1\noptimizer = true",
};

std::string recipe(const Grid& g, const char* graphs) {
  return str("[model]\nnum_layers = 8\nhidden_size = 24\nnum_heads = 4\nffn_hidden_size = 28\nseq_len = 8\n",
             "vocab_size = 37\ndropout = ", g.dropout, "\n[parallel]\ntp = ", g.tp, "\npp = ", g.pp,
             "\nchunks = ", g.chunks, "\nsequence_parallel = ", g.sequence_parallel ? "true" : "false",
             "\ntp_overlap = '", g.overlap, "'\n[train]\nsteps = ", kSteps, "\nglobal_batch = ", kBatch,
             "\nmicro_batch = 2\nprecision = '", g.precision,
             "'\n[optimizer]\nlr = 3e-3\n[data]\ntokenizer = 'byte'\ntrain = 'x'\n[graphs]\n", graphs, "\n");
}

std::string hex(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

struct Run {
  std::string name, bits;
  Index bytes = 0;  ///< activations and scratch
};

Run run(const Grid& g, const char* graphs) {
  const int ranks = g.tp * g.pp * g.dp;
  const config::RunPlan plan = config::resolve(config::parse_recipe(recipe(g, graphs), "same_bits"), ranks);
  std::string name =
      str("tp", g.tp, " pp", g.pp, " chunks", g.chunks, " dp", g.dp, g.sequence_parallel ? " sequence_parallel" : "",
          " ", g.overlap, " ", g.precision, " dropout ", g.dropout, " ", graphs);
  std::ranges::replace(name, '\n', ' ');
  Run done{name, "", 0};
  comm::run_ranks(ranks, [&](comm::World& world) {
    train::Engine engine(world, plan);
    const Batches source;
    engine.allocate();
    std::string bits;
    for (Index step = 0; step < kSteps; ++step) {
      const train::StepReport result = engine.step(source, {step, step * kBatch}, train::Stop::no);
      bits += str(" ", hex(result.loss), "/", hex(result.grad_norm));
    }
    bits += " evaluated " + hex(engine.evaluate(source, kBatch));
    if (world.rank() != 0) return;
    const BytesByOwner bytes = engine.planned_bytes();
    done.bits = bits;
    done.bytes = bytes.at("activations") + bytes.at(kScratchOwner);
  });
  return done;
}

std::string line_of(const Run& run) { return str(run.name, " | ", run.bytes, " |", run.bits); }

int compare(const std::vector<std::string>& now, std::istream& before) {
  int differ = 0;
  std::size_t i = 0;
  for (std::string was; std::getline(before, was); ++i) {
    if (i == now.size()) break;
    const auto bits = [](const std::string& line) { return line.substr(line.rfind('|')); };
    const auto bytes = [](const std::string& line) { return std::stoll(line.substr(line.find('|') + 1)); };
    if (bits(now[i]) != bits(was)) {
      ++differ;
      std::cout << "other bits: " << now[i] << "\n      were: " << was << "\n";
    }
    if (bytes(now[i]) > bytes(was)) std::cout << "more bytes: " << bytes(now[i]) << ", were " << bytes(was) << "\n";
  }
  if (i != now.size()) ++differ;
  std::cout << now.size() << " runs, " << i << " compared, " << differ << " differ\n";
  return differ == 0 ? 0 : 1;
}

int same_bits(const char* before) {
  std::vector<std::string> lines;
  for (const Grid& grid : kGrids) {
    for (const char* graphs : kGraphs) {
      lines.push_back(line_of(run(grid, graphs)));
      if (before == nullptr) std::cout << lines.back() << std::endl;
    }
  }
  if (before == nullptr) return 0;
  std::ifstream file(before);
  return compare(lines, file);
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) { return megalith::same_bits(argc > 1 ? argv[1] : nullptr); }
