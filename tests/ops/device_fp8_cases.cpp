#include <algorithm>
#include <array>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/quantise_activation.h"
#include "megalith/ops/scaled_matmul.h"
#include "megalith/ops/swiglu.h"

#include "tests/ops/device_cases.h"
#include "tests/ops/fp8_reference.h"
#include "tests/ops/scaled_grouped_cases.h"

namespace megalith::ops {
namespace {

struct Fp8Size {
  Index rows, columns;
};
// Nothing, less than a block, whole blocks, odd rests, and widths of whole vectors that are no whole blocks.
constexpr Fp8Size kFp8Sizes[] = {{0, 8}, {1, 1}, {3, 130}, {128, 128}, {129, 257}, {200, 136}, {264, 264}};

/// The bits of a block are those of its definition, on every device.
TEST_P(DeviceOps, QuantisesByDefinition) {
  Exec& ex = t().tested();
  for (const auto [rows, columns] : kFp8Sizes) {
    const Index count = rows * columns;
    std::vector<float> numbers = fp8_test_numbers(count, 3);
    Exec host;
    const Tensor narrow = host.tensor({count}, t().dtype());
    cast(host, Tensor(numbers.data(), {count}, DType::f32), narrow);
    cast(host, narrow, Tensor(numbers.data(), {count}, DType::f32));
    const std::vector<float> turned_numbers = transposed(numbers, rows, columns);
    for (const ScaleBlocks blocks : {ScaleBlocks::vectors, ScaleBlocks::squares}) {
      for (const ScaleForm form : {ScaleForm::f32, ScaleForm::power_of_two}) {
        const Fp8Matrix want = reference_fp8(numbers, rows, columns, blocks, form),
                        want_turned = reference_fp8(turned_numbers, columns, rows, blocks, form);
        for (const Index first : {0, 1}) {  // at an address of 16 bytes, and not
          SCOPED_TRACE(::testing::Message()
                       << rows << " x " << columns << ", squares " << (blocks == ScaleBlocks::squares)
                       << ", power of two " << (form == ScaleForm::power_of_two) << ", from element " << first);
          const Tensor x = ex.tensor({count + 1}, t().dtype()).rows(first, count).reshaped({rows, columns});
          ex.copy(x.raw(), narrow.raw(), x.bytes());
          const auto operand = [&](Index r, Index k) { return make_operand(ex, r, k, blocks); };
          const Operand straight = operand(rows, columns), turned = operand(columns, rows),
                        straight_alone = operand(rows, columns), turned_alone = operand(columns, rows);
          quantise(ex, {.x = x, .straight = straight, .turned = turned, .form = form});
          quantise(ex, {.x = x, .straight = straight_alone, .form = form});
          quantise(ex, {.x = x, .turned = turned_alone, .form = form});
          EXPECT_EQ(difference(read_operand(ex, straight), want), "");
          EXPECT_EQ(difference(read_operand(ex, turned), want_turned), "") << "turned";
          EXPECT_EQ(difference(read_operand(ex, straight_alone), want), "") << "alone";
          EXPECT_EQ(difference(read_operand(ex, turned_alone), want_turned), "") << "turned, alone";
          t().release();
        }
      }
    }
  }
}

constexpr Activation kActivations[] = {Activation::gelu, Activation::gelu_erf, Activation::swiglu};

/// y and dz by the ops of their own.
void activate_by_itself(Exec& ex, Activation activation, const Tensor& z, const Tensor& dy, const Tensor& y,
                        const Tensor& dz) {
  if (activation == Activation::swiglu) {
    swiglu(ex, {.gate_up = z, .y = y});
    return swiglu_backward(ex, {.gate_up = z, .dy = dy, .dgate_up = dz});
  }
  const GeluForm form = activation == Activation::gelu ? GeluForm::tanh : GeluForm::erf;
  gelu(ex, {.z = z, .y = y, .form = form});
  gelu_backward(ex, {.z = z, .dy = dy, .dz = dz, .form = form});
}

/// An activation that is rounded where it is made has the bits of one that is made first.
TEST_P(DeviceOps, QuantisesActivations) {
  Exec& ex = t().tested();
  const DType dtype = t().dtype();
  const auto both = [&](Index rows, Index columns) {
    return std::array{make_operand(ex, rows, columns, ScaleBlocks::vectors),
                      make_operand(ex, columns, rows, ScaleBlocks::vectors)};
  };
  const auto expect_equal = [&](const std::array<Operand, 2>& got, const Tensor& numbers, const char* what) {
    const std::array<Operand, 2> want = both(numbers.dim(0), numbers.dim(1));
    quantise(ex, {.x = numbers, .straight = want[0], .turned = want[1]});
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_EQ(difference(read_operand(ex, got[i]), read_operand(ex, want[i])), "") << what << ", turned " << i;
  };
  for (const auto [rows, units] : kFp8Sizes) {
    for (const Activation activation : kActivations) {
      for (const Index first : {0, 2}) {  // at an address of 16 bytes, and not; swiglu() reads whole pairs
        SCOPED_TRACE(::testing::Message() << rows << " x " << units << ", activation " << static_cast<int>(activation)
                                          << ", from element " << first);
        const Index width = activation == Activation::swiglu ? 2 * units : units;
        const auto in = [&](Index columns, std::uint32_t seed) {
          const Index count = rows * columns;
          const Tensor x = ex.tensor({count + 2}, dtype).rows(first, count).reshaped({rows, columns});
          ex.copy(x.raw(), t().in({rows, columns}, seed).tested.raw(), x.bytes());
          return x;
        };
        const Tensor z = in(width, 1), dy = in(units, 2), y = ex.tensor({rows, units}, dtype),
                     dz = ex.tensor({rows, width}, dtype), y_alone = ex.tensor_like(y), dz_alone = ex.tensor_like(dz);
        activate_by_itself(ex, activation, z, dy, y_alone, dz_alone);
        const std::array of_y = both(rows, units), of_dz = both(rows, width), y_again = both(rows, units),
                         dz_again = both(rows, width);
        quantise_activation(ex, {.z = z, .y = y, .straight = of_y[0], .turned = of_y[1], .activation = activation});
        quantise_activation_backward(
            ex, {.z = z, .dy = dy, .dz = dz, .straight = of_dz[0], .turned = of_dz[1], .activation = activation});
        const Tensor y_only = ex.tensor_like(y), dz_only = ex.tensor_like(dz);
        quantise_activation(ex, {.z = z, .y = y_only, .activation = activation});
        quantise_activation_backward(ex, {.z = z, .dy = dy, .dz = dz_only, .activation = activation});
        quantise_activation(ex, {.z = z, .straight = y_again[0], .activation = activation});
        quantise_activation(ex, {.z = z, .turned = y_again[1], .activation = activation});
        quantise_activation_backward(ex, {.z = z, .dy = dy, .straight = dz_again[0], .activation = activation});
        quantise_activation_backward(ex, {.z = z, .dy = dy, .turned = dz_again[1], .activation = activation});
        EXPECT_EQ(t().read(y), t().read(y_alone));
        EXPECT_EQ(t().read(dz), t().read(dz_alone));
        EXPECT_EQ(t().read(y_only), t().read(y_alone));
        EXPECT_EQ(t().read(dz_only), t().read(dz_alone));
        expect_equal(of_y, y_alone, "y");
        expect_equal(of_dz, dz_alone, "dz");
        expect_equal(y_again, y_alone, "y, one at a time");
        expect_equal(dz_again, dz_alone, "dz, one at a time");
        t().release();
      }
    }
  }
}

/// Every f32 number whose lower 16 bits are 0, at the scale 1: the device rounds as e4m3_code().
TEST_P(DeviceOps, RoundsToE4m3) {
  if (t().dtype() != DType::bf16) return;  // the type that holds exactly these numbers
  Exec& ex = t().tested();
  std::vector<bfloat16> numbers(65536 * 2);  // each beside 448, so that a block has the scale 1
  std::vector<std::uint8_t> want(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i].bits = static_cast<std::uint16_t>(i / 2);
    if (i % 128 == 0) numbers[i] = bfloat16(448.0f);
    const auto value = static_cast<float>(numbers[i]);
    if (std::isfinite(value) && std::abs(value) > 448) numbers[i] = bfloat16(0.0f);
    want[i] = e4m3_code(static_cast<float>(numbers[i]));
  }
  const Index rows = std::ssize(numbers) / 128;
  const Tensor x = ex.tensor({rows, 128}, DType::bf16);
  ex.copy(x.raw(), numbers.data(), x.bytes());
  const Operand out = make_operand(ex, rows, 128, ScaleBlocks::vectors);
  quantise(ex, {.x = x, .straight = out});
  EXPECT_EQ(read_operand(ex, out).codes, want);
}

struct ScaledSize {
  Index m, n, k;
};
constexpr ScaledSize kScaledProducts[] = {{128, 128, 128}, {256, 384, 512}, {1024, 128, 256}, {132, 264, 400},
                                          {128, 256, 208}, {4, 8, 16},      {260, 200, 2064}, {384, 128, 4096}};
/// More tiles than a GPU has multiprocessors, so a thread block computes several, and some beyond the last row.
constexpr ScaledSize kManyTiles = {4228, 1672, 272};

/// What quantise() adds to column_sums is the gradient of a bias.
TEST_P(DeviceOps, SumsColumnsWhileItQuantises) {
  Exec& ex = t().tested();
  Exec host;
  const auto expect_sums = [&](const Tensor& numbers, const Tensor& sums, const Tensor& before, const char* what) {
    const Tensor want = host.tensor({before.dim(0)}, statistics_dtype(numbers.dtype()));
    ex.copy(want.raw(), before.raw(), want.bytes());
    const Tensor rows = host.tensor(numbers.shape(), numbers.dtype());
    ex.copy(rows.raw(), numbers.raw(), rows.bytes());
    ex.synchronize();
    bias_backward(host, rows, want);
    const std::vector<float> got = numbers_in(ex, sums), expected = numbers_in(host, want);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], expected[i], 2e-5 * std::sqrt(1.0 + static_cast<double>(numbers.dim(0))))
          << what << ", " << i;
  };
  for (const auto [rows, columns] : kFp8Sizes) {
    const Tensor x = t().in({rows, columns}, 1).tested, dy = t().in({rows, columns}, 2).tested,
                 pairs = t().in({rows, 2 * columns}, 3).tested;
    for (const bool straight : {true, false}) {
      for (const bool turned : {true, false}) {
        if (!straight && !turned) continue;
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns << ", operands " << straight << turned);
        const auto operand = [&](bool wanted, Index r, Index k) {
          return wanted ? make_operand(ex, r, k, ScaleBlocks::vectors) : Operand();
        };
        const auto sums = [&](Index n) { return t().in_f32({n}, 4).tested; };
        const Tensor of_x = sums(columns);
        quantise(ex, {.x = x,
                      .straight = operand(straight, rows, columns),
                      .turned = operand(turned, columns, rows),
                      .column_sums = of_x});
        expect_sums(x, of_x, sums(columns), "x");
        for (const Activation activation : kActivations) {
          const bool is_gated = activation == Activation::swiglu;
          const Index width = is_gated ? 2 * columns : columns;
          const Tensor dz = ex.tensor({rows, width}, t().dtype()), of_dz = sums(width);
          quantise_activation_backward(ex, {.z = is_gated ? pairs : x,
                                            .dy = dy,
                                            .dz = dz,
                                            .straight = operand(straight, rows, width),
                                            .turned = operand(turned, width, rows),
                                            .activation = activation,
                                            .column_sums = of_dz});
          expect_sums(dz, of_dz, sums(width), "dz");
        }
      }
    }
    t().release();
    host.release();
  }
}

/// A CPU has one kernel for all names.
std::vector<ScaledKernel> scaled_kernels(Device device) {
  std::vector<ScaledKernel> all = {ScaledKernel::chosen};
  if (device == Device::cuda) {
    for (int i = 1; i < kScaledKernels; ++i) all.push_back(static_cast<ScaledKernel>(i));
  }
  return all;
}

/// Whether the device has a Hopper GPU's kernels.
bool has_scaled_matmul(Device device) { return device == Device::cpu || device::gpus().front().capability == "9.0"; }

/// Whether a kernel must take these arguments. The library alone decides on sizes that blocks do not divide.
bool must_run(Device device, const ScaledMatmul& args) {
  if (device == Device::cpu) return true;
  const auto is_whole = [](Index size) { return size % kScaleBlock == 0; };
  const bool is_ours = args.a.blocks == ScaleBlocks::vectors && args.c.dtype() != DType::f16;
  if (args.kernel >= ScaledKernel::own || (args.kernel == ScaledKernel::chosen && is_ours)) return is_ours;
  return is_whole(args.c.dim(0)) && is_whole(args.c.dim(1)) && is_whole(args.a.values.dim(1));
}

/// An operand on the CPU and on the device.
std::array<Operand, 2> scaled_operands(Exec& host, Exec& ex, const support::Twin& x, ScaleBlocks blocks,
                                       ScaleForm form = ScaleForm::f32) {
  const Index rows = x.oracle.dim(0), depth = x.oracle.dim(1);
  const std::array made{make_operand(host, rows, depth, blocks), make_operand(ex, rows, depth, blocks)};
  const Tensor wide = host.tensor({rows, depth}, DType::f32);
  cast(host, x.oracle, wide);
  quantise(host, {.x = wide, .straight = made[0], .form = form});
  quantise(ex, {.x = x.tested, .straight = made[1], .form = form});
  return made;
}

constexpr std::array kPairsOfBlocks = {std::array{ScaleBlocks::vectors, ScaleBlocks::squares},
                                       std::array{ScaleBlocks::vectors, ScaleBlocks::vectors},
                                       std::array{ScaleBlocks::squares, ScaleBlocks::vectors}};

/// Every kernel.
TEST_P(DeviceOps, ScaledMatmuls) {
  const Device device = GetParam().device;
  if (!has_scaled_matmul(device)) GTEST_SKIP() << "needs a Hopper GPU";
  // Tensor cores add the products of a block with about 14 bits (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2).
  const double tolerance = GetParam().once + (device == Device::cuda ? 2e-3 : 0);
  Exec& ex = t().tested();
  Exec host;
  std::vector<ScaledSize> sizes(std::begin(kScaledProducts), std::end(kScaledProducts));
  if (device == Device::cuda) sizes.push_back(kManyTiles);
  for (const auto [m, n, k] : sizes) {
    for (const auto [of_a, of_b] : kPairsOfBlocks) {
      const auto a = scaled_operands(host, ex, t().in({m, k}, 1), of_a),
                 b = scaled_operands(host, ex, t().in({n, k}, 2), of_b);
      const Tensor c_oracle = host.tensor({m, n}, DType::f32), sum_oracle = host.tensor({m, n}, DType::f32);
      cast(host, t().in_f32({m, n}, 3).oracle, sum_oracle);
      scaled_matmul(host, {.a = a[0], .b = b[0], .c = c_oracle});
      scaled_matmul(host, {.a = a[0], .b = b[0], .c = sum_oracle, .write = Write::accumulate});
      for (const ScaledKernel kernel : scaled_kernels(device)) {
        SCOPED_TRACE(::testing::Message()
                     << m << " x " << n << " x " << k << ", squares " << (of_a == ScaleBlocks::squares)
                     << (of_b == ScaleBlocks::squares) << ", kernel " << name_of(kernel));
        const support::Twin c = t().out({m, n}), sum = t().in_f32({m, n}, 3);
        for (const bool adds : {false, true}) {
          const ScaledMatmul args{.a = a[1],
                                  .b = b[1],
                                  .c = adds ? sum.tested : c.tested,
                                  .write = adds ? Write::accumulate : Write::overwrite,
                                  .kernel = kernel};
          const std::string why = why_no_scaled_matmul(ex, args);
          if (!why.empty()) {
            ASSERT_FALSE(must_run(device, args)) << why;
            EXPECT_THROW(scaled_matmul(ex, args), BackendError);
            continue;
          }
          scaled_matmul(ex, args);
          ex.synchronize();
          const support::Twin& got = adds ? sum : c;
          cast(host, adds ? sum_oracle : c_oracle, got.oracle);
          expect_close(got, adds ? "c in f32, added to" : "c",
                       !adds                    ? tolerance
                       : device == Device::cuda ? 2e-3
                                                : 1e-6);
        }
      }
      t().release();
      host.release();
    }
  }
}

/// Sums of integers are exact in any order, so each kernel must give the CPU's bits. Scales are powers of two, which
/// differ from block to block.
TEST_P(DeviceOps, ScaledMatmulsOfIntegers) {
  const Device device = GetParam().device;
  if (t().dtype() == DType::f16) return;
  if (!has_scaled_matmul(device)) GTEST_SKIP() << "needs a Hopper GPU";
  Exec& ex = t().tested();
  Exec host;
  const auto integers = [&](Index rows, Index depth, std::uint32_t seed) {
    const RandomSite site{.seed = seed};
    std::vector<double> numbers(static_cast<std::size_t>(rows * depth));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(depth), column = i % static_cast<std::size_t>(depth);
      numbers[i] =
          std::ldexp(static_cast<double>(site.word(i) % 7) - 3, static_cast<int>((row / 128 + 2 * (column / 128)) % 3));
    }
    const support::Twin twin = t().out({rows, depth});
    const Tensor wide(numbers.data(), {rows, depth}, DType::f64), narrow = host.tensor({rows, depth}, t().dtype());
    cast(host, wide, twin.oracle);
    cast(host, wide, narrow);
    ex.copy(twin.tested.raw(), narrow.raw(), narrow.bytes());
    ex.synchronize();
    return twin;
  };
  for (const auto [m, n, k] : {ScaledSize{132, 264, 400}, {512, 640, 1024}, {4, 8, 16}, {300, 456, 144}}) {
    for (const auto [of_a, of_b] : kPairsOfBlocks) {
      const auto a = scaled_operands(host, ex, integers(m, k, 1), of_a, ScaleForm::power_of_two),
                 b = scaled_operands(host, ex, integers(n, k, 2), of_b, ScaleForm::power_of_two);
      const support::Twin bias = integers(1, n, 3);
      for (const bool has_bias : {false, true}) {
        const auto bias_of = [&](const Tensor& row) { return has_bias ? row.reshaped({n}) : Tensor(); };
        const Tensor narrow_bias = host.tensor({1, n}, t().dtype()), want = host.tensor({m, n}, t().dtype());
        cast(host, bias.oracle, narrow_bias);
        scaled_matmul(host, {.a = a[0], .b = b[0], .bias = bias_of(narrow_bias), .c = want});
        const std::vector<float> numbers = numbers_in(host, want);
        for (const ScaledKernel kernel : scaled_kernels(device)) {
          const Tensor c = ex.tensor({m, n}, t().dtype());
          const ScaledMatmul args{.a = a[1], .b = b[1], .bias = bias_of(bias.tested), .c = c, .kernel = kernel};
          if (!why_no_scaled_matmul(ex, args).empty()) continue;
          scaled_matmul(ex, args);
          // Where the bias is a pass of its own, c is rounded before it, too.
          const std::vector<float> got = numbers_in(ex, c);
          const bool rounds_twice = has_bias && t().dtype() == DType::bf16 && kernel < ScaledKernel::own;
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], numbers[i], rounds_twice ? 0x1p-7 * (std::abs(numbers[i]) + 24) : 0.0)
                << m << " x " << n << " x " << k << ", kernel " << name_of(kernel) << ", squares "
                << (of_a == ScaleBlocks::squares) << (of_b == ScaleBlocks::squares) << ", bias " << has_bias << ", "
                << i;
        }
      }
      t().release();
      host.release();
    }
  }
}

/// Rows of a GEMM of ours have the same bits among any others, and so they do in every form of the kernel.
TEST_P(DeviceOps, ScaledRowsStandAlone) {
  const Device device = GetParam().device;
  if (t().dtype() == DType::f16) return;
  if (!has_scaled_matmul(device)) GTEST_SKIP() << "needs a Hopper GPU";
  Exec& ex = t().tested();
  const Index m = 1160, n = 456, k = 1168;
  for (const ScaleBlocks of_b : {ScaleBlocks::squares, ScaleBlocks::vectors}) {
    const Tensor x = t().in({m, k}, 1).tested;
    const Operand b = make_operand(ex, n, k, of_b);
    quantise(ex, {.x = t().in({n, k}, 2).tested, .straight = b});
    const auto product = [&](Index first, Index end, ScaledKernel kernel) {
      const Operand a = make_operand(ex, end - first, k, ScaleBlocks::vectors);
      quantise(ex, {.x = x.rows(first, end - first), .straight = a});
      const Tensor c = ex.tensor({end - first, n}, t().dtype());
      scaled_matmul(ex, {.a = a, .b = b, .c = c, .kernel = kernel});
      return numbers_in(ex, c);
    };
    const ScaledKernel first_of_ours = device == Device::cuda ? ScaledKernel::own : ScaledKernel::chosen;
    const std::vector<float> whole = product(0, m, first_of_ours);
    for (const ScaledKernel kernel : scaled_kernels(device)) {
      if (kernel < first_of_ours) continue;
      EXPECT_EQ(product(0, m, kernel), whole) << name_of(kernel);
      std::vector<float> parts;
      for (const auto& [first, end] : {std::pair<Index, Index>{0, 4}, {4, 388}, {388, 1024}, {1024, m}}) {
        const std::vector<float> part = product(first, end, kernel);
        parts.insert(parts.end(), part.begin(), part.end());
      }
      EXPECT_EQ(parts, whole) << name_of(kernel);
    }
    t().release();
  }
}

TEST_P(DeviceOps, ScaledMatmulsKeepNan) {
  Exec& ex = t().tested();
  if (!has_scaled_matmul(GetParam().device)) GTEST_SKIP() << "needs a Hopper GPU";
  const Index m = 256, n = 128, k = 384;
  std::vector<float> numbers(static_cast<std::size_t>(m * k), 0.5f);
  numbers[static_cast<std::size_t>(3 * k + 200)] = std::numeric_limits<float>::infinity();
  numbers[static_cast<std::size_t>(255 * k)] = NAN;
  const Tensor x = ex.tensor({m, k}, DType::f32);
  ex.copy(x.raw(), numbers.data(), x.bytes());
  for (const ScaleBlocks of_b : {ScaleBlocks::squares, ScaleBlocks::vectors}) {
    const Operand a = make_operand(ex, m, k, ScaleBlocks::vectors), b = make_operand(ex, n, k, of_b);
    quantise(ex, {.x = x, .straight = a});
    quantise(ex, {.x = t().in({n, k}, 1).tested, .straight = b});
    for (const ScaledKernel kernel : scaled_kernels(GetParam().device)) {
      const Tensor c = ex.tensor({m, n}, t().dtype());
      const ScaledMatmul args{.a = a, .b = b, .c = c, .kernel = kernel};
      if (!why_no_scaled_matmul(ex, args).empty()) continue;
      scaled_matmul(ex, args);
      const std::vector<double> got = t().read(c);
      for (Index i = 0; i < m; ++i) {
        for (Index j = 0; j < n; ++j)
          ASSERT_EQ(std::isfinite(got[static_cast<std::size_t>(i * n + j)]), i != 3 && i != 255)
              << i << ", " << j << ", kernel " << name_of(kernel);
      }
    }
  }
}

/// Places and sizes that no op makes end at the operands: the other groups have their rows.
TEST_P(DeviceOps, ClampsGroupsInFp8) {
  if (t().dtype() != DType::bf16) GTEST_SKIP() << "the operands are the same for every dtype";
  Exec& ex = t().tested();
  if (ex.device() == Device::cpu) GTEST_SKIP() << "the CPU refuses such groups";
  if (const std::string why = why_no_scaled_grouped_matmul(ex); !why.empty()) GTEST_SKIP() << why;
  const GroupedRows x(ex, {0, 128, 256}, 256, 3);
  const Operand a = x.straight(), turned = x.turned();
  const GroupedWeights w(ex, 3, 128, 256, false);
  GroupRows outside = x.groups();
  const Tensor table = ex.tensor({2, 3}, DType::i32);
  const std::int32_t numbers[] = {-7, 0, 128, -5, 128, 1 << 30};
  ex.copy(table.raw(), numbers, table.bytes());
  ex.synchronize();
  outside.begin = table.rows(0, 1).reshaped({3});
  outside.rows = table.rows(1, 1).reshaped({3});
  constexpr Index kGroupRows = 128 + 256;
  const auto product = [&](const GroupRows& groups) {
    const Tensor c = ex.tensor({x.rows(), 128}, DType::f32);
    fill(ex, c, 7);
    scaled_grouped_matmul(ex, {.a = a, .b = w.operand, .c = c, .groups = groups});
    std::vector<float> all = numbers_in(ex, c);
    all.resize(kGroupRows * 128);
    return all;
  };
  EXPECT_EQ(product(outside), product(x.groups()));
  const auto gradient = [&](const GroupRows& groups) {
    const Tensor dw = ex.tensor({3, 256, 256}, DType::f32);
    scaled_grouped_weight_grad(ex, {.dy = turned, .x = turned, .dw = dw, .groups = groups, .write = Write::overwrite});
    std::vector<float> all = numbers_in(ex, dw);
    all.resize(2 * 256 * 256);  // the third has rows of no group
    return all;
  };
  EXPECT_EQ(gradient(outside), gradient(x.groups()));
  t().release();
}

/// Rows of groups and their GEMMs.
TEST_P(DeviceOps, MultipliesGroupsInFp8) {
  if (t().dtype() != DType::bf16) GTEST_SKIP() << "the operands are the same for every dtype";
  Exec& ex = t().tested();
  for (const std::vector<Index>& sizes : scaled_group_sizes()) check_quantised_groups(ex, sizes, 200);
  t().release();
  if (const std::string why = why_no_scaled_grouped_matmul(ex); !why.empty()) GTEST_SKIP() << why;
  const auto check = [&](const std::vector<Index>& sizes, Index n, Index k) {
    SCOPED_TRACE(::testing::PrintToString(sizes));
    check_scaled_grouped_rows(ex, sizes, n, k, 2e-3);
    t().release();
    check_scaled_grouped_weight_grad(ex, sizes, n, k, 2e-3);
    t().release();
  };
  for (const std::vector<Index>& sizes : scaled_group_sizes())
    for (const auto& [n, k] : {std::pair<Index, Index>{128, 128}, {640, 256}, {256, 1024}}) check(sizes, n, k);
  if (ex.device() == Device::cuda) check({1000, 0, 3000, 17, 129}, 640, 128);  // more tiles than multiprocessors
}

}  // namespace
}  // namespace megalith::ops
