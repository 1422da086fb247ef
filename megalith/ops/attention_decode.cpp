#include "megalith/ops/attention_decode.h"

#include "megalith/base/str.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/attention_decode_kernels.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/qkv_layout.h"

namespace megalith::ops {
namespace {

template <class Args>
void check_cache(const Exec& ex, const Args& args, const Arguments& expect) {
  expect_float(ex, args.qkv, expect.op);
  const auto [batch, kv_heads, capacity, head_dim] = expect.dims<4>(args.keys, "keys");
  const DType dtype = args.qkv.dtype();
  expect.like(args.keys, args.keys.shape(), dtype, "keys");
  expect.like(args.values, args.keys.shape(), dtype, "values");
  expect_heads(args.num_heads, kv_heads, expect.op);
  const Index tokens = expect.dims<2>(args.qkv, "qkv")[0];
  expect.like(args.qkv, {tokens, (args.num_heads + 2 * kv_heads) * head_dim}, dtype, "qkv");
  expect.like(args.positions, {tokens}, DType::i32, "positions");
  const Index most = ex.device() == Device::cpu ? kMaxDecodeHeadDim : kMaxHeadDimOnGpu;
  if (head_dim < 1 || head_dim > most)
    throw ShapeError(str("[", expect.op, ".keys] head_dim = ", head_dim, ": must be from 1 to ", most));
  if (tokens > 0 && (batch < 1 || tokens % batch != 0)) {
    throw ShapeError(
        str("[", expect.op, ".qkv] rows = ", tokens, ": must be a multiple of the sequences of the cache, ", batch));
  }
}

}  // namespace

void cache_append(Exec& ex, const CacheAppend& args) {
  check_cache(ex, args, {"cache_append"});
  run_kernel(
      ex, {.name = "cache_append", .reads = {args.qkv, args.positions}, .writes = {args.keys, args.values}},
      [args] { cpu::cache_append(args); }, [args](auto&, auto stream) { cuda::cache_append(stream, args); });
}

void attention_decode(Exec& ex, const AttentionDecode& args) {
  check_cache(ex, args, {"attention_decode"});
  expect_like(args.out, {args.qkv.dim(0), args.num_heads * args.keys.dim(3)}, args.qkv.dtype(), "attention_decode.out");
  run_kernel(
      ex,
      {.name = "attention_decode", .reads = {args.qkv, args.positions, args.keys, args.values}, .writes = {args.out}},
      [args] { cpu::attention_decode(args); }, [args](auto&, auto stream) { cuda::attention_decode(stream, args); });
}

}  // namespace megalith::ops
