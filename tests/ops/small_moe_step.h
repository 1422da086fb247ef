#pragma once
#include "megalith/ops/echo_plan.h"
#include "megalith/ops/embedding.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/rope.h"
#include "megalith/ops/router_losses.h"
#include "megalith/ops/rows.h"

#include "tests/ops/small_step.h"

namespace megalith::ops {

inline constexpr Index kExperts = 4, kTopK = 2, kFfn = 6, kPairs = kTokens * kTopK, kGroupAlignment = 4;

/// What lives outside the plan.
struct SmallMoe {
  Exec memory;
  Tensor ids = memory.tensor({kTokens}, DType::i32), table = memory.tensor({kVocab, kHidden}, DType::f32);
  Tensor gamma = memory.tensor({kHidden}, DType::f32), gamma_grad = memory.tensor({kHidden}, DType::f32);
  Tensor gate = memory.tensor({kExperts, kHidden}, DType::f32), bias = memory.tensor({kExperts}, DType::f32);
  Tensor up = memory.tensor({kExperts, 2 * kFfn, kHidden}, DType::f32),
         up_grad = memory.tensor({kExperts, 2 * kFfn, kHidden}, DType::f32),
         down = memory.tensor({kExperts, kHidden, kFfn}, DType::f32),
         down_grad = memory.tensor({kExperts, kHidden, kFfn}, DType::f32);
  Tensor angles = memory.tensor({kSeqLen, 2, 2}, DType::f32),
         state = memory.tensor({Index{sizeof(StepState)}}, DType::u8);
  Tensor loss = memory.tensor({1}, DType::f64), d_logits = memory.tensor({kTokens, kExperts}, DType::f32),
         d_hidden = memory.tensor({kTokens, kHidden}, DType::f32);
  Tensor pairs = memory.tensor({2, kExperts}, DType::i32);  // of two ranks
  EchoPlan echo = make_echo_plan(memory, 2, kExperts, 1);

  SmallMoe() {
    for (Index i = 0; i < pairs.numel(); ++i) pairs.data<std::int32_t>()[i] = static_cast<std::int32_t>(9 - i);
    for (Index t = 0; t < kTokens; ++t) ids.data<std::int32_t>()[t] = static_cast<std::int32_t>(t * 5 % kVocab);
    for (const Tensor& tensor : {table, gamma, gate, bias, up, down}) {
      float* data = tensor.data<float>();
      for (Index i = 0; i < tensor.numel(); ++i) data[i] = static_cast<float>(i * 37 % 101 - 50) / 64;
    }
    for (const Tensor& zero : {gamma_grad, up_grad, down_grad, loss}) fill(memory, zero, 0);
    const StepState step{.step = 1};
    std::memcpy(state.raw(), &step, sizeof step);
    rope_table(memory, {.head_dim = 4}, angles);
  }
};

/// A forward and backward pass of a mixture of experts on a CPU, as a layer runs it. Groups have gaps between them.
inline void small_moe_step(Exec& ex, const SmallMoe& moe) {
  const auto f32 = [&](const Shape& shape) { return ex.tensor(shape, DType::f32); };
  const auto i32 = [&](const Shape& shape) { return ex.tensor(shape, DType::i32); };
  const auto i64 = [&](const Shape& shape) { return ex.tensor(shape, DType::i64); };
  const Tensor x = f32({kTokens, kHidden}), y = f32({kTokens, kHidden}), rstd = f32({kTokens});
  embedding_forward(ex, {.ids = moe.ids, .table = moe.table, .y = x, .first_id = 0, .vocab_size = kVocab});
  rope(ex, {.qkv = x, .table = moe.angles, .num_heads = 1, .num_kv_heads = 1, .seq_len = kSeqLen});
  norm_forward(ex, {.x = x, .gamma = moe.gamma, .y = y, .rstd = rstd});
  const RouterRules rules{.top_k = kTopK, .normalize = NormalizeTopK::yes, .num_groups = 2, .group_top_k = 2};
  const Tensor logits = f32({kTokens, kExperts}), p = f32({kTokens, kExperts}), experts = i32({kTokens, kTopK}),
               weights = f32({kTokens, kTopK}), counts = i64({1, kExperts}), sums = f32({1, kExperts});
  matmul(ex, {.a = y, .b = moe.gate, .c = logits, .transpose_b = Transpose::yes});
  router_forward(ex, {.logits = logits,
                      .bias = moe.bias,
                      .probabilities = p,
                      .experts = experts,
                      .weights = weights,
                      .counts = counts,
                      .rules = rules});
  sum_probabilities(ex, {.probabilities = p, .sums = sums});
  load_loss(ex, {.counts = counts, .sums = sums, .loss = moe.loss, .factors = {}});
  z_loss(ex, {.logits = logits, .loss = moe.loss});
  const Index all = rows_to_build(kPairs, kExperts, 0, kGroupAlignment);
  const GroupRows groups{.begin = i32({kExperts}), .rows = i32({kExperts}), .alignment = kGroupAlignment};
  const Tensor row_of = i32({kTokens, kTopK}), pair_of = i32({all}), rows = f32({all, kHidden}),
               z = f32({all, 2 * kFfn}), h = f32({all, kFfn}), out = f32({all, kHidden}), sum = f32({kTokens, kHidden});
  build_rows(ex, {.experts = experts, .groups = groups, .row_of = row_of, .pair_of = pair_of});
  permute_rows(ex, {.x = y, .pair_of = pair_of, .rows = rows, .top_k = kTopK});
  grouped_matmul_activated(ex, {.x = rows, .w = moe.up, .z = z, .h = h, .groups = groups});
  grouped_matmul(ex, {.x = h, .w = moe.down, .y = out, .groups = groups});
  sum_rows(ex, {.rows = out, .row_of = row_of, .weights = weights, .y = sum});
  const Tensor d_out = f32({all, kHidden}), p_of = f32({all, 1}), ph = f32({all, kFfn}), dp = f32({all, 1}),
               d_rows = f32({all, kHidden}), dy = f32({kTokens, kHidden}), d_weights = f32({kTokens, kTopK}),
               d_p = f32({kTokens, kExperts});
  permute_rows(ex, {.x = sum, .pair_of = pair_of, .rows = d_out, .top_k = kTopK});
  permute_rows(ex, {.x = weights.reshaped({kPairs, 1}), .pair_of = pair_of, .rows = p_of, .top_k = 1});
  grouped_matmul_activated_input_grad(
      ex, {.dy = d_out, .w = moe.down, .z = z, .p = p_of, .dz = z, .ph = ph, .dp = dp, .groups = groups});
  grouped_matmul_weight_grad(ex, {.dy = d_out, .x = ph, .dw = moe.down_grad, .groups = groups});
  grouped_matmul_weight_grad(ex, {.dy = z, .x = rows, .dw = moe.up_grad, .groups = groups});
  grouped_matmul_input_grad(ex, {.dy = z, .w = moe.up, .dx = d_rows, .groups = groups});
  sum_rows(ex, {.rows = d_rows, .row_of = row_of, .weights = {}, .y = dy});
  sum_rows(ex,
           {.rows = dp, .row_of = row_of.reshaped({kPairs, 1}), .weights = {}, .y = d_weights.reshaped({kPairs, 1})});
  load_loss_backward(
      ex, {.counts = counts, .probabilities = p, .step_state = moe.state, .d_probabilities = d_p, .factors = {}});
  router_backward(ex, {.logits = logits,
                       .probabilities = p,
                       .experts = experts,
                       .d_weights = d_weights,
                       .d_probabilities = d_p,
                       .d_logits = moe.d_logits,
                       .rules = rules});
  z_loss_backward(ex, {.logits = logits, .step_state = moe.state, .d_logits = moe.d_logits});
  norm_backward(ex, {.dy = dy,
                     .x = x,
                     .gamma = moe.gamma,
                     .rstd = rstd,
                     .residual = {},
                     .dx = moe.d_hidden,
                     .gamma_grad = moe.gamma_grad});
  plan_echo(ex, {.counts = moe.pairs, .plan = moe.echo, .stages = make_echo_stages(ex, 2, kExperts, 1)});
}

}  // namespace megalith::ops
