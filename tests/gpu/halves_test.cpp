// Rows of a layer's forward pass taken in two halves, beside communication, as tensor parallelism does: in 16 bits the
// same bits as all rows at once.
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/ops/attention.h"
#include "megalith/ops/library.h"
#include "megalith/ops/matmul.h"

#include "tests/support/twin.h"

namespace megalith {
namespace {

using support::Twins;

std::vector<std::byte> bytes_on(Exec& ex, const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  ex.copy(bytes.data(), tensor.raw(), tensor.bytes());
  ex.synchronize();
  return bytes;
}

/// A column-parallel or row-parallel layer: x [tokens, in] -> [tokens, out].
struct Layer {
  Index tokens, in, out;
};
void PrintTo(const Layer& layer, std::ostream* os) { *os << layer.tokens << " x " << layer.in << " -> " << layer.out; }

class GpuHalves : public ::testing::TestWithParam<std::tuple<Layer, DType, int>> {};

TEST_P(GpuHalves, HaveTheBitsOfTheWhole) {
  MEGALITH_NEEDS_GPUS(1);
  const auto& [layer, dtype, sm_margin] = GetParam();
  const auto& [tokens, in, out] = layer;
  device::use(Device::cuda, 0);
  Twins twins(Device::cuda, dtype);
  Exec& ex = twins.tested();
  ops::start_libraries(ex, sm_margin);
  const Tensor x = twins.in({tokens, in}, 1).tested, w = twins.in({out, in}, 2).tested, b = twins.in({out}, 3).tested;
  const auto product = [&](bool halves, bool with_bias) {
    const Tensor y = ex.tensor({tokens, out}, dtype);
    const Index rows = halves ? tokens / 2 : tokens;
    for (Index row = 0; row < tokens; row += rows)
      ops::matmul(ex, {.a = x.rows(row, rows),
                       .b = w,
                       .bias = with_bias ? b : Tensor(),
                       .c = y.rows(row, rows),
                       .transpose_b = ops::Transpose::yes,
                       .sm_margin = halves ? ops::SmMargin::communication : ops::SmMargin::none});
    return bytes_on(ex, y);
  };
  const auto gelu = [&](bool halves) {
    const Tensor y = ex.tensor({tokens, out}, dtype), z = ex.tensor({tokens, out}, dtype);
    const Index rows = halves ? tokens / 2 : tokens;
    for (Index row = 0; row < tokens; row += rows)
      ops::matmul_gelu(ex, {.x = x.rows(row, rows),
                            .w = w,
                            .bias = b,
                            .z = z.rows(row, rows),
                            .y = y.rows(row, rows),
                            .sm_margin = halves ? ops::SmMargin::communication : ops::SmMargin::none});
    return std::pair{bytes_on(ex, y), bytes_on(ex, z)};
  };
  EXPECT_TRUE(product(true, false) == product(false, false)) << "product";
  EXPECT_TRUE(product(true, true) == product(false, true)) << "product with bias";
  EXPECT_TRUE(gelu(true) == gelu(false)) << "product with GELU";
}

INSTANTIATE_TEST_SUITE_P(
    Layers, GpuHalves,
    ::testing::Combine(::testing::Values(Layer{8192, 1536, 2304}, Layer{8192, 768, 1536}, Layer{8192, 1536, 3072},
                                         Layer{8192, 3072, 1536}, Layer{8192, 1536, 1152}, Layer{8192, 384, 1536},
                                         Layer{4096, 768, 1152}, Layer{4096, 384, 768}, Layer{2048, 1536, 768},
                                         Layer{2048, 256, 384}),
                       ::testing::Values(DType::bf16, DType::f16), ::testing::Values(8, kCommunicationMultiprocessors)),
    [](const auto& test) {
      const Layer& layer = std::get<0>(test.param);
      return std::to_string(layer.tokens) + "_" + std::to_string(layer.in) + "_" + std::to_string(layer.out) + "_" +
             std::string(name_of(std::get<1>(test.param))) + "_beside_" + std::to_string(std::get<2>(test.param));
    });

class GpuHalvesOfAttention : public ::testing::TestWithParam<Index> {};

TEST_P(GpuHalvesOfAttention, HaveTheBitsOfTheWhole) {
  MEGALITH_NEEDS_GPUS(1);
  device::use(Device::cuda, 0);
  const Index batch = 8, seq_len = 1024, num_heads = 4, head_dim = GetParam();
  Twins twins(Device::cuda, DType::bf16);
  Exec& ex = twins.tested();
  const Tensor qkv = twins.in({batch * seq_len, num_heads * 3 * head_dim}, 1).tested;
  const auto attention = [&](Index samples) {
    const Tensor out = ex.tensor({batch * seq_len, num_heads * head_dim}, DType::bf16),
                 lse = ex.tensor({batch, num_heads, seq_len}, DType::f32);
    for (Index sample = 0; sample < batch; sample += samples)
      ops::attention_forward(ex, {.qkv = qkv.rows(sample * seq_len, samples * seq_len),
                                  .out = out.rows(sample * seq_len, samples * seq_len),
                                  .log_sum_exp = lse.rows(sample, samples),
                                  .batch = samples,
                                  .seq_len = seq_len,
                                  .num_heads = num_heads,
                                  .num_global_heads = num_heads,
                                  .dropout = {}});
    return std::pair{bytes_on(ex, out), bytes_on(ex, lse)};
  };
  EXPECT_TRUE(attention(batch / 2) == attention(batch));
}

INSTANTIATE_TEST_SUITE_P(HeadDims, GpuHalvesOfAttention, ::testing::Values(64, 96, 128));

}  // namespace
}  // namespace megalith
