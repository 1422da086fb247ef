#include "megalith/ops/argmax.h"

#include "megalith/base/str.h"
#include "megalith/ops/argmax_kernels.h"
#include "megalith/ops/dispatch.h"

namespace megalith::ops {

void argmax(Exec& ex, const Argmax& args) {
  expect_float(ex, args.logits, "argmax");
  const Index rows = dims<2>(args.logits, "argmax.logits")[0];
  expect_like(args.best, {rows, 2}, DType::f64, "argmax.best");
  expect_vocabulary(args.first_id, args.vocab_size, "argmax");
  run_kernel(
      ex, {.name = "argmax", .reads = {args.logits}, .writes = {args.best}}, [args] { cpu::argmax(args); },
      [args](auto&, auto stream) { cuda::argmax(stream, args); });
}

void argmax_of_shards(Exec& ex, const ArgmaxOfShards& args) {
  const auto [pairs, two] = dims<2>(args.best, "argmax_of_shards.best");
  const auto [rows] = dims<1>(args.ids, "argmax_of_shards.ids");
  expect_like(args.best, {pairs, 2}, DType::f64, "argmax_of_shards.best");
  expect_dtype(args.ids, DType::i32, "argmax_of_shards.ids");
  if (rows > 0 ? pairs % rows != 0 || pairs == 0 : pairs > 0) {
    throw ShapeError(
        str("[argmax_of_shards.best] pairs = ", pairs, ": must be a positive multiple of the ", rows, " rows"));
  }
  run_kernel(
      ex, {.name = "argmax_of_shards", .reads = {args.best}, .writes = {args.ids}},
      [args] { cpu::argmax_of_shards(args); }, [args](auto&, auto stream) { cuda::argmax_of_shards(stream, args); });
}

void count_matches(Exec& ex, const CountMatches& args) {
  const auto [rows] = dims<1>(args.ids, "count_matches.ids");
  expect_dtype(args.ids, DType::i32, "count_matches.ids");
  expect_like(args.targets, {rows}, DType::i32, "count_matches.targets");
  expect_like(args.sum, {1}, DType::f64, "count_matches.sum");
  run_kernel(
      ex, {.name = "count_matches", .reads = {args.ids, args.targets, args.sum}, .writes = {args.sum}},
      [args] { cpu::count_matches(args); }, [args](auto&, auto stream) { cuda::count_matches(stream, args); });
}

}  // namespace megalith::ops
