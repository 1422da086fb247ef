#include "megalith/ops/row_rounds.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/row_rounds_kernels.h"

namespace megalith::ops {

std::int32_t assign_rounds(const AssignRounds& args) {
  const auto count = std::ssize(args.round_of);
  std::int32_t rounds = 1, round = 0;
  std::int64_t held = 0;
  for (Index expert = 0; expert < count; ++expert) {
    std::int64_t rows = 0;
    for (Index at = expert; at < std::ssize(args.counts); at += count)
      rows += args.counts[static_cast<std::size_t>(at)];
    if (rows > args.room)
      throw InputError(str("[assign_rounds] expert ", expert, " has ", rows, " rows: must be at most ", args.room));
    if (expert % args.local_experts == 0) round = 0, held = 0;
    if (held + rows > args.room) ++round, held = 0;
    held += rows;
    args.round_of[static_cast<std::size_t>(expert)] = round;
    rounds = std::max(rounds, round + 1);
  }
  return rounds;
}

void choices_of_round(Exec& ex, const ChoicesOfRound& args) {
  dims<3>(args.experts, "choices_of_round.experts");
  expect_dtype(args.experts, DType::i32, "choices_of_round.experts");
  expect_like(args.of_round, args.experts.shape(), DType::i32, "choices_of_round.of_round");
  if (std::ssize(args.round_of) > kMaxGroups)
    throw ShapeError(str("[choices_of_round] experts = ", args.round_of.size(), ": must be at most ", kMaxGroups));
  run_kernel(
      ex, {.name = "choices_of_round", .reads = {args.experts}, .writes = {args.of_round}},
      [args] { cpu::choices_of_round(args); }, [args](auto&, auto stream) { cuda::choices_of_round(stream, args); });
}

void number_pairs(Exec& ex, const Tensor& experts, const Tensor& row_of) {
  const auto [rows, top_k] = dims<2>(experts, "number_pairs.experts");
  expect_dtype(experts, DType::i32, "number_pairs.experts");
  expect_like(row_of, {rows, round_up(row_of.dim(1), top_k)}, DType::i32, "number_pairs.row_of");
  run_kernel(
      ex, {.name = "number_pairs", .reads = {experts}, .writes = {row_of}}, [=] { cpu::number_pairs(experts, row_of); },
      [=](auto&, auto stream) { cuda::number_pairs(stream, experts, row_of); });
}

void pull_places(Exec& ex, const Tensor& places, const PullTables& pulls) {
  const Index count = dims<2>(places, "pull_places.places")[0];
  expect_like(places, {count, 2}, DType::i32, "pull_places.places");
  expect_like(pulls.counts, {2}, DType::i32, "pull_places.counts");
  expect_like(pulls.sources, {count, 2}, DType::i32, "pull_places.sources");
  expect_like(pulls.begin, {count + 1}, DType::i32, "pull_places.begin");
  expect_like(pulls.wants, {count}, DType::i32, "pull_places.wants");
  run_kernel(
      ex, {.name = "pull_places", .reads = {places}, .writes = {pulls.counts, pulls.sources, pulls.begin, pulls.wants}},
      [=] { cpu::pull_places(places, pulls); }, [=](auto&, auto stream) { cuda::pull_places(stream, places, pulls); });
}

}  // namespace megalith::ops
