#include "megalith/ops/attention.h"

#include <algorithm>

#include "megalith/base/str.h"
#include "megalith/ops/attention_kernels.h"
#include "megalith/ops/cuda/cudnn_attention.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/dropout_check.h"
#include "megalith/ops/rope.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith::ops {
namespace {

/// The rows of qkv: q of num_heads heads, k and v of num_kv_heads. Returns the size of a head.
template <class Args>
Index check_columns(const Args& args, Index width, std::string_view qkv) {
  const Index kv_heads = kv_heads_of(args), parts = args.num_heads + 2 * kv_heads;
  if (width % parts == 0 && width > 0) return width / parts;
  if (kv_heads == args.num_heads) {
    throw ShapeError(str("[", qkv, "] shape = ", args.qkv.shape(),
                         ": columns must be 3 * num_heads * head_dim with num_heads = ", args.num_heads));
  }
  throw ShapeError(str("[", qkv, "] shape = ", args.qkv.shape(),
                       ": columns must be (num_heads + 2 * num_kv_heads) * head_dim with num_heads, num_kv_heads = ",
                       args.num_heads, ", ", kv_heads));
}

/// `what`: "op.lengths".
template <class Args>
void check_lengths(const Args& args, std::string_view what) {
  if (args.lengths) expect_like(args.lengths, {args.batch}, DType::i32, what);
}

/// `op` as in check_heads(), and `what` is that plus ".document_begin".
template <class Args>
void check_documents(const Args& args, std::string_view op, std::string_view what) {
  if (!args.document_begin) return;
  expect_like(args.document_begin, {args.batch * args.seq_len}, DType::i32, what);
  if (args.mask != AttentionMask::causal || args.lengths)
    throw ShapeError(str("[", op, "] documents: need the causal mask, and samples without lengths"));
}

/// The checks that forward and backward share. `op` is "attention" or "attention_backward", and `qkv` is that plus
/// ".qkv". Text is put together only for an error, because ops allocate nothing. Returns the shape of `out`.
template <class Args>
Shape check_heads(const Args& args, std::string_view op, std::string_view qkv) {
  const auto [tokens, width] = dims<2>(args.qkv, qkv);
  if (args.batch < 0 || args.seq_len < 1 || args.num_heads < 1) {
    throw ShapeError(str("[", op, "] batch, seq_len, num_heads = ", args.batch, ", ", args.seq_len, ", ",
                         args.num_heads, ": seq_len and num_heads must be at least 1, batch at least 0"));
  }
  if (args.num_kv_heads < 0 || args.num_heads % kv_heads_of(args) != 0) {
    throw ShapeError(str("[", op, "] num_kv_heads = ", args.num_kv_heads, ": must divide num_heads = ", args.num_heads,
                         " (0: as many)"));
  }
  const Index head_dim = check_columns(args, width, qkv);
  expect_shape(args.qkv, {args.batch * args.seq_len, width}, qkv);
  if (args.dropout.probability > 0 &&
      (args.first_head < 0 || args.first_head + args.num_heads > args.num_global_heads)) {
    throw ShapeError(str("[", op, "] heads [", args.first_head, ", ", args.first_head + args.num_heads,
                         "): must lie within num_global_heads = ", args.num_global_heads));
  }
  check_dropout(args.dropout, op);
  if (args.dropout.first_row % args.seq_len != 0) {
    throw ShapeError(str("[", op, ".dropout.first_row] = ", args.dropout.first_row,
                         ": must be a multiple of seq_len = ", args.seq_len, ": attention is over whole samples"));
  }
  return {tokens, args.num_heads * head_dim};
}

/// The tensors whose padding the kernels overwrite by zeros before they read it (cuda/cudnn_attention.h,
/// cuda/hopper_attention.h).
template <class Args>
Tensor overwritten(const Args& args, const Tensor& tensor, cuda::AttentionKernels kernels) {
  return args.lengths && kernels != cuda::AttentionKernels::own ? tensor : Tensor();
}

cuda::AttentionChoice guess(AttentionPass pass, const AttentionShape& shape, Determinism determinism) {
  if (is_for_attention_library(shape))
    return {cuda::AttentionKernels::library, cuda::guessed_attention_scratch_bytes(pass, shape, determinism)};
  if (cuda::is_hopper_attention_shape(shape))
    return {cuda::AttentionKernels::hopper, cuda::hopper_attention_scratch_bytes(pass, shape)};
  return {cuda::AttentionKernels::own, cuda::own_attention_scratch_bytes(pass, shape)};
}

/// The choice for a call on a GPU. A recording may have no GPU.
cuda::AttentionChoice choice_for(const Exec& ex, AttentionPass pass, const AttentionShape& shape) {
  if constexpr (build::has_cuda) {
    const bool has_gpu = !ex.recording() || device::num_gpus() > 0;
    if (shape.batch > 0 && has_gpu) return cuda::choose_attention(pass, shape, ex.determinism());
  }
  return guess(pass, shape, ex.determinism());
}

}  // namespace

void attention_forward(Exec& ex, const AttentionForward& args) {
  expect_float(ex, args.qkv, "attention");
  const Shape out = check_heads(args, "attention", "attention.qkv");
  const DType dtype = args.qkv.dtype();
  expect_like(args.out, out, dtype, "attention.out");
  expect_like(args.log_sum_exp, {args.batch, args.num_heads, args.seq_len}, statistics_dtype(dtype),
              "attention.log_sum_exp");
  check_lengths(args, "attention.lengths");
  check_documents(args, "attention", "attention.document_begin");
  const cuda::AttentionChoice choice =
      ex.device() == Device::cpu ? cuda::AttentionChoice{.scratch_bytes = cpu::attention_forward_scratch_bytes(args)}
                                 : choice_for(ex, AttentionPass::forward, cuda::shape_of(args));
  const Tensor scratch = ex.tensor({choice.scratch_bytes}, DType::u8);
  run_kernel(
      ex,
      {.name = "attention",
       .reads = {args.qkv, args.lengths, args.document_begin, args.dropout.step_state},
       .writes = {args.out, args.log_sum_exp, overwritten(args, args.qkv, choice.kernels)},
       .scratch = scratch},
      [args, scratch] { cpu::attention_forward(args, scratch); },
      [args, scratch, kernels = choice.kernels](auto& exec, auto stream) {
        cuda::attention_forward(exec, stream, args, scratch, kernels);
      });
}

void attention_backward(Exec& ex, const AttentionBackward& args) {
  expect_float(ex, args.qkv, "attention_backward");
  const Shape out = check_heads(args, "attention_backward", "attention_backward.qkv");
  const DType dtype = args.qkv.dtype();
  expect_like(args.dout, out, dtype, "attention_backward.dout");
  expect_like(args.out, out, dtype, "attention_backward.out");
  expect_like(args.log_sum_exp, {args.batch, args.num_heads, args.seq_len}, statistics_dtype(dtype),
              "attention_backward.log_sum_exp");
  expect_like(args.dqkv, args.qkv.shape(), dtype, "attention_backward.dqkv");
  check_lengths(args, "attention_backward.lengths");
  check_documents(args, "attention_backward", "attention_backward.document_begin");
  const cuda::AttentionChoice choice =
      ex.device() == Device::cpu ? cuda::AttentionChoice{.scratch_bytes = cpu::attention_backward_scratch_bytes(args)}
                                 : choice_for(ex, AttentionPass::backward, cuda::shape_of(args));
  const Tensor scratch = ex.tensor({choice.scratch_bytes}, DType::u8);
  run_kernel(
      ex,
      {.name = "attention_backward",
       .reads = {args.dout, args.qkv, args.out, args.log_sum_exp, args.lengths, args.document_begin,
                 args.dropout.step_state},
       .writes = {args.dqkv, overwritten(args, args.qkv, choice.kernels), overwritten(args, args.dout, choice.kernels)},
       .scratch = scratch},
      [args, scratch] { cpu::attention_backward(args, scratch); },
      [args, scratch, kernels = choice.kernels](auto& exec, auto stream) {
        cuda::attention_backward(exec, stream, args, scratch, kernels);
      });
}

AttentionBuild attention_build() {
  if constexpr (build::has_cuda)
    return {.has_cuda = true, .has_cudnn = cuda::has_cudnn()};
  else
    return {};
}

bool is_for_attention_library(const AttentionShape& shape, const AttentionBuild& build) {
  return (build.has_cudnn || !build.has_cuda) && (shape.dtype == DType::bf16 || shape.dtype == DType::f16) &&
         shape.dropout == 0 && shape.documents == DocumentMask::none && shape.seq_len > 1 && shape.head_dim % 8 == 0 &&
         shape.head_dim <= kMaxHeadDimOnGpu &&
         (num_library_calls(shape) == 1 || shape.num_heads * shape.seq_len % 4 == 0);
}

AttentionWay attention_way(AttentionPass pass, const AttentionShape& shape, Determinism determinism) {
  const auto way_of = [](const cuda::AttentionChoice& choice) {
    const bool is_for_hopper = choice.kernels == cuda::AttentionKernels::hopper;
    return AttentionWay{choice.kernels == cuda::AttentionKernels::library, choice.scratch_bytes,
                        is_for_hopper ? "megalith for Hopper" : "megalith", ""};
  };
  if constexpr (build::has_cuda) {
    if (device::num_gpus() > 0) {
      AttentionWay way = way_of(cuda::choose_attention(pass, shape, determinism));
      if (is_for_attention_library(shape)) {
        const cuda::CudnnAnswer& answer = cuda::ask_cudnn(pass, shape, determinism);
        way.refusal = answer.refusal;
        if (way.by_library) way.kernel = answer.kernel;
      }
      return way;
    }
  }
  AttentionWay way = way_of(guess(pass, shape, determinism));
  if (way.by_library) way.kernel = "cuDNN";
  return way;
}

Index num_library_calls(const AttentionShape& shape) {
  const Index groups = kv_heads_of(shape);
  const bool has_one_stride = groups == shape.num_heads || groups == 1 || shape.order == QkvOrder::parts;
  return has_one_stride ? 1 : std::max(Index{1}, shape.batch);
}

QkvOrder attended_order(Device device, const AttentionShape& shape, const AttentionBuild& build) {
  const Index columns = (shape.num_heads + 2 * kv_heads_of(shape)) * shape.head_dim;
  const bool spares = device == Device::cuda && is_for_attention_library(shape, build) && num_library_calls(shape) > 1;
  return spares && can_reorder(shape.dtype, columns, shape.head_dim) ? QkvOrder::parts : QkvOrder::groups;
}

Index deterministic_attention_bytes(const AttentionShape& shape, const AttentionBuild& build) {
  if (!is_for_attention_library(shape, build)) return 0;
  const Index keys = round_up(shape.seq_len, 128);
  return 2 * (shape.batch * shape.num_heads / num_library_calls(shape)) * keys * keys;
}

}  // namespace megalith::ops
