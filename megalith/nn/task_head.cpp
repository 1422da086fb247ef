#include "megalith/nn/task_head.h"

#include <array>

#include "megalith/base/error.h"
#include "megalith/nn/param_specs.h"
#include "megalith/ops/argmax.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/init.h"
#include "megalith/ops/mask_columns.h"
#include "megalith/ops/rows.h"

namespace megalith::nn {
namespace {

constexpr const char* kSpanWeight = "head.span.weight";
constexpr std::array kTaskLosses{LossSpec{"label_loss", 1, "labels"}, LossSpec{"accuracy", 0}};

PooledClasses::Spec pooled_spec(const TaskHeadSpec& spec) {
  return {.numbers = spec.form == TaskForm::choices ? "head.choice" : "head.classes",
          .classes = spec.classes,
          .rows = spec.sequences(),
          .dropout = spec.dropout,
          .dropout_site = spec.dropout_site};
}

}  // namespace

std::span<const LossSpec> TaskHead::losses() { return kTaskLosses; }

void TaskHead::declare(std::vector<ParamSpec>& specs, const TaskHeadSpec& spec, const StreamSpec& stream,
                       const comm::Group& tp) {
  if (spec.form != TaskForm::spans) return PooledClasses::declare(specs, pooled_spec(spec), stream, tp);
  specs.push_back(replicated(kSpanWeight, {2, stream.hidden_size}, tp, Init::normal, stream.init_std));
  specs.back().first_grad = FirstGrad::overwritten;
}

TaskHead::TaskHead(const TaskHeadSpec& spec, const TensorParallel& tp, ParamSet& params, std::optional<Norm> norm,
                   std::uint64_t seed)
    : tp_(tp), norm_(std::move(norm)) {
  if (spec.form == TaskForm::spans)
    spans_ = &params.at(kSpanWeight);
  else
    pooled_.emplace(pooled_spec(spec), params, seed);
}

Tensor TaskHead::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const HeadInputs& inputs,
                         Saved& saved) const {
  State& state = own(saved);
  TensorParallel::InRegion in_region =
      tp_.to_region(ex, norm_ ? norm_->forward(ex, x, state.norm) : x, kWholeMicrobatch);
  in_region.messages.wait(ex);
  if (spans_ != nullptr) {
    state.rows = in_region.x;
    forward_spans(ex, microbatch, inputs, state);
    return {};
  }
  const Tensor rows = ex.tensor({inputs.rows.dim(0), x.dim(1)}, x.dtype());
  ops::permute_rows(ex, {.x = in_region.x, .pair_of = inputs.rows, .rows = rows});
  pooled_->forward(ex, microbatch, rows,
                   {.labels = inputs.labels,
                    .state = microbatch.mode == Mode::train ? microbatch.step_state : Tensor(),
                    .sums = inputs.loss_sums,
                    .numbers = inputs.numbers},
                   state.pooled);
  return {};
}

void TaskHead::forward_spans(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, State& state) const {
  const Index tokens = state.rows.dim(0), choices = 2 * microbatch.batch;
  state.d_spans = ex.tensor({2, tokens}, state.rows.dtype());
  ops::matmul(ex, {.a = spans_->value, .b = state.rows, .c = state.d_spans, .transpose_b = ops::Transpose::yes});
  const Tensor logits = state.d_spans.reshaped({choices, microbatch.seq_len});
  if (microbatch.lengths) ops::mask_columns(ex, {.z = logits, .lengths = microbatch.lengths});
  if (inputs.numbers) ops::cast(ex, logits, inputs.numbers);
  const Tensor best = ex.tensor({choices, 2}, DType::f64), ids = ex.tensor({choices}, DType::i32);
  ops::argmax(ex, {.logits = logits, .best = best, .vocab_size = microbatch.seq_len});
  ops::argmax_of_shards(ex, {.best = best, .ids = ids});
  ops::count_matches(ex, {.ids = ids, .targets = inputs.labels, .sum = inputs.loss_sums.rows(1, 1)});
  ops::cross_entropy(ex, {.logits = logits,
                          .targets = inputs.labels,
                          .step_state = microbatch.mode == Mode::train ? microbatch.step_state : Tensor(),
                          .loss = ex.tensor({choices}, statistics_dtype(logits.dtype())),
                          .loss_sum = inputs.loss_sums.rows(0, 1),
                          .vocab_size = microbatch.seq_len});
}

void TaskHead::infer_rows(Exec& ex, const Microbatch& /*microbatch*/, const Tensor& x, const HeadInputs& /*inputs*/,
                          const HeadResults& results) const {
  if (spans_ == nullptr) throw InternalError("[TaskHead::infer_rows] only spans have results about rows");
  require_made(results, ResultOf::row, {Result::row_logits});
  ops::matmul(
      ex, {.a = normalized(ex, x), .b = spans_->value, .c = results.row_logits, .transpose_b = ops::Transpose::yes});
}

void TaskHead::infer_samples(Exec& ex, const Microbatch& /*microbatch*/, const Tensor& x, const HeadInputs& inputs,
                             const HeadResults& results) const {
  if (spans_ != nullptr) throw InternalError("[TaskHead::infer_samples] spans have no results about samples");
  require_made(results, ResultOf::sample, {Result::label_losses, Result::class_logits});
  pooled_->infer(ex, normalized(ex, x), {.labels = inputs.labels, .state = {}, .sums = inputs.loss_sums.rows(0, 1)},
                 results);
}

Tensor TaskHead::normalized(Exec& ex, const Tensor& x) const {
  Norm::Saved unused;
  return norm_ ? norm_->forward(ex, x, unused) : x;
}

void TaskHead::backward(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, Saved& saved,
                        const GradWithBias& dx) const {
  const State& state = own(saved);
  const Tensor d_normed = norm_ ? ex.tensor_like(dx.grad) : dx.grad;
  if (spans_ != nullptr)
    backward_spans(ex, microbatch, state, d_normed);
  else
    backward_pooled(ex, microbatch, inputs, state, d_normed);
  if (norm_) norm_->backward(ex, d_normed, state.norm, {}, dx);
}

void TaskHead::backward_spans(Exec& ex, const Microbatch& microbatch, const State& state,
                              const Tensor& d_normed) const {
  const Tensor d_rows = tp_.is_sequence_parallel() ? ex.tensor_like(state.rows) : d_normed;
  ops::matmul(ex, {.a = state.d_spans, .b = spans_->value, .c = d_rows, .transpose_a = ops::Transpose::yes});
  ops::matmul(ex, {.a = state.d_spans, .b = state.rows, .c = spans_->grad, .write = microbatch.weight_grads});
  if (!tp_.is_sequence_parallel()) return;
  tp_.for_blocks(microbatch, {}, [&](const SubBatch& block, const ops::Dropout& place) {
    const Tensor own_rows = block.of(d_normed);
    ops::copy(ex, d_rows.rows(place.first_row, own_rows.dim(0)), own_rows);
  });
}

void TaskHead::backward_pooled(Exec& ex, const Microbatch& microbatch, const HeadInputs& inputs, const State& state,
                               const Tensor& d_normed) const {
  const Tensor d_rows = ex.tensor({inputs.rows.dim(0), d_normed.dim(1)}, d_normed.dtype());
  pooled_->backward(ex, microbatch, state.pooled, d_rows);
  put_rows_back(ex, tp_, microbatch, inputs, d_rows, d_normed);
}

}  // namespace megalith::nn
