// The grouped GEMMs with sizes on the device, against loops. Operands are small whole numbers, so all sums are exact
// and bits must agree, whatever the order of a sum.
#include "megalith/ops/cuda/grouped_product.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/philox.h"
#include "megalith/ops/elementwise.h"

#include "tests/support/twin.h"

namespace megalith {
namespace {

using ops::cuda::TiledActivation, ops::cuda::TileGroups;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Index kTile = ops::cuda::kGroupedTileRows;

/// Groups of these sizes, in a buffer with more rows than they need.
struct Layout {
  explicit Layout(std::vector<std::int32_t> sizes, Index first_group = 0, Index count = -1)
      : rows(std::move(sizes)), first(first_group), end(count < 0 ? groups() : first_group + count) {
    for (const std::int32_t size : rows) {
      begin.push_back(static_cast<std::int32_t>(all_rows));
      all_rows += round_up(size, kTile);
    }
    all_rows += kTile;
  }
  Index groups() const { return static_cast<Index>(rows.size()); }
  Index row(Index group) const { return begin[static_cast<std::size_t>(group)]; }
  Index size(Index group) const { return rows[static_cast<std::size_t>(group)]; }
  bool is_asked(Index group) const { return group >= first && group < end; }
  /// The group whose tiles hold the row, or -1. Its own rows are those before row() + size().
  Index group_of(Index at) const {
    for (Index group = first; group < end; ++group) {
      if (at >= row(group) && at < row(group) + round_up(size(group), kTile)) return group;
    }
    return -1;
  }
  bool is_real(Index at) const {
    const Index group = group_of(at);
    return group >= 0 && at < row(group) + size(group);
  }

  std::vector<std::int32_t> rows, begin;
  Index first, end, all_rows = 0;
};

/// A matrix, or several one below the other, as f32 that T represents.
struct Matrix {
  Index rows = 0, columns = 0;
  std::vector<float> at;
  float& operator()(Index row, Index column) { return at[static_cast<std::size_t>(row * columns + column)]; }
  float operator()(Index row, Index column) const { return at[static_cast<std::size_t>(row * columns + column)]; }
};
Matrix filled(Index rows, Index columns, float value) {
  return {rows, columns, std::vector<float>(static_cast<std::size_t>(rows * columns), value)};
}
/// Whole numbers from -2 to 2, times scale.
Matrix random_matrix(Index rows, Index columns, std::uint32_t stream, float scale = 1) {
  Matrix matrix = filled(rows, columns, 0);
  const RandomSite random{.seed = 3, .step = stream, .site = 0};
  for (std::size_t i = 0; i < matrix.at.size(); ++i)
    matrix.at[i] = scale * (static_cast<float>(random.word(i) % 5) - 2);
  return matrix;
}

template <class T>
class GroupedProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPUS(1);
    exec_.emplace(Device::cuda);
  }
  Exec& ex() { return *exec_; }

  /// Rows of groups; zeros up to the next tile; beyond, NaN.
  Matrix of_rows(const Layout& layout, Index columns, std::uint32_t stream, float scale = 1) {
    Matrix matrix = random_matrix(layout.all_rows, columns, stream, scale);
    for (Index row = 0; row < layout.all_rows; ++row) {
      if (layout.is_real(row)) continue;
      const float value = layout.group_of(row) < 0 ? kNan : 0.0f;
      for (Index column = 0; column < columns; ++column) matrix(row, column) = value;
    }
    return matrix;
  }
  /// [groups, rows, columns], NaN for groups that are empty or not asked for.
  Matrix of_weights(const Layout& layout, Index rows, Index columns, std::uint32_t stream) {
    Matrix matrix = random_matrix(layout.groups() * rows, columns, stream);
    for (Index group = 0; group < layout.groups(); ++group) {
      if (layout.is_asked(group) && layout.size(group) > 0) continue;
      const auto from = matrix.at.begin() + group * rows * columns;
      std::fill(from, from + rows * columns, kNan);
    }
    return matrix;
  }

  template <class U>
  Tensor upload(const Matrix& matrix, const Shape& shape) {
    std::vector<U> values(matrix.at.size());
    std::transform(matrix.at.begin(), matrix.at.end(), values.begin(), [](float x) { return static_cast<U>(x); });
    const Tensor tensor = ex().tensor(shape, dtype_of<U>);
    ex().copy(tensor.raw(), values.data(), tensor.bytes());
    ex().synchronize();
    return tensor;
  }
  Tensor upload(const Matrix& matrix) { return upload<T>(matrix, {matrix.rows, matrix.columns}); }
  Tensor upload(const Matrix& matrix, Index groups) {
    return upload<T>(matrix, {groups, matrix.rows / groups, matrix.columns});
  }
  Tensor out(Index rows, Index columns) { return upload(filled(rows, columns, kNan)); }
  Tensor ids(const std::vector<std::int32_t>& values) {
    const Tensor tensor = ex().tensor({static_cast<Index>(values.size())}, DType::i32);
    ex().copy(tensor.raw(), values.data(), tensor.bytes());
    ex().synchronize();
    return tensor;
  }
  TileGroups groups(const Layout& layout) {
    return {.begin = ids(layout.begin),
            .rows = ids(layout.rows),
            .first = layout.first,
            .count = layout.end - layout.first};
  }
  template <class U = T>
  Matrix download(const Tensor& tensor) {
    std::vector<U> values(static_cast<std::size_t>(tensor.numel()));
    ex().copy(values.data(), tensor.raw(), tensor.bytes());
    ex().synchronize();
    Matrix matrix =
        filled(tensor.numel() / tensor.dim(tensor.shape().rank() - 1), tensor.dim(tensor.shape().rank() - 1), 0);
    std::transform(values.begin(), values.end(), matrix.at.begin(), [](U x) { return static_cast<float>(x); });
    return matrix;
  }
  /// False where the kernels are not for this GPU.
  bool can_run() { return ops::cuda::can_run_grouped_product(ex(), dtype_of<T>, 8, 8); }
  template <class Args>
  void run(const Args& args, const Layout& layout) {
    ASSERT_TRUE(ops::cuda::grouped_product(ex(), ex().stream(), args, groups(layout), 0));
    ex().synchronize();
  }

  std::optional<Exec> exec_;
};

/// What the rows of a weight are: [columns, depth], or [depth, columns].
enum class WeightRows { columns, depth };
/// The sums of rows a and weights b in f32. NaN outside the groups, as outputs are before the op.
Matrix product_of(const Layout& layout, const Matrix& a, const Matrix& b, WeightRows weight_rows) {
  const bool by_columns = weight_rows == WeightRows::columns;
  const Index height = b.rows / layout.groups(), columns = by_columns ? height : b.columns;
  Matrix sums = filled(layout.all_rows, columns, kNan);
  for (Index row = 0; row < layout.all_rows; ++row) {
    const Index group = layout.group_of(row), depth = layout.is_real(row) ? a.columns : 0;
    for (Index column = 0; group >= 0 && column < columns; ++column) {
      float sum = 0;
      for (Index i = 0; i < depth; ++i)
        sum += a(row, i) * (by_columns ? b(group * height + column, i) : b(group * height + i, column));
      sums(row, column) = sum;
    }
  }
  return sums;
}

/// Numbers must be the same, and NaN where NaN is wanted.
template <class U>
void expect_same(const Matrix& got, const Matrix& want, const char* what) {
  ASSERT_EQ(got.at.size(), want.at.size());
  Index wrong = 0;
  for (std::size_t i = 0; i < got.at.size(); ++i) {
    const float rounded = static_cast<float>(static_cast<U>(want.at[i]));
    if (std::isnan(rounded) ? !std::isnan(got.at[i]) : got.at[i] != rounded) ++wrong;
  }
  EXPECT_EQ(wrong, 0) << what;
}
/// To `units` of the last place of T, and an absolute error.
template <class T>
void expect_close(const Matrix& got, const Matrix& want, double units, double absolute, const char* what) {
  ASSERT_EQ(got.at.size(), want.at.size());
  const double relative = units * (dtype_of<T> == DType::bf16 ? 0x1p-8 : 0x1p-11);
  Index wrong = 0;
  for (std::size_t i = 0; i < got.at.size(); ++i) {
    if (std::isnan(want.at[i]) ? !std::isnan(got.at[i])
                               : !(std::abs(got.at[i] - want.at[i]) <= relative * std::abs(want.at[i]) + absolute))
      ++wrong;
  }
  EXPECT_EQ(wrong, 0) << what;
}

// Empty groups anywhere, sizes about a tile, odd numbers of tiles; a range; none at all; all rows in one.
std::vector<Layout> layouts() {
  return {Layout({130, 0, 1, 63, 127, 128, 129, 0, 300, 0}), Layout({10, 200, 300, 40}, 1, 2), Layout({0, 0}),
          Layout({0, 520, 0})};
}

using Elements = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(GroupedProducts, Elements);

// Parts of tiles in every direction, and an odd number of tiles' columns.
constexpr Index kN = 272, kK = 584;

TYPED_TEST(GroupedProducts, ForwardAndInputGradientAreExact) {
  if (!this->can_run()) GTEST_SKIP() << "needs a Hopper GPU and a build with sm_90a";
  for (const Layout& layout : layouts()) {
    const Matrix x = this->of_rows(layout, kK, 1), dy = this->of_rows(layout, kN, 2),
                 w = this->of_weights(layout, kN, kK, 3);
    const Tensor weights = this->upload(w, layout.groups()), y = this->out(layout.all_rows, kN),
                 dx = this->out(layout.all_rows, kK);
    this->run(ops::cuda::TiledForward{.x = this->upload(x), .w = weights, .y = y}, layout);
    this->run(ops::cuda::TiledInputGrad{.dy = this->upload(dy), .w = weights, .dx = dx}, layout);
    expect_same<TypeParam>(this->download(y), product_of(layout, x, w, WeightRows::columns), "y");
    expect_same<TypeParam>(this->download(dx), product_of(layout, dy, w, WeightRows::depth), "dx");
    this->ex().release();
  }
}

TYPED_TEST(GroupedProducts, WeightGradientsAreExactAndKeepWhatNoGroupChanges) {
  if (!this->can_run()) GTEST_SKIP() << "needs a Hopper GPU and a build with sm_90a";
  for (const Layout& layout : layouts()) {
    const Matrix dy = this->of_rows(layout, kN, 2), x = this->of_rows(layout, kK, 1);
    const Matrix old = random_matrix(layout.groups() * kN, kK, 4);
    Matrix sums = old, added = old;  // overwritten; accumulated
    for (Index group = layout.first; group < layout.end; ++group) {
      for (Index n = 0; n < kN; ++n) {
        std::vector<float> sum(kK);
        for (Index row = layout.row(group); row < layout.row(group) + layout.size(group); ++row) {
          for (Index k = 0; k < kK; ++k) sum[static_cast<std::size_t>(k)] += dy(row, n) * x(row, k);
        }
        for (Index k = 0; k < kK; ++k) {
          sums(group * kN + n, k) = sum[static_cast<std::size_t>(k)];
          added(group * kN + n, k) += sum[static_cast<std::size_t>(k)];
        }
      }
    }
    const Shape shape{layout.groups(), kN, kK};
    const Tensor dys = this->upload(dy), xs = this->upload(x), narrow = this->upload(old, layout.groups()),
                 stored = this->template upload<float>(old, shape), wide = this->template upload<float>(old, shape);
    this->run(ops::cuda::TiledWeightGrad{.dy = dys, .x = xs, .dw = narrow, .write = ops::Write::overwrite}, layout);
    const Index numbers = ops::cuda::tiled_squares(kN, kK);
    const Tensor squares =
        this->template upload<double>(filled(layout.groups(), numbers, kNan), {layout.groups(), numbers});
    this->run(ops::cuda::TiledWeightGrad{.dy = dys,
                                         .x = xs,
                                         .dw = stored,
                                         .write = ops::Write::overwrite,
                                         .squares = squares.reshaped({squares.numel()})},
              layout);
    const Matrix of_groups = this->template download<double>(squares);
    for (Index group = 0; group < layout.groups(); ++group) {
      double want = 0, got = 0;
      for (Index at = group * kN * kK; at < (group + 1) * kN * kK; ++at) {
        const double sum = sums.at[static_cast<std::size_t>(at)];
        want += sum * sum;
      }
      for (Index i = 0; i < numbers; ++i) got += of_groups(group, i);
      if (layout.is_asked(group)) {
        EXPECT_NEAR(got, want, 1e-6 * want) << "group " << group;
      } else {
        EXPECT_TRUE(std::isnan(got)) << "group " << group;
      }
    }
    this->run(ops::cuda::TiledWeightGrad{.dy = dys, .x = xs, .dw = wide, .write = ops::Write::accumulate}, layout);
    expect_same<TypeParam>(this->download(narrow), sums, "16 bits");
    expect_same<float>(this->template download<float>(stored), sums, "f32, overwritten");
    expect_same<float>(this->template download<float>(wide), added, "f32, accumulated");
    this->ex().release();
  }
}

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }
double gelu(double z) { return z * sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z)); }

TYPED_TEST(GroupedProducts, TheUpProductActivatesItsExactSums) {
  if (!this->can_run()) GTEST_SKIP() << "needs a Hopper GPU and a build with sm_90a";
  for (const TiledActivation activation : {TiledActivation::gated, TiledActivation::gelu}) {
    const bool is_gated = activation == TiledActivation::gated;
    const Index units = is_gated ? kN / 2 : kN;
    for (const Layout& layout : layouts()) {
      const Matrix x = this->of_rows(layout, kK, 1), w = this->of_weights(layout, kN, kK, 3);
      const Matrix sums = product_of(layout, x, w, WeightRows::columns);
      Matrix want = filled(layout.all_rows, units, kNan);
      for (Index row = 0; row < layout.all_rows; ++row) {
        for (Index unit = 0; unit < units; ++unit) {
          const double first = sums(row, is_gated ? 2 * unit : unit);
          want(row, unit) =
              static_cast<float>(is_gated ? first * sigmoid(first) * sums(row, 2 * unit + 1) : gelu(first));
        }
      }
      const Tensor xs = this->upload(x), ws = this->upload(w, layout.groups()), z = this->out(layout.all_rows, kN),
                   h = this->out(layout.all_rows, units), alone = this->out(layout.all_rows, units);
      this->run(ops::cuda::TiledUp{.x = xs, .w = ws, .z = z, .h = h, .activation = activation}, layout);
      this->run(ops::cuda::TiledUp{.x = xs, .w = ws, .z = {}, .h = alone, .activation = activation}, layout);
      expect_same<TypeParam>(this->download(z), sums, "z");
      expect_close<TypeParam>(this->download(h), want, 1.1, 1e-6, "h");
      expect_same<TypeParam>(this->download(alone), this->download(h), "h without z");
      this->ex().release();
    }
  }
}

/// What the down product's input gradient should give for one layout.
struct WantedDown {
  Matrix dz, ph, dp;
};
WantedDown wanted_down(const Layout& layout, const Matrix& dh, const Matrix& z, const Matrix& p,
                       TiledActivation activation) {
  const bool is_gated = activation == TiledActivation::gated;
  WantedDown want{filled(z.rows, z.columns, kNan), filled(dh.rows, dh.columns, kNan), filled(dh.rows, 1, kNan)};
  for (Index row = 0; row < layout.all_rows; ++row) {
    if (layout.group_of(row) < 0) continue;
    const bool is_real = layout.is_real(row);
    double dp = 0;
    for (Index unit = 0; unit < dh.columns; ++unit) {
      const double weight = is_real ? p(row, 0) : 0, d = dh(row, unit);
      double h = 0;
      if (is_gated) {
        const double gate = z(row, 2 * unit), up = z(row, 2 * unit + 1), s = sigmoid(gate);
        h = gate * s * up;
        want.dz(row, 2 * unit) = static_cast<float>(weight * d * up * s * (1 + gate * (1 - s)));
        want.dz(row, 2 * unit + 1) = static_cast<float>(weight * d * gate * s);
      } else {
        const double at = z(row, unit), step = 1e-5;
        h = gelu(at);
        want.dz(row, unit) = static_cast<float>(weight * d * (gelu(at + step) - gelu(at - step)) / (2 * step));
      }
      want.ph(row, unit) = static_cast<float>(weight * h);
      dp += d * h;
    }
    if (is_real) want.dp(row, 0) = static_cast<float>(dp);
  }
  return want;
}

TYPED_TEST(GroupedProducts, TheDownInputGradientGoesBackThroughTheActivation) {
  if (!this->can_run()) GTEST_SKIP() << "needs a Hopper GPU and a build with sm_90a";
  for (const TiledActivation activation : {TiledActivation::gated, TiledActivation::gelu}) {
    const Index columns = activation == TiledActivation::gated ? 2 * kK : kK;
    for (const Layout& layout : layouts()) {
      const Matrix dy = this->of_rows(layout, kN, 2), w = this->of_weights(layout, kN, kK, 3),
                   z = this->of_rows(layout, columns, 5, 0.75f);
      Matrix p = random_matrix(layout.all_rows, 1, 6, 0.25f);
      for (Index row = 0; row < layout.all_rows; ++row) {
        if (!layout.is_real(row)) p(row, 0) = kNan;
      }
      const WantedDown want = wanted_down(layout, product_of(layout, dy, w, WeightRows::depth), z, p, activation);
      const Tensor ph = this->out(layout.all_rows, kK),
                   dp = this->template upload<float>(filled(layout.all_rows, 1, kNan), {layout.all_rows}),
                   parts = this->ex().tensor({layout.all_rows, ops::cuda::tiled_dp_parts(kK)}, DType::f32);
      ops::cuda::TiledDownInputGrad args{.dy = this->upload(dy),
                                         .w = this->upload(w, layout.groups()),
                                         .z = this->upload(z),
                                         .p = this->template upload<float>(p, {layout.all_rows}),
                                         .dz = this->out(layout.all_rows, columns),
                                         .ph = ph,
                                         .dp = dp,
                                         .parts = parts,
                                         .activation = activation};
      this->run(args, layout);
      const Matrix dz = this->download(args.dz), sums = this->template download<float>(dp);
      expect_close<TypeParam>(dz, want.dz, 1.1, 1e-4, "dz");
      expect_close<TypeParam>(this->download(ph), want.ph, 1.1, 1e-6, "p h");
      for (Index row = 0; row < layout.all_rows; ++row) {  // sums of 584 terms of up to 500
        if (!layout.is_real(row)) {
          EXPECT_TRUE(std::isnan(sums.at[static_cast<std::size_t>(row)]));
        } else {
          EXPECT_NEAR(sums.at[static_cast<std::size_t>(row)], want.dp(row, 0), 0.05) << row;
        }
      }
      args.dz = args.z;  // in place, and again: the same bits
      this->run(args, layout);
      expect_same<TypeParam>(this->download(args.dz), dz, "dz in place");
      expect_same<float>(this->template download<float>(dp), sums, "dp again");
      this->ex().release();
    }
  }
}

/// Places and sizes that no op makes: below 0, and beyond the buffer, where p and the parts of sums end, too.
TYPED_TEST(GroupedProducts, SizesOutsideTheBufferAreClamped) {
  const Layout layout({0, 128, 384, 0});
  const Index rows = layout.row(2) + layout.size(2), units = 128;  // without the rows that follow in a layout
  const auto outside = [&] {
    TileGroups groups = this->groups(layout);
    groups.begin = this->ids({-7, 0, 128, 1 << 29});
    groups.rows = this->ids({-5, 128, 1 << 30, 3});
    return groups;
  };
  const auto run = [&](const auto& args) {
    ASSERT_TRUE(ops::cuda::grouped_product(this->ex(), this->ex().stream(), args, outside(), 0));
    this->ex().synchronize();
  };
  if (!this->can_run()) GTEST_SKIP() << "needs a Hopper GPU";
  const Matrix x = this->of_rows(layout, kK, 1), w = this->of_weights(layout, kN, kK, 2);
  const Tensor y = this->out(layout.all_rows, kN), x_there = this->upload(x).rows(0, rows);
  run(ops::cuda::TiledForward{.x = x_there, .w = this->upload(w, layout.groups()), .y = y.rows(0, rows)});
  expect_same<TypeParam>(this->download(y), product_of(layout, x, w, WeightRows::columns), "y");

  const Tensor dy = this->upload(this->of_rows(layout, kN, 3)).rows(0, rows),
               dw = this->ex().tensor({layout.groups(), kN, kK}, DType::f32),
               want = this->ex().tensor({layout.groups(), kN, kK}, DType::f32);
  run(ops::cuda::TiledWeightGrad{.dy = dy, .x = x_there, .dw = dw, .write = ops::Write::overwrite});
  this->run(ops::cuda::TiledWeightGrad{.dy = dy, .x = x_there, .dw = want, .write = ops::Write::overwrite}, layout);
  expect_same<float>(this->template download<float>(dw), this->template download<float>(want), "dw");

  const Matrix down = this->of_weights(layout, kN, units, 4), numbers = this->of_rows(layout, units, 5);
  const Tensor weights = this->upload(down, layout.groups()), p = this->ex().tensor({rows}, DType::f32);
  ops::fill(this->ex(), p, 1);
  struct Back {
    Tensor z, sums, parts;
  };
  const auto back = [&](auto&& run_args) {
    const Back all{this->upload(numbers), this->ex().tensor({layout.all_rows}, DType::f32),
                   this->ex().tensor({layout.all_rows, ops::cuda::tiled_dp_parts(units)}, DType::f32)};
    ops::fill(this->ex(), all.sums, 7);
    ops::fill(this->ex(), all.parts, 7);
    run_args(ops::cuda::TiledDownInputGrad{.dy = dy,
                                           .w = weights,
                                           .z = all.z.rows(0, rows),
                                           .p = p,
                                           .dz = all.z.rows(0, rows),
                                           .dp = all.sums.rows(0, rows),
                                           .parts = all.parts.rows(0, rows),
                                           .activation = TiledActivation::gelu});
    return all;
  };
  const Back got = back(run), legal = back([&](const auto&args) { this->run(args, layout); });
  expect_same<TypeParam>(this->download(got.z), this->download(legal.z), "dz");
  expect_same<float>(this->template download<float>(got.sums), this->template download<float>(legal.sums), "dp");
  for (const Tensor& guarded : {got.sums, got.parts}) {
    const Matrix left = this->template download<float>(guarded);
    EXPECT_TRUE(std::all_of(left.at.begin() + rows, left.at.end(), [](float value) { return value == 7; }));
  }
}

TYPED_TEST(GroupedProducts, WhatTheKernelsCannotTakeIsLeftAlone) {
  const Layout layout({128});
  const auto refuses = [&](const Tensor& x, const Tensor& w, const Tensor& y) {
    return !ops::cuda::grouped_product(this->ex(), this->ex().stream(), ops::cuda::TiledForward{.x = x, .w = w, .y = y},
                                       this->groups(layout), 0);
  };
  const auto tensor = [&](const Shape& shape, DType dtype = dtype_of<TypeParam>) {
    return this->ex().tensor(shape, dtype);
  };
  EXPECT_TRUE(refuses(tensor({256, 60}), tensor({1, 64, 60}), tensor({256, 64})));  // rows of 120 bytes
  EXPECT_TRUE(refuses(tensor({256, 64}), tensor({1, 60, 64}), tensor({256, 60})));
  EXPECT_TRUE(refuses(tensor({256, 64}, DType::f32), tensor({1, 64, 64}, DType::f32), tensor({256, 64}, DType::f32)));
  const Tensor whole = tensor({256 * 64 + 8});
  const Tensor shifted(static_cast<std::byte*>(whole.raw()) + 2, {256, 64}, dtype_of<TypeParam>);
  EXPECT_TRUE(refuses(shifted, tensor({1, 64, 64}), tensor({256, 64})));
}

}  // namespace
}  // namespace megalith
