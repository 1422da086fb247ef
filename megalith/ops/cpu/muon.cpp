#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "megalith/ops/adamw.h"
#include "megalith/ops/cpu/master_blocks.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/init_kernels.h"
#include "megalith/ops/muon_kernels.h"

// GEMMs take most of a Muon step, so these loops are plain ones.

namespace megalith::ops::cpu {
namespace {

StepVerdict read_verdict(const Tensor& verdict) {
  StepVerdict value;
  std::memcpy(&value, verdict.raw(), sizeof value);
  return value;
}

/// Calls row(index of a row of the matrix, index of its row in the weight) for all rows.
template <class Row>
void for_each_run_row(const RowRuns& runs, const Tensor& matrix, const Row& row) {
  parallel_rows(matrix.dim(0), matrix.dim(1), [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) row(r, r / runs.run * runs.stride + runs.first + r % runs.run);
  });
}

}  // namespace

void muon_momentum(const MuonMomentum& args) {
  dispatch_wide(args.grad.dtype(), "muon_momentum", [&]<class T>() {
    const StepVerdict verdict = read_verdict(args.verdict);
    if (verdict.apply == 0) return;
    const T factor = static_cast<T>(verdict.factor), momentum = static_cast<T>(args.momentum);
    T *grad = args.grad.data<T>(), *m = args.m.data<T>();
    const Index n = args.grad.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      for (Index i = begin; i < begin + count; ++i) {
        const T g = grad[i] * factor;
        m[i] = momentum * m[i] + g;
        grad[i] = g + momentum * m[i];
      }
    });
  });
}

void muon_update(const MuonUpdate& args) {
  dispatch_wide(args.masters.dtype(), "muon_update", [&]<class T>() {
    const StepVerdict verdict = read_verdict(args.verdict);
    if (verdict.apply == 0) return;
    const T rate = static_cast<T>(verdict.learning_rate),
            decay = static_cast<T>(verdict.learning_rate * args.weight_decay);
    const T* update = args.update.data<T>();
    const std::uint8_t* decays = args.decays.data<std::uint8_t>();
    const Index n = args.update.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      update_masters<T>(args.masters, begin, begin + count, [&](T* masters, Index first, Index some) {
        for (Index i = first; i < first + some; ++i) {
          T& value = masters[i - first];
          value -= rate * update[i] + (decays[i / kDecayGroup] != 0 ? decay * value : T{0});
        }
      });
    });
    if (args.masters.whole && args.masters.copy) cast(args.masters.whole, args.masters.copy);
  });
}

void take_runs(const Tensor& weight, const RowRuns& runs, const Tensor& matrix) {
  const Index row_bytes = matrix.dim(1) * size_of(matrix.dtype());
  const auto* from = static_cast<const std::byte*>(weight.raw());
  auto* to = static_cast<std::byte*>(matrix.raw());
  for_each_run_row(runs, matrix, [&](Index row, Index in_weight) {
    std::memcpy(to + row * row_bytes, from + in_weight * row_bytes, static_cast<std::size_t>(row_bytes));
  });
}

void put_runs(const PutRuns& args) {
  dispatch_float(args.matrix.dtype(), "put_runs", [&]<class From>() {
    dispatch_wide(args.weight.dtype(), "put_runs", [&]<class To>() {
      const Index columns = args.matrix.dim(1);
      const From* from = args.matrix.data<From>();
      To* to = args.weight.data<To>();
      const To scale = static_cast<To>(args.scale);
      for_each_run_row(args.runs, args.matrix, [&](Index row, Index in_weight) {
        for (Index c = 0; c < columns; ++c)
          to[in_weight * columns + c] = scale * converted<To>(from[row * columns + c]);
      });
    });
  });
}

void add_up_rows(const Tensor& parts, const Tensor& totals) {
  const auto [rows, columns] = dims<2>(parts, "add_up_rows.parts");
  const double* from = parts.data<double>();
  for (Index r = 0; r < rows; ++r)
    totals.data<double>()[r] = std::accumulate(from + r * columns, from + (r + 1) * columns, 0.0);
}

void divide_by_norms(const Tensor& x, const Tensor& squares, const Tensor& out) {
  dispatch_wide(x.dtype(), "divide_by_norms", [&]<class From>() {
    dispatch_float(out.dtype(), "divide_by_norms", [&]<class To>() {
      const Index n = x.dim(1);
      for (Index s = 0; s < x.dim(0); ++s) {
        const From inverse = static_cast<From>(1 / (std::sqrt(squares.data<double>()[s]) + kMuonNormEps));
        const From* from = x.data<From>() + s * n;
        To* to = out.data<To>() + s * n;
        parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
          for (Index i = begin; i < begin + count; ++i) to[i] = converted<To>(from[i] * inverse);
        });
      }
    });
  });
}

void linear_sum(const LinearSum& args) {
  dispatch_float(args.x.dtype(), "linear_sum", [&]<class T>() {
    using V = Arithmetic<T>;
    const V a = static_cast<V>(args.a), b = static_cast<V>(args.b);
    const T *x = args.x.data<T>(), *y = args.y.data<T>();
    T* out = args.out.data<T>();
    const Index n = args.x.numel();
    parallel_pieces(n, kPiece, n, [&](Index begin, Index count) {
      for (Index i = begin; i < begin + count; ++i)
        out[i] = converted<T>(a * static_cast<V>(x[i]) + b * static_cast<V>(y[i]));
    });
  });
}

}  // namespace megalith::ops::cpu
