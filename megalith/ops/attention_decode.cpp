#include "megalith/ops/attention_decode.h"

#include "megalith/base/str.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/attention_decode_kernels.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/qkv_layout.h"

namespace megalith::ops {
namespace {

/// What both ops share. `op` names the op, `keys` and so on its arguments. Text is put together only for an error.
struct TensorNames {
  std::string_view op, qkv, positions, keys, values;
};

template <class Args>
void check_cache(const Exec& ex, const Args& args, const TensorNames& names) {
  expect_float(ex, args.qkv, names.op);
  const auto [batch, kv_heads, capacity, head_dim] = dims<4>(args.keys, names.keys);
  const DType dtype = args.qkv.dtype();
  expect_dtype(args.keys, dtype, names.keys);
  expect_like(args.values, args.keys.shape(), dtype, names.values);
  expect_heads(args.num_heads, kv_heads, names.op);
  const Index tokens = dims<2>(args.qkv, names.qkv)[0];
  expect_shape(args.qkv, {tokens, (args.num_heads + 2 * kv_heads) * head_dim}, names.qkv);
  expect_like(args.positions, {tokens}, DType::i32, names.positions);
  const Index most = ex.device() == Device::cpu ? kMaxDecodeHeadDim : kMaxHeadDimOnGpu;
  if (head_dim < 1 || head_dim > most)
    throw ShapeError(str("[", names.keys, "] head_dim = ", head_dim, ": must be from 1 to ", most));
  if (tokens > 0 && (batch < 1 || tokens % batch != 0)) {
    throw ShapeError(
        str("[", names.qkv, "] rows = ", tokens, ": must be a multiple of the sequences of the cache, ", batch));
  }
}

}  // namespace

void cache_append(Exec& ex, const CacheAppend& args) {
  check_cache(
      ex, args,
      {"cache_append", "cache_append.qkv", "cache_append.positions", "cache_append.keys", "cache_append.values"});
  run_kernel(
      ex, {.name = "cache_append", .reads = {args.qkv, args.positions}, .writes = {args.keys, args.values}},
      [args] { cpu::cache_append(args); }, [args](auto&, auto stream) { cuda::cache_append(stream, args); });
}

void attention_decode(Exec& ex, const AttentionDecode& args) {
  check_cache(ex, args,
              {"attention_decode", "attention_decode.qkv", "attention_decode.positions", "attention_decode.keys",
               "attention_decode.values"});
  expect_like(args.out, {args.qkv.dim(0), args.num_heads * args.keys.dim(3)}, args.qkv.dtype(), "attention_decode.out");
  run_kernel(
      ex,
      {.name = "attention_decode", .reads = {args.qkv, args.positions, args.keys, args.values}, .writes = {args.out}},
      [args] { cpu::attention_decode(args); }, [args](auto&, auto stream) { cuda::attention_decode(stream, args); });
}

}  // namespace megalith::ops
