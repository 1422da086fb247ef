#include "megalith/ops/attention.h"

#include <cmath>

#include "megalith/base/philox.h"
#include "megalith/ops/cuda/cudnn_versions.h"
#include "megalith/ops/kept_patch.h"
#include "megalith/tensor/device.h"
#include "megalith/tensor/gpu_facts.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct AttentionSizes {
  Index batch, seq_len, heads, head_dim;
};
// One token, less than a tile, tiles and key blocks cut off in the middle.
constexpr AttentionSizes kAttentionSizes[] = {{0, 4, 2, 3}, {1, 1, 1, 1}, {2, 5, 3, 4}, {1, 70, 2, 8}, {1, 300, 1, 5}};

constexpr double kProbability = 0.2;
constexpr StepState kState{.step = 4, .first_sample = 6, .loss_scale = 1};

/// Where the heads of a case are among all heads, and whether probabilities are dropped.
struct Place {
  Index first_head = 1, num_global_heads = 5;
  double probability = 0;
};

struct AttentionReference {
  Values out, log_sum_exp;
};

double keep(const AttentionSizes& s, const Place& place, Index b, Index h, Index i, Index j) {
  if (place.probability == 0) return 1;
  const RandomSite site{.seed = 9, .step = 4, .site = 2};
  const auto head = static_cast<std::uint64_t>((6 + b) * place.num_global_heads + place.first_head + h);
  return is_kept(site, place.probability, head, s.seq_len, i, j) ? attention_kept_scale(place.probability) : 0.0;
}

AttentionReference attended(const Values& qkv, const AttentionSizes& s, const Place& place) {
  const Index width = s.heads * s.head_dim;
  AttentionReference want{Values(static_cast<std::size_t>(s.batch * s.seq_len * width), 0.0), {}};
  const auto at = [&](Index b, Index i, Index h, Index part, Index d) {
    return qkv[static_cast<std::size_t>((b * s.seq_len + i) * 3 * width + (h * 3 + part) * s.head_dim + d)];
  };
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) {
      for (Index i = 0; i < s.seq_len; ++i) {
        Values e;
        double sum = 0;
        for (Index j = 0; j <= i; ++j) {
          double score = 0;
          for (Index d = 0; d < s.head_dim; ++d) score += at(b, i, h, 0, d) * at(b, j, h, 1, d);
          e.push_back(std::exp(score / std::sqrt(static_cast<double>(s.head_dim))));
          sum += e.back();
        }
        for (Index j = 0; j <= i; ++j) {
          const double p = e[static_cast<std::size_t>(j)] / sum * keep(s, place, b, h, i, j);
          for (Index d = 0; d < s.head_dim; ++d) {
            want.out[static_cast<std::size_t>((b * s.seq_len + i) * width + h * s.head_dim + d)] +=
                p * at(b, j, h, 2, d);
          }
        }
        want.log_sum_exp.push_back(std::log(sum));
      }
    }
  }
  return want;
}

class AttentionTest : public OpTest {
 protected:
  struct Result {
    Tensor out, log_sum_exp, dqkv;
  };
  Result run(const AttentionSizes& s, const Values& qkv, const Values& dout, const Place& place,
             const StepState& state = kState) {
    const Index tokens = s.batch * s.seq_len, width = s.heads * s.head_dim;
    const Tensor x = put({tokens, 3 * width}, qkv);
    const Dropout dropout{.probability = place.probability, .seed = 9, .site = 2, .step_state = put_state(state)};
    const Result r{empty({tokens, width}), empty({s.batch, s.heads, s.seq_len}), empty({tokens, 3 * width})};
    attention_forward(ex_, {.qkv = x,
                            .out = r.out,
                            .log_sum_exp = r.log_sum_exp,
                            .batch = s.batch,
                            .seq_len = s.seq_len,
                            .num_heads = s.heads,
                            .first_head = place.first_head,
                            .num_global_heads = place.num_global_heads,
                            .dropout = dropout});
    attention_backward(ex_, {.dout = put({tokens, width}, dout),
                             .qkv = x,
                             .out = r.out,
                             .log_sum_exp = r.log_sum_exp,
                             .dqkv = r.dqkv,
                             .batch = s.batch,
                             .seq_len = s.seq_len,
                             .num_heads = s.heads,
                             .first_head = place.first_head,
                             .num_global_heads = place.num_global_heads,
                             .dropout = dropout});
    return r;
  }
};
MEGALITH_OPS_PRECISIONS(AttentionTest);

TEST_P(AttentionTest, ForwardEqualsLoops) {
  for (const AttentionSizes& s : kAttentionSizes) {
    for (const double probability : {0.0, kProbability}) {
      SCOPED_TRACE(testing::Message() << "S " << s.seq_len << ", p " << probability);
      const Index tokens = s.batch * s.seq_len, width = s.heads * s.head_dim;
      const Values qkv = random_values(tokens * 3 * width, 1, 2);
      const Place place{.probability = probability};
      const Result got = run(s, qkv, random_values(tokens * width, 2), place);
      const AttentionReference want = attended(qkv, s, place);
      expect_near(got.out, want.out, "out");
      expect_near(got.log_sum_exp, want.log_sum_exp, "log_sum_exp");
    }
  }
}

TEST_P(AttentionTest, BackwardEqualsDifferences) {
  for (const AttentionSizes& s :
       {AttentionSizes{1, 1, 1, 2}, AttentionSizes{2, 5, 2, 3}, AttentionSizes{1, 66, 1, 2}}) {
    for (const double probability : {0.0, kProbability}) {
      const Index tokens = s.batch * s.seq_len, width = s.heads * s.head_dim;
      const Values qkv = random_values(tokens * 3 * width, 1, 2), dout = random_values(tokens * width, 2);
      const Place place{.probability = probability};
      const Values want = numeric_gradient(qkv, [&](const Values& x) {
        const Values out = attended(x, s, place).out;
        return weighted(out, dout);
      });
      EXPECT_LT(relative_error(values_of(run(s, qkv, dout, place).dqkv), want), dtype() == DType::f32 ? 5e-6 : 1e-8)
          << "S " << s.seq_len << ", p " << probability;
    }
  }
}

/// The f64 op is checked against differences above; at sizes with several key blocks f32 is checked against it.
TEST_P(AttentionTest, BackwardOfSeveralKeyBlocks) {
  const AttentionSizes s{1, 600, 2, 16};
  const Values qkv = random_values(s.seq_len * 96, 1, 2), dout = random_values(s.seq_len * 32, 2);
  const Place place{.probability = kProbability};
  // Splitting the loss over two halves of dout must split the gradient: linear in dout, whatever the tiles do.
  Values upper = dout, lower = dout;
  for (std::size_t i = 0; i < dout.size(); ++i) (i < dout.size() / 2 ? lower : upper)[i] = 0;
  const Values whole = values_of(run(s, qkv, dout, place).dqkv), a = values_of(run(s, qkv, upper, place).dqkv);
  Values sum = values_of(run(s, qkv, lower, place).dqkv);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += a[i];
  EXPECT_LT(relative_error(sum, whole), GetParam().tolerance);
  // And along one random direction the gradient is the slope of the loss.
  if (dtype() != DType::f64) return;
  const Values direction = random_values(s.seq_len * 96, 3);
  const auto loss_at = [&](double step) {
    Values moved = qkv;
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
    const Values out = values_of(run(s, moved, dout, place).out);
    return weighted(out, dout);
  };
  double slope = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) slope += whole[i] * direction[i];
  EXPECT_NEAR((loss_at(kStep) - loss_at(-kStep)) / (2 * kStep), slope, 1e-7 * std::abs(slope) + 1e-7);
}

TEST_P(AttentionTest, HeadShardEqualsItsSliceOfTheFullRun) {
  const AttentionSizes full{2, 75, 4, 6}, shard{2, 75, 2, 6};
  const Index tokens = 150;
  const Values qkv = random_values(tokens * 72, 1), dout = random_values(tokens * 24, 2);
  const auto columns = [&](const Values& all, std::size_t width, std::size_t begin, std::size_t count) {
    Values part;
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
      for (std::size_t c = 0; c < count; ++c) part.push_back(all[t * width + begin + c]);
    }
    return part;
  };
  const Result whole = run(full, qkv, dout, {.first_head = 0, .num_global_heads = 4, .probability = kProbability});
  const Result part = run(shard, columns(qkv, 72, 36, 36), columns(dout, 24, 12, 12),
                          {.first_head = 2, .num_global_heads = 4, .probability = kProbability});
  expect_near(part.out, columns(values_of(whole.out), 24, 12, 12), "out");
  expect_near(part.dqkv, columns(values_of(whole.dqkv), 72, 36, 36), "dqkv");
}

TEST_P(AttentionTest, SampleRangeEqualsItsSliceOfTheFullRun) {
  const AttentionSizes full{3, 20, 2, 4}, one{1, 20, 2, 4};
  const Values qkv = random_values(60 * 24, 1), dout = random_values(60 * 8, 2);
  const Place place{.first_head = 0, .num_global_heads = 2, .probability = kProbability};
  const Result whole = run(full, qkv, dout, place);
  const Result last = run(one, Values(qkv.end() - 20 * 24, qkv.end()), Values(dout.end() - 20 * 8, dout.end()), place,
                          {.step = 4, .first_sample = 8});
  EXPECT_EQ(values_of(last.out), values_of(whole.out.rows(40, 20)));
  EXPECT_EQ(values_of(last.dqkv), values_of(whole.dqkv.rows(40, 20)));
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const AttentionSizes s{1, 3, 1, 1};
  const Values qkv{100, 100, 1, 100, 200, 2, 100, 300, 3};  // scores up to 30000
  const Result got = run(s, qkv, {1, 1, 1}, {});
  expect_near(got.out, {1, 2, 3}, "out");
  expect_near(got.log_sum_exp, {10000, 20000, 30000}, "log_sum_exp");
}

TEST_P(AttentionTest, SameBitsForAnyTeam) {
  const AttentionSizes s{2, 130, 3, 16};
  expect_same_bits_for_any_team([&] {
    const Result r = run(s, random_values(260 * 144, 1), random_values(260 * 48, 2), {.probability = kProbability});
    Values all = values_of(r.out);
    for (const Tensor& tensor : {r.log_sum_exp, r.dqkv}) {
      const Values more = values_of(tensor);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  });
}

TEST_P(AttentionTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor qkv = empty({6, 24}), out = empty({6, 8}), lse = empty({2, 2, 3});
  const AttentionForward good{
      .qkv = qkv, .out = out, .log_sum_exp = lse, .batch = 2, .seq_len = 3, .num_heads = 2, .dropout = {}};
  EXPECT_EQ(error_text([&] { attention_forward(ex_, good); }), "");
  AttentionForward bad = good;
  bad.num_heads = 5;
  EXPECT_EQ(error_text([&] { attention_forward(ex_, bad); }),
            "[attention.qkv] shape = [6, 24]: columns must be 3 * num_heads * head_dim with num_heads = 5");
  bad = good;
  bad.seq_len = 4;
  EXPECT_EQ(error_text([&] { attention_forward(ex_, bad); }), "[attention.qkv] shape = [6, 24]: must be [8, 24]");
  bad = good;
  bad.dropout = {.probability = 0.1, .step_state = put_state(kState)};
  EXPECT_EQ(error_text([&] { attention_forward(ex_, bad); }),
            "[attention] heads [0, 2): must lie within num_global_heads = 0");
}

TEST(AttentionLibrary, VersionsWithFaultsDoNotRun) {
  constexpr auto kForward = AttentionPass::forward, kBackward = AttentionPass::backward;
  constexpr auto kSame = Determinism::required, kAny = Determinism::not_required;
  using cuda::fault_of_cudnn;
  for (const std::size_t version : {90000, 90900, 91002, 91400, 91900}) {
    EXPECT_EQ(fault_of_cudnn(version, 9, kForward, kSame), "") << version;
    EXPECT_EQ(fault_of_cudnn(version, 9, kBackward, kSame), "") << version;
    EXPECT_EQ(fault_of_cudnn(version, 10, kForward, kSame), "") << version;
    EXPECT_EQ(fault_of_cudnn(version, 10, kBackward, kAny), "") << version;
    EXPECT_EQ(fault_of_cudnn(version, 10, kBackward, kSame).empty(), version >= 91800) << version;
  }
  EXPECT_EQ(fault_of_cudnn(91701, 10, kBackward, kSame), "the same bits every time need 9.18 on Blackwell");
  for (const std::size_t version : {91000, 91001})
    EXPECT_EQ(fault_of_cudnn(version, 9, kForward, kSame), "this version has faults that 9.10.2 mends");
  EXPECT_EQ(fault_of_cudnn(8907, 9, kForward, kSame), "needs cuDNN 9");
}

TEST(AttentionLibrary, SamplesOfOddLengthsNameTheirLengthsToOldVersions) {
  EXPECT_TRUE(cuda::needs_lengths(91500, AttentionPass::backward, 200));
  EXPECT_TRUE(cuda::needs_lengths(91400, AttentionPass::backward, 192));
  EXPECT_FALSE(cuda::needs_lengths(91501, AttentionPass::backward, 200));
  EXPECT_FALSE(cuda::needs_lengths(91400, AttentionPass::backward, 256));
  EXPECT_FALSE(cuda::needs_lengths(91400, AttentionPass::forward, 200));
}

TEST(AttentionLibrary, TakesWhatItsKernelsAreFor) {
  constexpr AttentionBuild kWithCudnn = {.has_cuda = true, .has_cudnn = true};
  const auto takes = [&](Index seq_len, Index head_dim, DType dtype = DType::bf16) {
    return is_for_attention_library(
        {.dtype = dtype, .batch = 1, .seq_len = seq_len, .num_heads = 1, .head_dim = head_dim}, kWithCudnn);
  };
  EXPECT_TRUE(takes(2, 8) && takes(200, 136) && takes(1024, 256) && takes(64, 64, DType::f16));
  EXPECT_FALSE(takes(1, 64)) << "one token";
  EXPECT_FALSE(takes(64, 264) || takes(64, 60));
  EXPECT_FALSE(takes(64, 64, DType::f32) || takes(64, 64, DType::f64));
}

TEST(AttentionLibrary, AGuessIsAsLargeAsWhatItIsPlannedFor) {
  if (device::num_gpus() > 0) GTEST_SKIP() << "here the library is asked";
  const AttentionShape shape{.dtype = DType::bf16, .batch = 2, .seq_len = 200, .num_heads = 3, .head_dim = 64};
  const bool by_library = is_for_attention_library(shape);
  const AttentionWay way = attention_way(AttentionPass::backward, shape, Determinism::required),
                     any_order = attention_way(AttentionPass::backward, shape, Determinism::not_required);
  EXPECT_EQ(way.by_library, by_library);
  EXPECT_EQ(way.kernel, by_library ? "cuDNN" : "megalith for Hopper");
  EXPECT_EQ(way.scratch_bytes - any_order.scratch_bytes, deterministic_attention_bytes(shape));
  AttentionShape own = shape;
  own.dropout = 0.1;
  EXPECT_EQ(attention_way(AttentionPass::backward, own, Determinism::required).scratch_bytes, 2 * 3 * 256 * 2 * 4)
      << "our kernels for Hopper";
  EXPECT_EQ(attention_way(AttentionPass::forward, own, Determinism::required).kernel, "megalith for Hopper");
  own.head_dim = 80;
  EXPECT_EQ(attention_way(AttentionPass::forward, own, Determinism::required).kernel, "megalith");
  EXPECT_EQ(attention_way(AttentionPass::backward, own, Determinism::required).scratch_bytes, 2 * 3 * 200 * 4)
      << "our kernels for any GPU";
}

TEST(AttentionLibrary, IsWhatTheBuildHas) {
  constexpr AttentionBuild kWithoutCuda = {}, kWithoutCudnn = {.has_cuda = true},
                           kWithCudnn = {.has_cuda = true, .has_cudnn = true};
  AttentionShape shape{.dtype = DType::bf16, .batch = 2, .seq_len = 200, .num_heads = 3, .head_dim = 64};
  for (const AttentionBuild& build : {kWithCudnn, kWithoutCuda}) {
    EXPECT_TRUE(is_for_attention_library(shape, build));
    EXPECT_EQ(deterministic_attention_bytes(shape, build), 2 * 2 * 3 * 256 * 256);
  }
  EXPECT_FALSE(is_for_attention_library(shape, kWithoutCudnn));
  EXPECT_EQ(deterministic_attention_bytes(shape, kWithoutCudnn), 0);
  EXPECT_EQ(attention_build().has_cuda, !device::code_architectures().empty());
  EXPECT_TRUE(attention_build().has_cuda || is_for_attention_library(shape)) << "a laptop's plan is for cuDNN";
  shape.dropout = 0.1;
  for (const AttentionBuild& build : {kWithCudnn, kWithoutCudnn, kWithoutCuda}) {
    EXPECT_FALSE(is_for_attention_library(shape, build));
    EXPECT_EQ(deterministic_attention_bytes(shape, build), 0);
  }
}

}  // namespace
}  // namespace megalith::ops
