#include "megalith/optim/muon.h"

#include <algorithm>
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

Index last_dim(const Shape& shape) { return shape[shape.rank() - 1]; }

/// Matrix `s` of a batch [S, R, C].
Tensor matrix_of(const Tensor& batch, std::size_t s) {
  return batch.rows(static_cast<Index>(s), 1).reshaped({batch.dim(1), batch.dim(2)});
}

}  // namespace

Muon::Muon(const OptimConfig& config, const ParamBuffer& params, comm::Group data, comm::Group tp)
    : config_(config), params_(params), data_(std::move(data)), tp_(std::move(tp)), matrices_(find_matrices()) {
  find_owners();
  find_batches();
}

std::vector<Muon::Matrix> Muon::find_matrices() const {
  std::vector<Matrix> all;
  for (const Param& param : params_.params()) {
    const TensorSlice& slice = param.spec.slice;
    for (const RowRuns& rows : param.spec.matrices) {
      const Index columns = last_dim(slice.local), own_rows = slice.local.numel() / columns / rows.stride * rows.run;
      const Index global_columns = last_dim(slice.global),
                  global_rows = slice.global.numel() / global_columns / rows.stride * rows.run;
      const bool cuts_columns = columns != global_columns, cuts_rows = own_rows != global_rows;
      const bool is_wide = global_rows <= global_columns;
      all.push_back({.param = &param,
                     .runs = rows,
                     .rows = own_rows,
                     .columns = columns,
                     .side = cuts_columns || (!cuts_rows && is_wide) ? Side::left : Side::right,
                     .is_split = cuts_columns || cuts_rows,
                     .scale = scale_of(config_.muon_scale, global_rows, global_columns)});
    }
  }
  return all;
}

/// Each weight goes to the rank with the least work so far: the same on all ranks.
void Muon::find_owners() {
  std::vector<double> work(static_cast<std::size_t>(data_.size()));
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    Matrix& matrix = matrices_[i];
    const bool continues = i > 0 && matrices_[i - 1].param == matrix.param;
    matrix.owner = continues ? matrices_[i - 1].owner : static_cast<int>(std::ranges::min_element(work) - work.begin());
    const auto rows = static_cast<double>(matrix.rows), columns = static_cast<double>(matrix.columns);
    work[static_cast<std::size_t>(matrix.owner)] += rows * columns * std::min(rows, columns);
  }
}

void Muon::find_batches() {
  for (const Matrix& matrix : matrices_) {
    if (matrix.owner != data_.rank()) continue;
    const auto takes_one_more = [&](const Batch& batch) {
      const Index bytes = matrix.rows * matrix.columns * size_of(dtype());
      return batch.front()->is_like(matrix) && (static_cast<Index>(batch.size()) + 1) * bytes <= kBatchBytes;
    };
    const auto found = std::ranges::find_if(batches_, takes_one_more);
    if (found != batches_.end())
      found->push_back(&matrix);
    else
      batches_.push_back({&matrix});
  }
}

void Muon::orthogonalise(Exec& ex) const {
  gather(ex);
  for (const Matrix& matrix : matrices_) {
    if (matrix.owner != data_.rank()) ops::fill(ex, params_.part(params_.grads(), *matrix.param), 0);
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

Tensor Muon::weight_of(const Matrix& matrix) const {
  const Param& param = *matrix.param;
  return params_.part(params_.grads(), param).reshaped({param.spec.held.numel() / matrix.columns, matrix.columns});
}

void Muon::orthogonalise(Exec& ex, const Batch& batch) const {
  const Tensor x = unit_norms(ex, batch);
  iterate(ex, *batch.front(), x);
  for (std::size_t s = 0; s < batch.size(); ++s) {
    const Matrix& matrix = *batch[s];
    ops::put_runs(ex,
                  {.matrix = matrix_of(x, s), .weight = weight_of(matrix), .runs = matrix.runs, .scale = matrix.scale});
  }
}

/// The updates [S, R, C] over the norms of the global matrices, in the dtype of the iteration.
Tensor Muon::unit_norms(Exec& ex, const Batch& batch) const {
  const Matrix& first = *batch.front();
  const auto count = static_cast<Index>(batch.size());
  const Index numel = first.rows * first.columns, blocks = ops::square_blocks(ex.device(), numel);
  const Tensor updates = ex.tensor({count, first.rows, first.columns}, params_.grads().dtype());
  for (std::size_t s = 0; s < batch.size(); ++s)
    ops::take_runs(ex, weight_of(*batch[s]), batch[s]->runs, matrix_of(updates, s));
  const Tensor squares = ex.tensor({count, blocks}, DType::f64), sums = ex.tensor({count}, DType::f64);
  ops::sum_of_squares(ex, updates.reshaped({count, numel}), squares);
  ops::add_up_rows(ex, squares, sums);
  if (first.is_split) comm::all_reduce(ex, tp_, sums, comm::Reduce::sum).wait(ex);
  const Tensor x = ex.tensor(updates.shape(), dtype());
  ops::divide_by_norms(ex, updates.reshaped({count, numel}), sums, x.reshaped({count, numel}));
  return x;
}

/// In place. `first`: of the batch x [S, R, C].
void Muon::iterate(Exec& ex, const Matrix& first, const Tensor& x) const {
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
