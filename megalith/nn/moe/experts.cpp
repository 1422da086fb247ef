#include "megalith/nn/moe/experts.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/nn/linear.h"
#include "megalith/nn/moe/expert_gemms.h"
#include "megalith/nn/param_specs.h"
#include "megalith/ops/grouped_matmul.h"

namespace megalith::nn {
namespace {

/// [E, ..., in] -> [E, out, in]
Tensor as_matrices(const Tensor& weight) {
  const Index experts = weight.dim(0), in = weight.dim(weight.shape().rank() - 1);
  return weight.reshaped({experts, weight.numel() / (experts * in), in});
}

/// Experts [first, first + count) and, along `axis` of the global tensor, this rank's slice.
ParamSpec expert_weight(std::string name, const Shape& shape, int axis, const ExpertParallel& experts,
                        double init_std) {
  const Index count = shard(shape[0], experts.ep(), name + " experts");
  const Index units = shard(shape[axis], experts.etp(), name + " units");
  TensorSlice slice = TensorSlice::whole(std::move(name), shape);
  slice.local.set(0, count);
  slice.local.set(axis, units);
  slice.offset[0] = count * experts.ep().rank();
  slice.offset[static_cast<std::size_t>(axis)] = units * experts.etp().rank();
  ParamSpec spec;
  spec.held = slice.local;
  spec.slice = std::move(slice);
  spec.init = Init::normal;
  spec.init_std = init_std;
  spec.placement.grid = grid::GridKind::expert;
  spec.first_grad = FirstGrad::overwritten;
  const Index parts = shape.rank() == 4 ? shape[2] : 1;  // gate and up
  for (Index part = 0; part < parts; ++part) spec.matrices.push_back({1, parts, part});
  spec.grad_squares = ops::weight_grad_squares(as_matrices(Tensor(nullptr, spec.held, DType::f32)).shape());
  return spec;
}

/// The groups of `range` among `count` ones from `first` on, counted from there.
ExpertRange part_of(const ExpertRange& range, Index first, Index count) {
  const Index begin = std::max(range.first, first), end = std::min(range.first + range.count, first + count);
  return end > begin ? ExpertRange{begin - first, end - begin} : ExpertRange{};
}

/// At least one: for a range of none the first expert stands.
Tensor weights_in(const Tensor& weights, const ExpertRange& range) {
  return as_matrices(weights).rows(range.first, std::max<Index>(1, range.count));
}

ops::GroupRows groups_in(const ops::GroupRows& groups, const ExpertRange& range) {
  return groups.part(range.first, std::max<Index>(1, range.count));
}

/// The same of the groups from `first` on.
ops::GroupRows groups_from(const ops::GroupRows& groups, Index first, const ExpertRange& range) {
  return groups_in(groups, {first + range.first, range.count});
}

/// Whether products of parts of the experts leave the squares of one product of all. Others have an order for all.
bool squares_by_part(const Exec& ex, const ops::GroupRows& groups, ops::Write write) {
  return ex.device() == Device::cuda && groups.alignment == ops::kGroupedKernelRows && write == ops::Write::overwrite;
}

}  // namespace

void Experts::declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const ExpertParallel& experts) {
  const Index e = spec.config.num_experts, f = spec.config.ffn_hidden_size, h = stream.hidden_size;
  const bool gated = spec.activation == Activation::swiglu;
  specs.push_back(
      expert_weight(name + ".up.weight", gated ? Shape{e, f, 2, h} : Shape{e, f, h}, 1, experts, stream.init_std));
  specs.push_back(expert_weight(name + ".down.weight", {e, h, f}, 2, experts, stream.residual_init_std));
  if (spec.config.echo.slots == 0 || experts.ep().size() == 1) return;
  // The GEMM does not know the squares of gradients to which those of clones are added after it.
  for (auto param = specs.end() - 2; param != specs.end(); ++param) param->grad_squares = 0;
}

Experts::Experts(const std::string& name, const SublayerOptions& options, ParamSet& params)
    : recomputes_first_gemm_(options.recompute.has(RecomputeModule::mlp)),
      formats_(options.expert_gemms),
      up_(params.at(name + ".up.weight")),
      down_(params.at(name + ".down.weight")) {}

PassForms Experts::row_forms(const SublayerOptions& options) {
  if (options.expert_gemms.rows != GemmFormat::e4m3) return {};
  const bool turned = options.expert_gemms.weight_grad == GemmFormat::e4m3,
             recomputes = options.recompute.has(RecomputeModule::mlp);
  return {.forward = {.numbers = false, .straight = true},
          .grads = {.numbers = !turned, .straight = true, .turned = turned},
          .again = {.numbers = !turned, .straight = recomputes, .turned = turned}};
}

Tensor Experts::weights(ExpertMatrix matrix) const { return as_matrices(param(matrix).value); }
Tensor Experts::grads(ExpertMatrix matrix) const { return as_matrices(param(matrix).grad); }

template <class Run>
void Experts::for_own_and_clones(Exec& ex, ExpertMatrix matrix, const Saved& saved, const ExpertRange& range,
                                 const Run& run) const {
  if (saved.clones == nullptr) return run(weights_in(param(matrix).value, range), groups_in(saved.groups, range));
  const Index local = up_.value.dim(0), slots = saved.groups.count() - local;
  const ExpertRange own = part_of(range, 0, local), of_clones = part_of(range, local, slots);
  run(weights_in(param(matrix).value, own), groups_from(saved.groups, 0, own));
  run(weights_in(saved.clones->weights(ex, matrix), of_clones), groups_from(saved.groups, local, of_clones));
}

template <class Run>
void Experts::for_groups_that_arrive(Exec& ex, ExpertMatrix matrix, const Saved& saved, const ExpertRange& range,
                                     LaterRows& later, const Run& run) const {
  ExpertRange rest = range;
  if (later.first > 0) {
    const ExpertRange first{0, later.first};
    run(weights_in(param(matrix).value, first), groups_in(saved.groups, first), ops::SmMargin::communication);
    rest = {first.count, range.count - first.count};
    later.in_flight.wait(ex);
  }
  for_own_and_clones(ex, matrix, saved, rest,
                     [&](const Tensor& w, const ops::GroupRows& groups) { run(w, groups, ops::SmMargin::none); });
}

Tensor Experts::forward(Exec& ex, const ExpertRows& in, Saved& saved, const ExpertRange& range,
                        LaterRows& later) const {
  saved.groups = in.groups;
  saved.up = ex.tensor({in.count(), weights(ExpertMatrix::up).dim(1)}, dtype());
  if (has_fp8_rows()) {
    if (later.first > 0) later.in_flight.wait(ex);
    return forward_fp8(ex, in, saved, range);
  }
  const Tensor h = ex.tensor({in.count(), weights(ExpertMatrix::down).dim(2)}, dtype()), y = ex.tensor_like(in.rows);
  for_groups_that_arrive(ex, ExpertMatrix::up, saved, range, later,
                         [&](const Tensor& w, const ops::GroupRows& groups, ops::SmMargin margin) {
                           ops::grouped_matmul_activated(
                               ex,
                               {.x = in.rows, .w = w, .z = saved.up, .h = h, .groups = groups, .sm_margin = margin});
                         });
  for_own_and_clones(ex, ExpertMatrix::down, saved, range, [&](const Tensor& w, const ops::GroupRows& groups) {
    ops::grouped_matmul(ex, {.x = h, .w = w, .y = y, .groups = groups});
  });
  return y;
}

RowGrads Experts::backward(Exec& ex, const ExpertRows& in, const RowGrads& dy, ops::Write weight_grads, Saved& saved,
                           LaterRows& later) const {
  const ExpertRange range = all(saved.groups);
  if (recomputes_first_gemm_) recompute_first_gemm(ex, in, saved, range);
  if (has_fp8_rows()) {
    if (later.first > 0) later.in_flight.wait(ex);
    return gradients_fp8(ex, in, dy, weight_grads, saved, range);
  }
  return gradients(ex, in, dy, weight_grads, saved, range, later);
}

void Experts::add_last_weight_grads(Exec& ex, const ExpertRows& in, ops::Write weight_grads, const Saved& saved) const {
  add_up_weight_grads(ex, in, weight_grads, saved, all(saved.groups), ops::SmMargin::communication);
}

void Experts::add_up_weight_grads(Exec& ex, const ExpertRows& in, ops::Write weight_grads, const Saved& saved,
                                  const ExpertRange& range, ops::SmMargin sm_margin) const {
  RowFactors rows{.dy = saved.up, .x = in.rows, .write = weight_grads, .sm_margin = sm_margin};
  if (has_fp8_weight_grads()) {
    rows.dy_turned = saved.up_grad_turned;
    rows.x_turned = in.operands.turned ? in.operands.turned : turned_expert_rows(ex, in.rows, saved.groups);
  }
  add_weight_grads(ex, ExpertMatrix::up, rows, saved, range);
}

RowGrads Experts::backward_again(Exec& ex, const ExpertRows& in, const RowGrads& dy, ops::Write weight_grads,
                                 Saved& saved, const ExpertRange& range) const {
  recompute_first_gemm(ex, in, saved, range);
  LaterRows none;
  const RowGrads dx = has_fp8_rows() ? gradients_fp8(ex, in, dy, weight_grads, saved, range)
                                     : gradients(ex, in, dy, weight_grads, saved, range, none);
  add_up_weight_grads(ex, in, weight_grads, saved, range, ops::SmMargin::none);
  return dx;
}

void Experts::recompute_first_gemm(Exec& ex, const ExpertRows& in, Saved& saved, const ExpertRange& range) const {
  saved.up = ex.tensor({in.count(), weights(ExpertMatrix::up).dim(1)}, dtype());
  if (has_fp8_rows()) return first_gemm_fp8(ex, in, saved, range);
  for_own_and_clones(ex, ExpertMatrix::up, saved, range, [&](const Tensor& w, const ops::GroupRows& groups) {
    ops::grouped_matmul(ex, {.x = in.rows, .w = w, .y = saved.up, .groups = groups});
  });
}

void Experts::sum_grad_squares(Exec& ex, ops::Write weight_grads, const Saved& saved) const {
  if (squares_by_part(ex, saved.groups, weight_grads)) return;
  for (const Param* param : {&up_, &down_}) {
    if (param->grad_squares) ops::sum_weight_grad_squares(ex, as_matrices(param->grad), param->grad_squares);
  }
}

RowGrads Experts::gradients(Exec& ex, const ExpertRows& in, const RowGrads& dy, ops::Write weight_grads, Saved& saved,
                            const ExpertRange& range, LaterRows& later) const {
  const Tensor &z = saved.up, &d_up = saved.up;  // in its place
  const Tensor weighted = ex.tensor({in.count(), weights(ExpertMatrix::down).dim(2)}, dtype());
  const RowGrads dx{ex.tensor_like(in.rows), ex.tensor_like(dy.weights)};
  for_groups_that_arrive(ex, ExpertMatrix::down, saved, range, later,
                         [&](const Tensor& w, const ops::GroupRows& groups, ops::SmMargin margin) {
                           ops::grouped_matmul_activated_input_grad(ex, {.dy = dy.rows,
                                                                         .w = w,
                                                                         .z = z,
                                                                         .p = dy.weights,
                                                                         .dz = d_up,
                                                                         .ph = weighted,
                                                                         .dp = dx.weights,
                                                                         .groups = groups,
                                                                         .sm_margin = margin});
                         });
  add_weight_grads(ex, ExpertMatrix::down, {.dy = dy.rows, .x = weighted, .write = weight_grads}, saved, range);
  for_own_and_clones(ex, ExpertMatrix::up, saved, range, [&](const Tensor& w, const ops::GroupRows& groups) {
    ops::grouped_matmul_input_grad(ex, {.dy = d_up, .w = w, .dx = dx.rows, .groups = groups});
  });
  return dx;
}

void Experts::first_gemm_fp8(Exec& ex, const ExpertRows& in, const Saved& saved, const ExpertRange& range) const {
  const ops::Operand x =
      in.operands.straight ? in.operands.straight : expert_rows(ex, formats_, in.rows, saved.groups, false).straight;
  for_own_and_clones(ex, ExpertMatrix::up, saved, range, [&](const Tensor& w, const ops::GroupRows& groups) {
    multiply_expert_rows(ex, {.rows = x, .weights = w, .out = saved.up, .groups = groups});
  });
}

Tensor Experts::forward_fp8(Exec& ex, const ExpertRows& in, Saved& saved, const ExpertRange& range) const {
  const Tensor y = ex.tensor({in.count(), hidden_size()}, dtype());
  first_gemm_fp8(ex, in, saved, range);
  const ops::Operand h = activated_expert_rows(ex, saved.up, weights(ExpertMatrix::down).dim(2), saved.groups);
  for_own_and_clones(ex, ExpertMatrix::down, saved, range, [&](const Tensor& w, const ops::GroupRows& groups) {
    multiply_expert_rows(ex, {.rows = h, .weights = w, .out = y, .groups = groups});
  });
  return y;
}

RowGrads Experts::gradients_fp8(Exec& ex, const ExpertRows& in, const RowGrads& dy, ops::Write weight_grads,
                                Saved& saved, const ExpertRange& range) const {
  const Tensor d_up = saved.up;  // in the place of z
  const Tensor weighted = ex.tensor({in.count(), weights(ExpertMatrix::down).dim(2)}, dtype());
  const RowGrads dx{ex.tensor({in.count(), hidden_size()}, dtype()), ex.tensor_like(dy.weights)};
  const RowOperands dy_rows =
      dy.operands.is_made ? dy.operands : expert_rows(ex, formats_, dy.rows, saved.groups, true);
  for_own_and_clones(ex, ExpertMatrix::down, saved, range, [&](const Tensor& w, const ops::GroupRows& groups) {
    multiply_expert_rows(ex,
                         {.rows = dy_rows.straight, .weights = w, .turned = true, .out = weighted, .groups = groups});
  });
  ops::grouped_activation_grad(
      ex, {.z = saved.up, .p = dy.weights, .dh = weighted, .dz = d_up, .dp = dx.weights, .groups = saved.groups});
  RowFactors of_down{.dy = dy.rows, .x = weighted, .write = weight_grads};
  if (has_fp8_weight_grads()) {
    of_down.dy_turned = dy_rows.turned;
    of_down.x_turned = turned_expert_rows(ex, weighted, saved.groups);
  }
  add_weight_grads(ex, ExpertMatrix::down, of_down, saved, range);
  const RowOperands d_up_rows = expert_rows(ex, formats_, d_up, saved.groups, true);
  saved.up_grad_turned = d_up_rows.turned;
  for_own_and_clones(ex, ExpertMatrix::up, saved, range, [&](const Tensor& w, const ops::GroupRows& groups) {
    multiply_expert_rows(ex,
                         {.rows = d_up_rows.straight, .weights = w, .turned = true, .out = dx.rows, .groups = groups});
  });
  return dx;
}

void Experts::add_weight_grads(Exec& ex, ExpertMatrix matrix, const RowFactors& rows, const Saved& saved,
                               const ExpertRange& range) const {
  // Without rows nothing is added to the gradients of the expert, or clone, that stands for none.
  const auto write_in = [](const ExpertRange& part, ops::Write write) {
    return part.count == 0 ? ops::Write::accumulate : write;
  };
  const Index local = up_.value.dim(0);
  const ExpertRange own = part_of(range, 0, local);
  const bool is_whole = own.count == local;  // else sum_grad_squares() comes after all parts
  ops::GroupedWeightGrad args{.dy = rows.dy,
                              .x = rows.x,
                              .dw = weights_in(param(matrix).grad, own),
                              .groups = {},
                              .write = write_in(own, write_of(param(matrix), rows.write)),
                              .squares = is_whole ? param(matrix).grad_squares : Tensor(),
                              .sm_margin = rows.sm_margin};
  if (param(matrix).grad_squares && own.count > 0 && squares_by_part(ex, saved.groups, rows.write)) {
    const Index of_expert = param(matrix).grad_squares.numel() / local;
    args.squares = param(matrix).grad_squares.rows(own.first * of_expert, own.count * of_expert);
  }
  const auto add = [&] {
    if (rows.dy_turned) return add_expert_weight_grads(ex, rows.dy_turned, rows.x_turned, args);
    ops::grouped_matmul_weight_grad(ex, args);
  };
  if (saved.clones == nullptr) {
    args.groups = groups_in(saved.groups, own);
    return add();
  }
  args.groups = groups_from(saved.groups, 0, own);
  add();
  const ExpertRange of_clones = part_of(range, local, saved.groups.count() - local);
  args.groups = groups_from(saved.groups, local, of_clones);
  args.dw = weights_in(saved.clones->grads(ex, matrix), of_clones);
  args.write = write_in(of_clones, ops::Write::overwrite);
  args.squares = {};
  add();
  saved.clones->grads_written(ex, matrix);
}

}  // namespace megalith::nn
