#pragma once
#include <cstring>

#include "megalith/ops/adamw.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/embedding.h"
#include "megalith/ops/norm.h"
#include "megalith/runtime/memory_plan.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {

inline constexpr Index kBatch = 2, kSeqLen = 5, kHidden = 12, kVocab = 9, kTokens = kBatch * kSeqLen;

/// What lives outside the plan.
struct SmallModel {
  Exec memory;
  Tensor ids = memory.tensor({kTokens}, DType::i32), targets = memory.tensor({kTokens}, DType::i32);
  Tensor table = memory.tensor({kVocab, kHidden}, DType::f32),
         table_grad = memory.tensor({kVocab, kHidden}, DType::f32);
  Tensor gamma = memory.tensor({kHidden}, DType::f32), gamma_grad = memory.tensor({kHidden}, DType::f32);
  Tensor qkv_weight = memory.tensor({3 * kHidden, kHidden}, DType::f32),
         state = memory.tensor({Index{sizeof(StepState)}}, DType::u8);
  Tensor qkv_grad = memory.tensor({3 * kHidden, kHidden}, DType::f32),
         m = memory.tensor({3 * kHidden, kHidden}, DType::f32);
  Tensor v = memory.tensor({3 * kHidden, kHidden}, DType::f32),
         verdict = memory.tensor({Index{sizeof(StepVerdict)}}, DType::u8);
  Tensor squares = memory.tensor({1}, DType::f64);
  Tensor decays = memory.tensor({ceil_div(3 * kHidden * kHidden, kDecayGroup)}, DType::u8);
  Tensor loss_sum = memory.tensor({1}, DType::f64);

  SmallModel() {
    fill(memory, table, 0.25);
    fill(memory, gamma, 1);
    fill(memory, qkv_weight, 0.125);
    for (const Tensor& zero : {table_grad, gamma_grad, loss_sum, qkv_grad, m, v, squares}) fill(memory, zero, 0);
    for (Index t = 0; t < kTokens; ++t)
      ids.data<std::int32_t>()[t] = targets.data<std::int32_t>()[t] = static_cast<std::int32_t>(t % kVocab);
    std::memset(decays.raw(), 0, static_cast<std::size_t>(decays.bytes()));
    const StepState step{.step = 1};
    const StepVerdict apply{.apply = 1, .factor = 1, .learning_rate = 0.125, .update = 0};
    std::memcpy(verdict.raw(), &apply, sizeof apply);
    std::memcpy(state.raw(), &step, sizeof step);
  }
};

/// A small forward and backward that uses the ops with scratch of their own.
inline void small_step(Exec& ex, const SmallModel& model) {
  const auto f32 = [&](const Shape& shape) { return ex.tensor(shape, DType::f32); };
  const Tensor x = f32({kTokens, kHidden}), y = f32({kTokens, kHidden}), mean = f32({kTokens}), rstd = f32({kTokens});
  embedding_forward(ex, {.ids = model.ids, .table = model.table, .y = x, .first_id = 0, .vocab_size = kVocab});
  norm_forward(ex, {.x = x, .gamma = model.gamma, .beta = model.gamma, .y = y, .mean = mean, .rstd = rstd});
  const Tensor qkv = f32({kTokens, 3 * kHidden}), out = f32({kTokens, kHidden}), lse = f32({kBatch, 3, kSeqLen});
  matmul(ex, {.a = y, .b = model.qkv_weight, .c = qkv, .transpose_b = Transpose::yes});
  const Dropout dropout{.probability = 0.5, .seed = 1, .site = 1, .step_state = model.state, .seq_len = kSeqLen};
  attention_forward(ex, {.qkv = qkv,
                         .out = out,
                         .log_sum_exp = lse,
                         .batch = kBatch,
                         .seq_len = kSeqLen,
                         .num_heads = 3,
                         .first_head = 0,
                         .num_global_heads = 3,
                         .dropout = dropout});
  bias_dropout_residual(ex, {.x = out, .bias = {}, .residual = x, .out = out, .dropout = dropout});
  const Tensor logits = f32({kTokens, kVocab}), row_max = f32({kTokens}), sums = f32({2, kTokens}),
               loss = f32({kTokens});
  matmul(ex, {.a = out, .b = model.table, .c = logits, .transpose_b = Transpose::yes});
  logits_max(ex, logits, row_max, 0, kVocab);
  logits_sum_exp(ex, {.logits = logits,
                      .row_max = row_max,
                      .targets = model.targets,
                      .sums = sums,
                      .first_id = 0,
                      .vocab_size = kVocab});
  loss_from_sums(
      ex, {.sums = sums, .targets = model.targets, .loss = loss, .loss_sum = model.loss_sum, .vocab_size = kVocab});
  logits_backward(ex,
                  {.logits = logits, .sums = sums, .targets = model.targets, .step_state = model.state, .first_id = 0});
  const Tensor dout = f32({kTokens, kHidden});
  matmul(ex, {.a = logits, .b = model.table, .c = dout});
  norm_backward(ex, {.dy = dout,
                     .x = x,
                     .gamma = model.gamma,
                     .mean = mean,
                     .rstd = rstd,
                     .residual = {},
                     .dx = dout,
                     .gamma_grad = model.gamma_grad,
                     .beta_grad = model.gamma_grad});
  const Tensor dqkv = f32({kTokens, 3 * kHidden});
  dropout_backward(ex, {.dout = dout, .dx = out, .dropout = dropout});
  attention_backward(ex, {.dout = dout,
                          .qkv = qkv,
                          .out = out,
                          .log_sum_exp = lse,
                          .dqkv = dqkv,
                          .batch = kBatch,
                          .seq_len = kSeqLen,
                          .num_heads = 3,
                          .first_head = 0,
                          .num_global_heads = 3,
                          .dropout = dropout});
  matmul(ex, {.a = dqkv, .b = y, .c = model.qkv_grad, .transpose_a = Transpose::yes, .write = Write::accumulate});
  matmul(ex, {.a = dqkv, .b = model.qkv_weight, .c = y});
  norm_backward(ex, {.dy = y,
                     .x = x,
                     .gamma = model.gamma,
                     .mean = mean,
                     .rstd = rstd,
                     .residual = dout,
                     .dx = dout,
                     .gamma_grad = model.gamma_grad,
                     .beta_grad = model.gamma_grad});
  bias_backward(ex, dout, model.gamma_grad);
  embedding_backward(ex, {.ids = model.ids, .dy = dout, .table_grad = model.table_grad, .first_id = 0});
  const Tensor squares = ex.tensor({3 * kHidden, square_blocks(ex.device(), kHidden)}, DType::f64);
  sum_of_squares(ex, model.qkv_grad, squares);
  add_up(ex, squares.reshaped({squares.numel()}), model.squares);
  const auto flat = [](const Tensor& t) { return t.reshaped({t.numel()}); };
  adamw(ex, {.masters = {.whole = flat(model.qkv_weight)},
             .m = flat(model.m),
             .v = flat(model.v),
             .grad = flat(model.qkv_grad),
             .decays = model.decays,
             .verdict = model.verdict});
}

}  // namespace megalith::ops
