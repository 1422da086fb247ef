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

double scale_of(MuonScale scale, Index rows, Index columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  return scale == MuonScale::match_rms_adamw ? kRmsOfAdamW * std::sqrt(std::max(r, c))
                                             : std::sqrt(std::max(1.0, r / c));
}

Index last_dim(const Shape& shape) { return shape[shape.rank() - 1]; }

}  // namespace

Muon::Muon(const OptimConfig& config, const ParamBuffer& params, comm::Group data, comm::Group tp)
    : config_(config), params_(params), data_(std::move(data)), tp_(std::move(tp)), matrices_(find_matrices()) {
  find_owners();
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

void Muon::orthogonalise(Exec& ex) const {
  gather(ex);
  for (const Matrix& matrix : matrices_) {
    if (matrix.owner == data_.rank())
      orthogonalise(ex, matrix);
    else
      ops::fill(ex, params_.part(params_.grads(), *matrix.param), 0);
  }
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

void Muon::orthogonalise(Exec& ex, const Matrix& matrix) const {
  const Param& param = *matrix.param;
  const Index rows = param.spec.held.numel() / matrix.columns;
  const Tensor weight = params_.part(params_.grads(), param).reshaped({rows, matrix.columns});
  Tensor update = weight;
  if (matrix.rows != rows) {
    update = ex.tensor({matrix.rows, matrix.columns}, weight.dtype());
    ops::take_runs(ex, weight, matrix.runs, update);
  }
  const Tensor x = unit_norm(ex, matrix, update);
  iterate(ex, matrix, x);
  ops::put_runs(ex, {.matrix = x, .weight = weight, .runs = matrix.runs, .scale = matrix.scale});
}

/// The update over the norm of the global matrix, in the dtype of the iteration.
Tensor Muon::unit_norm(Exec& ex, const Matrix& matrix, const Tensor& update) const {
  const Index numel = update.numel(), blocks = ops::square_blocks(ex.device(), numel);
  const Tensor squares = ex.tensor({1, blocks}, DType::f64), sum = ex.tensor({1}, DType::f64);
  ops::sum_of_squares(ex, update.reshaped({1, numel}), squares);
  ops::fill(ex, sum, 0);
  ops::add_up(ex, squares.reshaped({blocks}), sum);
  if (matrix.is_split) comm::all_reduce(ex, tp_, sum, comm::Reduce::sum).wait(ex);
  const bool is_bf16 = params_.policy().compute == DType::bf16;
  const Tensor x = ex.tensor(update.shape(), is_bf16 ? DType::bf16 : update.dtype());
  ops::divide_by_norm(ex, update, sum, x);
  return x;
}

/// In place.
void Muon::iterate(Exec& ex, const Matrix& matrix, const Tensor& x) const {
  const bool is_left = matrix.side == Side::left;
  const Index size = is_left ? matrix.rows : matrix.columns;
  const Tensor product = ex.tensor({size, size}, x.dtype()), square = ex.tensor_like(product),
               change = ex.tensor_like(x);
  using enum ops::Transpose;
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    ops::matmul(ex,
                {.a = x, .b = x, .c = product, .transpose_a = is_left ? no : yes, .transpose_b = is_left ? yes : no});
    if (matrix.is_split) comm::all_reduce(ex, tp_, product, comm::Reduce::sum).wait(ex);
    ops::matmul(ex, {.a = product, .b = product, .c = square});
    ops::linear_sum(ex, {.a = kB, .x = product, .b = kC, .y = square, .out = square});
    ops::matmul(ex, {.a = is_left ? square : x, .b = is_left ? x : square, .c = change});
    ops::linear_sum(ex, {.a = kA, .x = x, .b = 1, .y = change, .out = x});
  }
}

}  // namespace megalith::optim
