#include "megalith/ops/elementwise.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/swiglu.h"

#include "tests/ops/grouped_op_test.h"

// The grouped products of experts with their activation.
namespace megalith::ops {
namespace {

enum class ActivationKind : std::uint8_t { swiglu, gelu };
constexpr ActivationKind kActivations[] = {ActivationKind::swiglu, ActivationKind::gelu};
constexpr Index width_of(ActivationKind kind) { return kind == ActivationKind::swiglu ? 2 : 1; }

/// h of a unit whose numbers of z begin at `z`, in f64.
double unit_of(ActivationKind kind, const double* z) {
  if (kind == ActivationKind::swiglu) return z[0] / (1 + std::exp(-z[0])) * z[1];
  constexpr double kRootOfTwoOverPi = 0.79788456080286535588;
  return 0.5 * z[0] * (1 + std::tanh(kRootOfTwoOverPi * (z[0] + 0.044715 * z[0] * z[0] * z[0])));
}

/// The same by an op of its own.
void activate(Exec& ex, ActivationKind kind, const Tensor& z, const Tensor& h) {
  if (kind == ActivationKind::swiglu) return swiglu(ex, {.gate_up = z, .y = h});
  gelu(ex, {.z = z, .y = h});
}
void activate_backward(Exec& ex, ActivationKind kind, const Tensor& z, const Tensor& dh, const Tensor& dz) {
  if (kind == ActivationKind::swiglu) return swiglu_backward(ex, {.gate_up = z, .dy = dh, .dgate_up = dz});
  gelu_backward(ex, {.z = z, .dy = dh, .dz = dz});
}

class GroupedActivationTest : public GroupedOpTest {
 protected:
  /// p row, rounded as the CPU's arithmetic is, and then to the rows' dtype.
  Tensor scaled_rows(const Tensor& rows, const Tensor& p) {
    Values values = values_of(rows);
    const Values factors = values_of(p);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] *= factors[i / static_cast<std::size_t>(rows.dim(1))];
      if (rows.dtype() != DType::f64) values[i] = static_cast<float>(values[i]);
    }
    return put(rows.shape(), values, rows.dtype());
  }
  /// The input gradient of rows with `hidden` numbers, and what it reads.
  GroupedActivatedInputGrad input_grad(const GroupLayout& layout, ActivationKind kind, Index hidden, Index units,
                                       DType type) {
    Index rows = 0;
    for (Index g = 0; g < layout.count(); ++g) rows += layout.rows(g);
    const Index columns = width_of(kind) * units;
    return {.dy = put_rows(random_values(rows * hidden, 1), layout, hidden, type),
            .w = put({layout.count(), hidden, units}, random_values(layout.count() * hidden * units, 2), type),
            .z = put_rows(random_values(rows * columns, 3, 2), layout, columns, type),
            .p = put_rows(random_values(rows, 4), layout, 1, statistics_dtype(type)),
            .dz = ex_.tensor({layout.end + kUnused, columns}, type),
            .ph = ex_.tensor({layout.end + kUnused, units}, type),
            .dp = ex_.tensor({layout.end + kUnused, 1}, statistics_dtype(type)),
            .groups = put_groups(layout)};
  }
};
MEGALITH_OPS_PRECISIONS(GroupedActivationTest);

const GroupSizes kActivatedSizes[] = {{5, 0, 3, 6}, {0, 0}, {0, 9, 0}, {1, 1, 1, 1, 1}, {64, 2}};

TEST_P(GroupedActivationTest, ForwardEqualsTheOpsApart) {
  for (const ActivationKind kind : kActivations) {
    for (const GroupSizes& sizes : kActivatedSizes) {
      for (const auto& [k, units] : {std::pair<Index, Index>{5, 3}, {1, 1}, {33, 70}, {3, 700}, {0, 4}, {4, 0}}) {
        for (const DType type : {dtype(), DType::bf16, DType::f16}) {
          const GroupLayout layout(sizes, 4);
          const Index columns = width_of(kind) * units;
          const GroupRows groups = put_groups(layout);
          const Tensor x = put_rows(random_values(sum_of(sizes) * k, 1, 2), layout, k, type),
                       w = put({layout.count(), columns, k}, random_values(layout.count() * columns * k, 2), type);
          const Tensor z = ex_.tensor({layout.end + kUnused, columns}, type),
                       h = ex_.tensor({layout.end + kUnused, units}, type), z_apart = ex_.tensor(z.shape(), type),
                       h_apart = ex_.tensor(h.shape(), type);
          grouped_matmul_activated(ex_, {.x = x, .w = w, .z = z, .h = h, .groups = groups});
          grouped_matmul(ex_, {.x = x, .w = w, .y = z_apart, .groups = groups});
          activate(ex_, kind, z_apart, h_apart);
          EXPECT_EQ(used(z, layout), used(z_apart, layout));
          EXPECT_EQ(used(h, layout), used(h_apart, layout));
        }
      }
    }
  }
}

/// As the gradients of the sum over rows of p dot(dy, h(z) w^T). 600 and 1100 units are two and three pieces.
TEST_P(GroupedActivationTest, BackwardEqualsDifferences) {
  struct LossCase {
    GroupSizes sizes;
    Index hidden, units;
  };
  for (const auto& [sizes, hidden, units] :
       {LossCase{{5, 0, 3, 6}, 4, 3}, LossCase{{0, 2}, 1, 1}, LossCase{{1, 1}, 2, 600}, LossCase{{0, 1, 0}, 3, 1100}}) {
    for (const ActivationKind kind : kActivations) {
      SCOPED_TRACE(::testing::Message() << units << " units, " << width_of(kind) << " numbers each");
      const GroupLayout layout(sizes, 4);
      const GroupedActivatedInputGrad args = input_grad(layout, kind, hidden, units, dtype());
      const Values dy = used(args.dy, layout), w = values_of(args.w), z = used(args.z, layout),
                   p = used(args.p, layout);
      // [rows, units] of dy w for a row's group: the loss is linear in h.
      Values dh;
      auto of_row = dy.begin();
      for (Index g = 0; g < layout.count(); ++g) {
        for (Index row = 0; row < layout.rows(g); ++row, of_row += hidden) {
          for (Index unit = 0; unit < units; ++unit) {
            double sum = 0;
            for (Index i = 0; i < hidden; ++i)
              sum += of_row[i] * w[static_cast<std::size_t>((g * hidden + i) * units + unit)];
            dh.push_back(sum);
          }
        }
      }
      const auto loss = [&, units = units](const Values& of_z, const Values& of_p) {
        double sum = 0;
        for (std::size_t i = 0; i < dh.size(); ++i)
          sum += of_p[i / static_cast<std::size_t>(units)] * dh[i] *
                 unit_of(kind, of_z.data() + i * static_cast<std::size_t>(width_of(kind)));
        return sum;
      };
      grouped_matmul_activated_input_grad(ex_, args);
      const double tolerance = dtype() == DType::f32 ? 2e-6 : 1e-8;
      const Values dz = used(args.dz, layout), dp = used(args.dp, layout);
      EXPECT_LE(relative_error(dz, numeric_gradient(z, [&](const Values& at) { return loss(at, p); })), tolerance);
      EXPECT_LE(relative_error(dp, numeric_gradient(p, [&](const Values& at) { return loss(z, at); })), tolerance);
      // The weight's, from (dy, ph): of weights [H, F] and a row's h.
      const Tensor dw = empty(args.w.shape());
      grouped_matmul_weight_grad(
          ex_, {.dy = args.dy, .x = args.ph, .dw = dw, .groups = args.groups, .write = Write::overwrite});
      Values want(w.size(), 0.0);
      std::size_t row = 0;
      for (Index g = 0; g < layout.count(); ++g) {
        for (Index i = 0; i < layout.rows(g); ++i, ++row) {
          for (Index at = 0; at < hidden * units; ++at) {
            const auto unit = static_cast<std::size_t>(at % units), width = static_cast<std::size_t>(width_of(kind));
            const double h = unit_of(kind, z.data() + (row * static_cast<std::size_t>(units) + unit) * width);
            want[static_cast<std::size_t>(g * hidden * units + at)] +=
                p[row] * dy[row * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(at / units)] * h;
          }
        }
      }
      EXPECT_LE(relative_error(values_of(dw), want), GetParam().tolerance);
    }
  }
}

/// In 16 bits dp takes dh and h as they were rounded, and dz the rounded p dh.
TEST_P(GroupedActivationTest, BackwardEqualsTheOpsApart) {
  for (const ActivationKind kind : kActivations) {
    for (const GroupSizes& sizes : kActivatedSizes) {
      for (const auto& [hidden, units] : {std::pair<Index, Index>{5, 3}, {33, 70}, {3, 1100}, {0, 4}, {4, 0}}) {
        for (const DType type : {dtype(), DType::bf16, DType::f16}) {
          SCOPED_TRACE(::testing::Message() << units << " units, " << name_of(type));
          const GroupLayout layout(sizes, 4);
          const GroupedActivatedInputGrad args = input_grad(layout, kind, hidden, units, type);
          grouped_matmul_activated_input_grad(ex_, args);
          const Tensor dh = ex_.tensor(args.ph.shape(), type), h = ex_.tensor(args.ph.shape(), type),
                       dz = ex_.tensor(args.z.shape(), type);
          grouped_matmul_input_grad(ex_, {.dy = args.dy, .w = args.w, .dx = dh, .groups = args.groups});
          activate(ex_, kind, args.z, h);
          activate_backward(ex_, kind, args.z, scaled_rows(dh, args.p), dz);
          EXPECT_EQ(used(args.dz, layout), used(dz, layout));
          EXPECT_EQ(used(args.ph, layout), used(scaled_rows(h, args.p), layout));
          const Values of_dh = used(dh, layout), of_h = used(h, layout);
          Values dp(static_cast<std::size_t>(sum_of(sizes)), 0.0);
          for (std::size_t i = 0; i < of_h.size(); ++i) dp[i / static_cast<std::size_t>(units)] += of_dh[i] * of_h[i];
          const Values got = used(args.dp, layout);
          ASSERT_EQ(got.size(), dp.size());
          EXPECT_LE(relative_error(got, dp), type == DType::f64 ? 1e-13 : 2e-6);
        }
      }
    }
  }
}

TEST_P(GroupedActivationTest, BackwardInPlaceHasTheSameBits) {
  for (const ActivationKind kind : kActivations) {
    for (const DType type : {dtype(), DType::bf16}) {
      const GroupLayout layout({5, 0, 3}, 4);
      const GroupedActivatedInputGrad apart = input_grad(layout, kind, 6, 530, type);
      GroupedActivatedInputGrad in_place = input_grad(layout, kind, 6, 530, type);
      in_place.dz = in_place.z;
      grouped_matmul_activated_input_grad(ex_, apart);
      grouped_matmul_activated_input_grad(ex_, in_place);
      EXPECT_EQ(used(in_place.z, layout), used(apart.dz, layout));
      EXPECT_EQ(used(in_place.ph, layout), used(apart.ph, layout));
      EXPECT_EQ(used(in_place.dp, layout), used(apart.dp, layout));
    }
  }
}

/// Finite numbers in all rows, also in those of z and ph that a product does not write, would be seen in rows of no
/// group.
TEST_P(GroupedActivationTest, WritesRowsOfGroupsAlone) {
  const GroupLayout layout({5, 0, 3, 7, 2}, 4);
  const Index rows = layout.end + kUnused, hidden = 3, units = 6;
  const auto numbers = [&](Index columns, std::uint32_t seed) {
    return put({rows, columns}, random_values(rows * columns, seed));
  };
  for (const ActivationKind kind : kActivations) {
    const Index columns = width_of(kind) * units;
    GroupedActivatedInputGrad grad = input_grad(layout, kind, hidden, units, dtype());
    grad.dy = numbers(hidden, 1);
    grad.z = numbers(columns, 2);
    grad.p = numbers(1, 3);
    grad.ph = numbers(units, 4);
    const Values before = values_of(grad.ph);
    grouped_matmul_activated_input_grad(ex_, grad);
    const Tensor h = empty({rows, units});
    grouped_matmul_activated(ex_, {.x = grad.dy,
                                   .w = put({5, columns, hidden}, random_values(5 * columns * hidden, 5)),
                                   .z = numbers(columns, 6),
                                   .h = h,
                                   .groups = grad.groups});
    for (const Tensor& result : {grad.dz, grad.dp, h}) {
      for (const double value : used(result, layout)) EXPECT_TRUE(std::isfinite(value));
    }
    const Values after = values_of(grad.ph);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const Index row = static_cast<Index>(i) / units;
      if (!layout.has(row)) {
        EXPECT_EQ(after[i], before[i]) << "row " << row << " of no group was written";
      }
    }
  }
}

/// Rows of other groups, before and after, are neither read nor written.
TEST_P(GroupedActivationTest, APartOfTheGroups) {
  const GroupLayout layout({5, 2, 0, 3, 6}, 4);
  GroupLayout some = layout;  // with the rows of the part alone
  for (const std::size_t g : {0, 4}) some.host[5 + g] = 0;
  for (const ActivationKind kind : kActivations) {
    const Index k = 6, units = 7, columns = width_of(kind) * units, first = 1, count = 3;
    const auto in_part = [&](const Tensor& tensor) { return used(tensor, some); };
    const GroupedActivatedInputGrad whole = input_grad(layout, kind, k, units, dtype());
    GroupedActivatedInputGrad part = input_grad(layout, kind, k, units, dtype());
    grouped_matmul_activated_input_grad(ex_, whole);
    part.groups = part_of(whole.groups, first, count);
    part.w = whole.w.rows(first, count);
    grouped_matmul_activated_input_grad(ex_, part);
    const auto rows_of_part = [&](const Tensor& tensor) {
      const Values all = values_of(tensor);
      Values rows;
      for (Index row = 0; row < tensor.dim(0); ++row) {
        for (Index i = 0; i < tensor.dim(1); ++i) {
          if (some.has(row)) rows.push_back(all[static_cast<std::size_t>(row * tensor.dim(1) + i)]);
        }
      }
      return rows;
    };
    EXPECT_EQ(in_part(part.dz), rows_of_part(whole.dz));
    EXPECT_EQ(in_part(part.ph), rows_of_part(whole.ph));
    EXPECT_EQ(in_part(part.dp), rows_of_part(whole.dp));
    const Tensor w = put({5, columns, k}, random_values(5 * columns * k, 5)), z = empty_rows(layout, columns),
                 h = empty_rows(layout, units), z_part = empty_rows(layout, columns),
                 h_part = empty_rows(layout, units);
    grouped_matmul_activated(ex_, {.x = whole.dy, .w = w, .z = z, .h = h, .groups = whole.groups});
    grouped_matmul_activated(
        ex_, {.x = whole.dy, .w = w.rows(first, count), .z = z_part, .h = h_part, .groups = part.groups});
    EXPECT_EQ(in_part(z_part), rows_of_part(z));
    EXPECT_EQ(in_part(h_part), rows_of_part(h));
  }
}

TEST_P(GroupedActivationTest, SameBitsForAnyTeam) {
  for (const ActivationKind kind : kActivations) {
    const GroupLayout layout({100, 0, 1, 31, 200}, 4);
    const Index columns = width_of(kind) * 600;
    expect_same_bits_for_any_team([&] {
      const GroupedActivatedInputGrad args = input_grad(layout, kind, 24, 600, dtype());
      const Tensor w = put({5, columns, 24}, random_values(5 * columns * 24, 5)), z = empty_rows(layout, columns),
                   h = empty_rows(layout, 600);
      grouped_matmul_activated(ex_, {.x = args.dy, .w = w, .z = z, .h = h, .groups = args.groups});
      grouped_matmul_activated_input_grad(ex_, args);
      Values all;
      for (const Tensor& of : {z, h, args.dz, args.ph, args.dp}) {
        const Values more = used(of, layout);
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    });
  }
}

TEST_P(GroupedActivationTest, NamesWhatDoesNotFitForward) {
  const std::string wide = dtype() == DType::f32 ? "f32" : "f64";
  const GroupRows groups = put_groups(GroupLayout({3, 3}));
  const Tensor x = empty({6, 3}), w = empty({2, 10, 3}), z = empty({6, 10}), h = empty({6, 5});
  const auto error = [&](const GroupedActivated& args) {
    return error_text([&] { grouped_matmul_activated(ex_, args); });
  };
  EXPECT_EQ(error({.x = x, .w = w, .z = z, .h = h, .groups = groups}), "");
  EXPECT_EQ(error({.x = x, .w = w, .z = z, .h = z, .groups = groups}), "");
  EXPECT_EQ(error({.x = x, .w = w, .z = h, .h = h, .groups = groups}),
            "[grouped_matmul_activated.z] shape = [6, 5]: must be [6, 10]");
  EXPECT_EQ(error({.x = x, .w = w, .z = z, .h = empty({6, 4}), .groups = groups}),
            "[grouped_matmul_activated.z] shape = [6, 10]: must be [6, 8]");
  EXPECT_EQ(error({.x = x, .w = w, .z = z, .h = empty({5, 5}), .groups = groups}),
            "[grouped_matmul_activated.z] shape = [6, 10]: must be [5, 10]");
  EXPECT_EQ(error({.x = x, .w = w, .z = z, .h = ex_.tensor({6, 5}, DType::bf16), .groups = groups}),
            "[grouped_matmul_activated.h] dtype = bf16: must be " + wide);
  const Tensor narrow_x = ex_.tensor({6, 3}, DType::bf16), narrow_w = ex_.tensor({2, 10, 3}, DType::bf16);
  EXPECT_EQ(error({.x = narrow_x,
                   .w = narrow_w,
                   .z = ex_.tensor({6, 10}, DType::f32),
                   .h = ex_.tensor({6, 5}, DType::bf16),
                   .groups = groups}),
            "[grouped_matmul_activated.z] dtype = f32: must be bf16");
  EXPECT_EQ(error({.x = x, .w = w, .z = z, .h = h, .groups = put_groups(GroupLayout({3}))}),
            "[grouped_matmul_activated.groups.begin] shape = [1]: must be [2]");
  EXPECT_EQ(error({.x = x, .w = w, .z = z, .h = h, .groups = put_groups(GroupLayout({3, 4}))}),
            "[grouped_matmul_activated.groups] end = 7: must be at most 6, the rows");
}

TEST_P(GroupedActivationTest, NamesWhatDoesNotFitBackward) {
  const std::string wide = dtype() == DType::f32 ? "f32" : "f64";
  const GroupLayout layout({3, 3});
  const auto error = [&](const std::function<void(GroupedActivatedInputGrad&)>& change) {
    GroupedActivatedInputGrad args = input_grad(layout, ActivationKind::swiglu, 4, 5, dtype());
    change(args);
    return error_text([&] { grouped_matmul_activated_input_grad(ex_, args); });
  };
  using Args = GroupedActivatedInputGrad;
  const std::string op = "[grouped_matmul_activated_input_grad.";
  EXPECT_EQ(error([](Args&) {}), "");
  EXPECT_EQ(error([&](Args& args) { args.dy = empty({9, 3}); }), op + "dy] shape = [9, 3]: must be [9, 4]");
  EXPECT_EQ(error([&](Args& args) { args.ph = empty({9, 4}); }), op + "ph] shape = [9, 4]: must be [9, 5]");
  EXPECT_EQ(error([&](Args& args) { args.z = empty({9, 4}); }), op + "z] shape = [9, 4]: must be [9, 10]");
  EXPECT_EQ(error([&](Args& args) { args.dz = empty({9, 5}); }), op + "dz] shape = [9, 5]: must be [9, 10]");
  EXPECT_EQ(error([&](Args& args) { args.p = empty({9}); }), op + "p] shape = [9]: must be [9, 1]");
  EXPECT_EQ(error([&](Args& args) { args.dp = empty({8, 1}); }), op + "dp] shape = [8, 1]: must be [9, 1]");
  EXPECT_EQ(error([&](Args& args) {
              args.p = ex_.tensor({9, 1}, DType::bf16);
            }),
            op + "p] dtype = bf16: must be " + wide);
  EXPECT_EQ(error([&](Args& args) {
              args.dz = ex_.tensor({9, 10}, DType::bf16);
            }),
            op + "dz] dtype = bf16: must be " + wide);
  EXPECT_EQ(error([&](Args& args) { args.groups.alignment = 0; }), op + "groups] alignment = 0: must be at least 1");
  EXPECT_EQ(error([&](Args& args) {
              args.groups.begin = put_ids({0, 2});
            }),
            op + "groups] begin = 2: must be a multiple of 1 and at least 3, the end of the group before");
}

}  // namespace
}  // namespace megalith::ops
