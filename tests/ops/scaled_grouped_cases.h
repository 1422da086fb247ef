#pragma once
#include <cstring>

#include <gtest/gtest.h>

#include "megalith/ops/scaled_grouped_matmul.h"

#include "tests/ops/fp8_reference.h"
#include "tests/ops/groups.h"

namespace megalith::ops {

// Rows of groups in E4M3 and their GEMMs on any device, against three loops in f64.

/// Rows [M, C] of groups, as a buffer on the device that is NaN in all other rows.
class GroupedRows {
 public:
  GroupedRows(Exec& ex, const std::vector<Index>& sizes, Index columns, std::uint32_t seed)
      : ex_(ex),
        layout_(sizes, kScaleBlock),
        rows_(layout_.end + kUnused),
        columns_(columns),
        numbers_(fp8_numbers(rows_ * columns, seed)) {
    std::vector<float> held = numbers_;
    for (Index row = 0; row < rows_; ++row) {
      if (layout_.has(row)) continue;
      std::fill_n(held.begin() + row * columns, columns, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(numbers_.begin() + row * columns, columns, 0.0f);
    }
    on_device_ = ex.tensor({rows_, columns}, DType::f32);
    ex.copy(on_device_.raw(), held.data(), on_device_.bytes());
    table_ = ex.tensor({2, layout_.count()}, DType::i32);
    ex.copy(table_.raw(), layout_.host.data(), table_.bytes());
    ex.synchronize();
  }

  const GroupLayout& layout() const { return layout_; }
  GroupRows groups() const { return layout_.in(table_); }
  const Tensor& tensor() const { return on_device_; }
  Index rows() const { return rows_; }
  /// Zeros in rows of no group.
  const std::vector<float>& numbers() const { return numbers_; }
  /// Whether a row is of a group, or one of those that fill the group's last block up.
  bool is_used(Index row) const {
    for (Index g = 0; g < layout_.count(); ++g) {
      if (row >= layout_.begin(g) && row < layout_.begin(g) + round_up(layout_.rows(g), kScaleBlock)) return true;
    }
    return false;
  }

  Operand straight() const {
    const Operand operand = make_operand(ex_, rows_, columns_, ScaleBlocks::vectors);
    quantise(ex_, {.x = on_device_, .straight = operand, .groups = groups()});
    return operand;
  }
  Operand turned() const {
    const Operand operand = make_operand(ex_, columns_, rows_, ScaleBlocks::vectors);
    quantise(ex_, {.x = on_device_, .turned = operand, .groups = groups()});
    return operand;
  }

  /// Sizes of rows and of blocks differ by powers of two, so that a scale of another block is seen.
  static std::vector<float> fp8_numbers(Index count, std::uint32_t seed) {
    const RandomSite site{.seed = seed};
    std::vector<float> numbers(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = std::ldexp(static_cast<float>(site.block(i)[0]) * 0x1p-31f - 1.0f, static_cast<int>(i / 128 % 5));
    return numbers;
  }

 private:
  static constexpr Index kUnused = 2 * kScaleBlock;  // rows after the last group's
  Exec& ex_;
  GroupLayout layout_;
  Index rows_, columns_;
  std::vector<float> numbers_;
  Tensor on_device_, table_;
};

inline const std::vector<std::vector<Index>>& scaled_group_sizes() {
  static const std::vector<std::vector<Index>> all = {
      {0, 1, 127, 128, 129, 300, 0, 64}, {0, 0, 0}, {640}, {0, 5}, {256, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
  return all;
}

/// What stands in a tensor of a device, in f32.
inline std::vector<float> numbers_in(Exec& ex, const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  ex.copy(bytes.data(), tensor.raw(), tensor.bytes());
  ex.synchronize();
  std::vector<float> numbers(static_cast<std::size_t>(tensor.numel()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (tensor.dtype() == DType::f32) {
      std::memcpy(&numbers[i], bytes.data() + 4 * i, 4);
    } else {
      bfloat16 number;
      std::memcpy(&number, bytes.data() + 2 * i, 2);
      numbers[i] = static_cast<float>(number);
    }
  }
  return numbers;
}

/// Weights [G, N, K] by squares: of themselves, or turned.
struct GroupedWeights {
  GroupedWeights(Exec& ex, Index groups, Index n, Index k, bool turned)
      : operand(turned ? make_operand(ex, k, groups * n, ScaleBlocks::squares)
                       : make_operand(ex, groups * n, k, ScaleBlocks::squares)) {
    const std::vector<float> made = GroupedRows::fp8_numbers(groups * n * k, 7);
    const Tensor w = ex.tensor({groups * n, k}, DType::f32);
    ex.copy(w.raw(), made.data(), w.bytes());
    quantise(ex, turned ? Quantise{.x = w, .turned = operand} : Quantise{.x = w, .straight = operand});
    const Fp8Matrix held = read_operand(ex, operand);
    numbers = turned ? numbers_of(held, k, groups * n, ScaleBlocks::squares)
                     : numbers_of(held, groups * n, k, ScaleBlocks::squares);
  }
  Operand operand;
  std::vector<double> numbers;  ///< as the operand lies
};

/// The largest error of numbers [count], in units of the largest of `want`.
inline double error_of(const std::vector<float>& got, const std::vector<double>& want, std::size_t from,
                       std::size_t count) {
  double error = 0, largest = 1e-30;
  for (std::size_t i = from; i < from + count; ++i) {
    error = std::max(error, std::isnan(got[i]) ? INFINITY : std::abs(static_cast<double>(got[i]) - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return error / largest;
}

/// Both products of rows: with weights [G, N, K] (forward) and turned, [G, K, N] (input gradient).
inline void check_scaled_grouped_rows(Exec& ex, const std::vector<Index>& sizes, Index n, Index k, double tolerance) {
  for (const bool turned : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const GroupedRows x(ex, sizes, k, 3);
      const Index groups = x.layout().count();
      const GroupedWeights w(ex, groups, turned ? k : n, turned ? n : k, turned);
      const Operand a = x.straight();
      const std::vector<double> rows = numbers_of(read_operand(ex, a), x.rows(), k, ScaleBlocks::vectors);
      const Tensor c = ex.tensor({x.rows(), n}, dtype);
      const std::vector<float> before = numbers_in(ex, c);
      scaled_grouped_matmul(ex, {.a = a, .b = w.operand, .turned = turned, .c = c, .groups = x.groups()});
      const std::vector<float> got = numbers_in(ex, c);
      std::vector<double> want(got.size());
      for (Index g = 0; g < groups; ++g) {
        for (Index row = x.layout().begin(g); row < x.layout().begin(g) + x.layout().rows(g); ++row) {
          for (Index j = 0; j < n; ++j) {
            for (Index l = 0; l < k; ++l)
              want[static_cast<std::size_t>(row * n + j)] +=
                  rows[static_cast<std::size_t>(row * k + l)] *
                  w.numbers[static_cast<std::size_t>(turned ? j * groups * k + g * k + l : (g * n + j) * k + l)];
          }
        }
      }
      for (Index row = 0; row < x.rows(); ++row) {
        const auto from = static_cast<std::size_t>(row * n), count = static_cast<std::size_t>(n);
        if (x.is_used(row)) {
          EXPECT_LE(error_of(got, want, from, count), tolerance + (dtype == DType::bf16 ? 0x1p-8 : 0))
              << "row " << row << ", turned " << turned << ", " << name_of(dtype);
        } else {
          EXPECT_EQ(std::memcmp(got.data() + from, before.data() + from, count * sizeof(float)), 0)
              << "row " << row << " of no group was written";
        }
      }
    }
  }
}

inline void check_scaled_grouped_weight_grad(Exec& ex, const std::vector<Index>& sizes, Index n, Index k,
                                             double tolerance) {
  const GroupedRows dy(ex, sizes, n, 3), x(ex, sizes, k, 5);
  const Index groups = x.layout().count(), m = x.rows();
  const Operand a = dy.turned(), b = x.turned();
  const std::vector<double> left = numbers_of(read_operand(ex, a), n, m, ScaleBlocks::vectors),
                            right = numbers_of(read_operand(ex, b), k, m, ScaleBlocks::vectors);
  const std::vector<float> before = GroupedRows::fp8_numbers(groups * n * k, 9);
  for (const Write write : {Write::overwrite, Write::accumulate}) {
    const Tensor dw = ex.tensor({groups, n, k}, DType::f32);
    if (write == Write::accumulate) ex.copy(dw.raw(), before.data(), dw.bytes());
    scaled_grouped_weight_grad(ex, {.dy = a, .x = b, .dw = dw, .groups = x.groups(), .write = write});
    const std::vector<float> got = numbers_in(ex, dw);
    const auto each = static_cast<std::size_t>(n * k);
    std::vector<double> want(got.size());
    for (Index g = 0; g < groups; ++g) {
      for (std::size_t i = 0; i < each; ++i) {
        const Index row = static_cast<Index>(i) / k, column = static_cast<Index>(i) % k;
        double& sum = want[static_cast<std::size_t>(g) * each + i];
        for (Index l = x.layout().begin(g); l < x.layout().begin(g) + x.layout().rows(g); ++l)
          sum += left[static_cast<std::size_t>(row * m + l)] * right[static_cast<std::size_t>(column * m + l)];
        if (write == Write::accumulate) sum += static_cast<double>(before[static_cast<std::size_t>(g) * each + i]);
      }
      const auto from = static_cast<std::size_t>(g) * each;
      EXPECT_LE(error_of(got, want, from, each), tolerance)
          << "group " << g << ", adds " << (write != Write::overwrite);
      if (x.layout().rows(g) > 0 || write == Write::overwrite) continue;
      EXPECT_EQ(std::memcmp(got.data() + from, before.data() + from, each * sizeof(float)), 0) << "group " << g;
    }
  }
}

/// The rows of groups have the codes and scales of a matrix that has zeros elsewhere; nothing else is written.
inline void check_quantised_groups(Exec& ex, const std::vector<Index>& sizes, Index columns) {
  const GroupedRows x(ex, sizes, columns, 3);
  const Fp8Matrix straight = read_operand(ex, x.straight()), turned = read_operand(ex, x.turned());
  const Fp8Matrix want = reference_fp8(x.numbers(), x.rows(), columns, ScaleBlocks::vectors, ScaleForm::f32),
                  want_turned = reference_fp8(transposed(x.numbers(), x.rows(), columns), columns, x.rows(),
                                              ScaleBlocks::vectors, ScaleForm::f32);
  const Index blocks = ceil_div(columns, kScaleBlock);
  for (Index row = 0; row < x.rows(); ++row) {
    if (!x.is_used(row)) continue;
    for (Index c = 0; c < columns; ++c) {
      const auto at = static_cast<std::size_t>(row * columns + c),
                 across = static_cast<std::size_t>(c * x.rows() + row);
      ASSERT_EQ(straight.codes[at], want.codes[at]) << row << ", " << c;
      ASSERT_EQ(turned.codes[across], want_turned.codes[across]) << row << ", " << c;
      const auto scale = static_cast<std::size_t>(row / kScaleBlock * columns + c);
      ASSERT_EQ(turned.scales[scale], want_turned.scales[scale]) << row << ", " << c;
    }
    for (Index block = 0; block < blocks; ++block) {
      const auto scale = static_cast<std::size_t>(block * x.rows() + row);
      ASSERT_EQ(straight.scales[scale], want.scales[scale]) << row << ", block " << block;
    }
  }
}

}  // namespace megalith::ops
