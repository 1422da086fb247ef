#include <algorithm>
#include <cmath>
#include <cstring>

#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/embedding.h"
#include "megalith/ops/norm.h"

#include "tests/support/twin.h"

namespace megalith::ops {
namespace {

/// Tensors of more than 2^31 elements: their last rows must be what a tensor of those rows alone gives.
class GpuLarge : public ::testing::Test {
 protected:
  static constexpr Index kTail = 8;

  void SetUp() override {
    MEGALITH_NEEDS_GPUS(1);
    ex_.emplace(Device::cuda);
  }
  Exec& ex() { return *ex_; }

  /// Random bf16 numbers.
  Tensor random(const Shape& shape) {
    const ParamSpec spec{{"large", {shape.numel()}, {}, {shape.numel()}}, {shape.numel()}, Init::normal, 1};
    const Tensor wide = ex().tensor({shape.numel()}, DType::f32), narrow = ex().tensor(shape, DType::bf16);
    initialise(ex(), spec, wide, 3);
    cast(ex(), wide.reshaped(shape), narrow);
    return narrow;
  }
  Tensor empty(const Shape& shape, DType dtype = DType::bf16) { return ex().tensor(shape, dtype); }
  static Tensor tail(const Tensor& tensor) { return tensor.rows(tensor.dim(0) - kTail, kTail); }
  Tensor copied(const Tensor& tensor) {
    const Tensor same = empty(tensor.shape(), tensor.dtype());
    copy(ex(), tensor, same);
    return same;
  }
  void expect_same_bytes(const Tensor& a, const Tensor& b, const char* what) {
    std::vector<std::byte> left(static_cast<std::size_t>(a.bytes())), right(static_cast<std::size_t>(b.bytes()));
    ex().copy(left.data(), a.raw(), a.bytes());
    ex().copy(right.data(), b.raw(), b.bytes());
    ex().synchronize();
    const auto [in_left, in_right] = std::ranges::mismatch(left, right);
    if (in_left == left.end()) return;
    const Index first = (in_left - left.begin()) / size_of(a.dtype());
    const auto number = [&](const std::vector<std::byte>& bytes) {
      bfloat16 value;
      std::memcpy(&value, bytes.data() + first * Index{sizeof value}, sizeof value);
      return a.dtype() == DType::bf16 ? converted<double>(value) : std::nan("");
    };
    ADD_FAILURE() << what << " differs from element " << first << " of " << a.numel() << " on: " << number(left)
                  << ", must be " << number(right);
  }

  std::optional<Exec> ex_;
};

/// Zeroing takes a millisecond for each of the large ones.
TEST_F(GpuLarge, MemoryIsZeroedBeforeItIsHandedOut) {
  for (int i = 0; i < 3; ++i) empty({Index{1} << 32}, DType::u8);
  const Tensor small = empty({1000}, DType::f32);
  fill(ex(), small, 1);
  ex().synchronize();
  empty({Index{1} << 20}, DType::u8);  // behind all zeroing
  std::vector<float> values(1000);
  ex().copy(values.data(), small.raw(), small.bytes());
  ex().synchronize();
  EXPECT_EQ(values, std::vector<float>(1000, 1.0f));
}

TEST_F(GpuLarge, ElementwiseAndNorms) {
  const Index hidden = 1536, rows = (Index{1} << 31) / hidden + 3 * kTail;
  const Tensor x = random({rows, hidden}), bias = random({hidden}), last = copied(tail(x));
  struct Results {
    Tensor sum, y, dx, z, gelu;
  };
  const auto run = [&](const Tensor& in) {
    const Index n = in.dim(0);
    const Results out{empty(in.shape()), empty(in.shape()), empty(in.shape()), empty(in.shape()), empty(in.shape())};
    const Tensor mean = empty({n}, DType::f32), rstd = empty({n}, DType::f32);
    residual_layer_norm(ex(), {.x = in,
                               .bias = bias,
                               .residual = in,
                               .gamma = bias,
                               .beta = bias,
                               .sum = out.sum,
                               .y = out.y,
                               .mean = mean,
                               .rstd = rstd,
                               .dropout = {}});
    const Tensor gamma_grad = empty({hidden}, DType::f32), beta_grad = empty({hidden}, DType::f32);
    layer_norm_backward(ex(), {.dy = out.y,
                               .x = out.sum,
                               .gamma = bias,
                               .mean = mean,
                               .rstd = rstd,
                               .residual = in,
                               .dx = out.dx,
                               .gamma_grad = gamma_grad,
                               .beta_grad = beta_grad});
    add(ex(), out.sum, out.dx, out.z);
    bias_gelu(ex(), {.x = out.z, .bias = bias, .y = out.gelu});
    return out;
  };
  const Results all = run(x), few = run(last);
  expect_same_bytes(tail(all.sum), few.sum, "the last rows of residual_layer_norm's sum");
  expect_same_bytes(tail(all.y), few.y, "of residual_layer_norm");
  expect_same_bytes(tail(all.dx), few.dx, "of layer_norm_backward");
  expect_same_bytes(tail(all.z), few.z, "of bias_gelu's z");
  expect_same_bytes(tail(all.gelu), few.gelu, "of bias_gelu");
}

TEST_F(GpuLarge, CrossEntropy) {
  const Index vocab = 50304, tokens = (Index{1} << 31) / vocab + 3 * kTail;
  const Tensor z = random({tokens, vocab}), last = copied(tail(z)), targets = empty({tokens}, DType::i32);
  ex().run({.name = "zero", .reads = {}, .writes = {targets}},
           [&](Exec&, Stream stream) { device::fill_bytes(Device::cuda, targets.raw(), 0, targets.bytes(), stream); });
  const StepState host{.loss_scale = 0.5};
  const Tensor state = empty({Index{sizeof host}}, DType::u8), sum = empty({1}, DType::f64);
  ex().copy(state.raw(), &host, sizeof host);
  ex().synchronize();
  const auto run = [&](const Tensor& logits) {
    const Tensor loss = empty({logits.dim(0)}, DType::f32);
    cross_entropy(ex(), {.logits = logits,
                         .targets = targets.rows(0, logits.dim(0)),
                         .step_state = state,
                         .loss = loss,
                         .loss_sum = sum,
                         .vocab_size = vocab});
    return loss;
  };
  const Tensor loss = run(z), last_loss = run(last);
  expect_same_bytes(tail(z), last, "gradients of the last rows");
  expect_same_bytes(tail(loss), last_loss, "losses of the last rows");
}

TEST_F(GpuLarge, Embedding) {
  const Index hidden = 2048, tokens = (Index{1} << 31) / hidden + 3 * kTail, held = 64;
  std::vector<std::int32_t> host(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(held));
  const Tensor ids = empty({tokens}, DType::i32), table = random({held, hidden}), y = empty({tokens, hidden});
  ex().copy(ids.raw(), host.data(), ids.bytes());
  embedding_forward(ex(), {.ids = ids, .table = table, .y = y, .first_id = 0, .vocab_size = held});
  const Tensor few = empty({kTail, hidden});
  embedding_forward(ex(), {.ids = tail(ids), .table = table, .y = few, .first_id = 0, .vocab_size = held});
  expect_same_bytes(tail(y), few, "the last rows");
}

}  // namespace
}  // namespace megalith::ops
