#include "megalith/optim/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "megalith/ops/adamw.h"
#include "megalith/ops/elementwise.h"

namespace megalith::optim {
namespace {

constexpr int kNewtonSchulzSteps = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kRmsOfAdamW = 0.2;
constexpr Index kBatchBytes = Index{64} << 20;

double scale_of(MuonScale scale, Index rows, Index columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  return scale == MuonScale::match_rms_adamw ? kRmsOfAdamW * std::sqrt(std::max(r, c))
                                             : std::sqrt(std::max(1.0, r / c));
}

/// How many weights lie one behind the other in a tensor of this shape.
Index weights_in(const Param& param, const Shape& shape) {
  return param.spec.placement.grid == grid::GridKind::expert ? shape[0] : 1;
}

/// Rows and columns of each.
std::array<Index, 2> dims_of_weight(const Param& param, const Shape& shape) {
  const Index columns = shape[shape.rank() - 1];
  return {shape.numel() / weights_in(param, shape) / columns, columns};
}

}  // namespace

Muon::Muon(const OptimConfig& config, const ParamBuffer& params, comm::Group data, comm::Group tp)
    : config_(config), params_(params), data_(std::move(data)), tp_(std::move(tp)), matrices_(find_matrices()) {
  find_owners();
  find_batches();
}

std::vector<Muon::Matrices> Muon::find_matrices() const {
  std::vector<Matrices> all;
  for (const Param& param : params_.params()) {
    if (!takes(param)) continue;
    const TensorSlice& slice = param.spec.slice;
    const auto [held_rows, columns] = dims_of_weight(param, slice.local);
    const auto [whole_rows, whole_columns] = dims_of_weight(param, slice.global);
    const bool cuts_columns = columns != whole_columns, cuts_rows = held_rows != whole_rows;
    const Index held = weights_in(param, slice.local), per_owner = experts_per_owner(param);
    for (Index first = 0; first < held; first += per_owner) {
      for (const RowRuns& runs : param.spec.matrices) {
        const Index rows = held_rows / runs.stride * runs.run, global_rows = whole_rows / runs.stride * runs.run;
        const bool is_wide = global_rows <= whole_columns;
        all.push_back({.param = &param,
                       .runs = runs,
                       .first = first,
                       .count = std::min(per_owner, held - first),
                       .rows = rows,
                       .columns = columns,
                       .side = cuts_columns || (!cuts_rows && is_wide) ? Side::left : Side::right,
                       .is_split = cuts_columns || cuts_rows,
                       .scale = scale_of(config_.muon_scale, global_rows, whole_columns)});
      }
    }
  }
  return all;
}

/// As many for each rank of the reduction group, but no more than a batch holds.
Index Muon::experts_per_owner(const Param& param) const {
  const Shape& local = param.spec.slice.local;
  const Index experts = weights_in(param, local), bytes = local.numel() / experts * size_of(dtype());
  return std::min(ceil_div(experts, Index{data_.size()}), std::max(Index{1}, kBatchBytes / bytes));
}

/// Each weight goes to the rank with the least work so far: the same on all ranks.
void Muon::find_owners() {
  std::vector<double> work(static_cast<std::size_t>(data_.size()));
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    Matrices& matrices = matrices_[i];
    const bool continues =
        i > 0 && matrices_[i - 1].param == matrices.param && matrices_[i - 1].first == matrices.first;
    matrices.owner =
        continues ? matrices_[i - 1].owner : static_cast<int>(std::ranges::min_element(work) - work.begin());
    const auto rows = static_cast<double>(matrices.rows), columns = static_cast<double>(matrices.columns);
    work[static_cast<std::size_t>(matrices.owner)] +=
        static_cast<double>(matrices.count) * rows * columns * std::min(rows, columns);
  }
}

void Muon::find_batches() {
  for (const Matrices& matrices : matrices_) {
    if (matrices.owner != data_.rank()) continue;
    const auto takes_these = [&](const Batch& batch) {
      const Index bytes = matrices.rows * matrices.columns * size_of(dtype());
      return batch.front()->is_like(matrices) && (count_of(batch) + matrices.count) * bytes <= kBatchBytes;
    };
    const auto found = std::ranges::find_if(batches_, takes_these);
    if (found != batches_.end())
      found->push_back(&matrices);
    else
      batches_.push_back({&matrices});
  }
}

Index Muon::count_of(const Batch& batch) {
  Index count = 0;
  for (const Matrices* matrices : batch) count += matrices->count;
  return count;
}

void Muon::orthogonalise(Exec& ex) const {
  gather(ex);
  for (const Matrices& matrices : matrices_) {
    const bool is_first = matrices.runs == matrices.param->spec.matrices.front();
    if (is_first && matrices.owner != data_.rank()) ops::fill(ex, weights_of(matrices), 0);
  }
  for (const Batch& batch : batches_) orthogonalise(ex, batch);
  share(ex);
}

bool Muon::has_matrices(const Bucket& bucket) const {
  return std::ranges::any_of(params_.params(), [&](const Param& param) {
    return takes(param) && bucket.begin <= param.offset && param.offset < bucket.end;
  });
}

void Muon::gather(Exec& ex) const {
  if (!params_.is_sharded()) return;
  for (const Bucket& bucket : params_.buckets()) {
    if (!has_matrices(bucket)) continue;
    comm::all_gather(ex, data_, params_.own_shard(params_.grads(), bucket), params_.part(params_.grads(), bucket))
        .wait(ex);
  }
}

void Muon::share(Exec& ex) const {
  if (data_.size() == 1) return;
  for (const Bucket& bucket : params_.buckets()) {
    if (!has_matrices(bucket)) continue;
    const Tensor all = params_.part(params_.grads(), bucket);
    if (params_.is_sharded())
      comm::reduce_scatter(ex, data_, all, params_.own_shard(params_.grads(), bucket), comm::Reduce::sum).wait(ex);
    else
      comm::all_reduce(ex, data_, all, comm::Reduce::sum).wait(ex);
  }
}

Tensor Muon::weights_of(const Matrices& matrices) const {
  const Param& param = *matrices.param;
  const Index rows = dims_of_weight(param, param.spec.held)[0];
  return params_.part(params_.grads(), param)
      .reshaped({param.spec.held.numel() / matrices.columns, matrices.columns})
      .rows(matrices.first * rows, matrices.count * rows);
}

template <class Run>
void Muon::for_all(const Batch& batch, const Tensor& x, const Run& run) {
  Index place = 0;
  for (const Matrices* matrices : batch) {
    run(*matrices, x.rows(place, matrices->count).reshaped({matrices->count * matrices->rows, matrices->columns}));
    place += matrices->count;
  }
}

void Muon::orthogonalise(Exec& ex, const Batch& batch) const {
  const Tensor x = unit_norms(ex, batch);
  iterate(ex, *batch.front(), x);
  for_all(batch, x, [&](const Matrices& matrices, const Tensor& rows) {
    ops::put_runs(ex, {.matrix = rows, .weight = weights_of(matrices), .runs = matrices.runs, .scale = matrices.scale});
  });
}

/// The updates [S, R, C] over the norms of the global matrices, in the dtype of the iteration.
Tensor Muon::unit_norms(Exec& ex, const Batch& batch) const {
  const Matrices& first = *batch.front();
  const Index count = count_of(batch);
  const Index numel = first.rows * first.columns, blocks = ops::square_blocks(ex.device(), numel);
  const Tensor updates = ex.tensor({count, first.rows, first.columns}, params_.grads().dtype());
  for_all(batch, updates, [&](const Matrices& matrices, const Tensor& rows) {
    ops::take_runs(ex, weights_of(matrices), matrices.runs, rows);
  });
  const Tensor squares = ex.tensor({count, blocks}, DType::f64), sums = ex.tensor({count}, DType::f64);
  ops::sum_of_squares(ex, updates.reshaped({count, numel}), squares);
  ops::add_up_rows(ex, squares, sums);
  if (first.is_split) comm::all_reduce(ex, tp_, sums, comm::Reduce::sum).wait(ex);
  const Tensor x = ex.tensor(updates.shape(), dtype());
  ops::divide_by_norms(ex, updates.reshaped({count, numel}), sums, x.reshaped({count, numel}));
  return x;
}

/// In place. `first`: of the batch x [S, R, C].
void Muon::iterate(Exec& ex, const Matrices& first, const Tensor& x) const {
  const bool is_left = first.side == Side::left;
  const Index size = is_left ? first.rows : first.columns;
  const Tensor product = ex.tensor({x.dim(0), size, size}, x.dtype()), square = ex.tensor_like(product),
               change = ex.tensor_like(x);
  using enum ops::Transpose;
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    ops::batched_matmul(
        ex, {.a = x, .b = x, .c = product, .transpose_a = is_left ? no : yes, .transpose_b = is_left ? yes : no});
    if (first.is_split) comm::all_reduce(ex, tp_, product, comm::Reduce::sum).wait(ex);
    ops::batched_matmul(ex, {.a = product, .b = product, .c = square});
    ops::linear_sum(ex, {.a = kB, .x = product, .b = kC, .y = square, .out = square});
    ops::batched_matmul(ex, {.a = is_left ? square : x, .b = is_left ? x : square, .c = change});
    ops::linear_sum(ex, {.a = kA, .x = x, .b = 1, .y = change, .out = x});
  }
}

}  // namespace megalith::optim
