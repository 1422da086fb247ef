// Attention with every key visible, with lengths of samples and with groups of heads that share keys, against loops in
// f64. Of the causal kind without them attention_test.cpp has more.
#include <cmath>

#include "megalith/base/philox.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/kept_patch.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

constexpr StepState kKindsState{.step = 4, .first_sample = 6, .loss_scale = 1};
constexpr double kKindsProbability = 0.2;

struct KindsCase {
  Index batch = 1, seq_len = 1, heads = 1, kv_heads = 1, head_dim = 1;
  AttentionMask mask = AttentionMask::causal;
  std::vector<std::int32_t> lengths = {};  ///< none: all samples are full
  double probability = 0;
  Index first_head = 1, num_global_heads = 9;
  QkvOrder order = QkvOrder::groups;

  Index tokens() const { return batch * seq_len; }
  Index width() const { return heads * head_dim; }
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
  Index length(Index b) const { return lengths.empty() ? seq_len : Index{lengths[static_cast<std::size_t>(b)]}; }
  Index end_of_keys(Index b, Index i) const { return mask == AttentionMask::full ? length(b) : i + 1; }
  /// Where an element of q of a head, or of the k and v that it reads, stands in qkv.
  enum Part { q, k, v };
  std::size_t at(Index b, Index i, Index h, Part part, Index d) const {
    const Index sharing = heads / kv_heads, group = h / sharing;
    Index place = group * (sharing + 2) + (part == q ? h % sharing : sharing + (part == v ? 1 : 0));
    if (order == QkvOrder::parts) place = part == q ? h : heads + (part == v ? kv_heads : 0) + group;
    return static_cast<std::size_t>((b * seq_len + i) * columns() + place * head_dim + d);
  }
  std::size_t at_out(Index b, Index i, Index h, Index d) const {
    return static_cast<std::size_t>((b * seq_len + i) * width() + h * head_dim + d);
  }
  double keep(Index b, Index h, Index i, Index j) const {
    if (probability == 0) return 1;
    const RandomSite site{.seed = 9, .step = 4, .site = 2};
    const auto head = static_cast<std::uint64_t>((6 + b) * num_global_heads + first_head + h);
    return is_kept(site, probability, head, seq_len, i, j) ? attention_kept_scale(probability) : 0;
  }
};

std::ostream& operator<<(std::ostream& to, const KindsCase& c) {
  to << (c.order == QkvOrder::parts ? "in parts, " : "") << c.batch << " samples of " << c.seq_len << ", " << c.heads
     << " heads in " << c.kv_heads << " groups of " << c.head_dim
     << (c.mask == AttentionMask::full ? ", full" : ", causal") << ", p " << c.probability << ", lengths";
  for (const std::int32_t length : c.lengths) to << ' ' << length;
  return to;
}

struct ExpectedKind {
  Values out, log_sum_exp, dqkv;
};

/// One query's row: probabilities before dropout, forward and backward.
void attend(const KindsCase& c, const Values& qkv, const Values& dout, ExpectedKind& to, Index b, Index h, Index i) {
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  const Index end = c.end_of_keys(b, i);
  Values p;
  double sum = 0;
  for (Index j = 0; j < end; ++j) {
    double score = 0;
    for (Index d = 0; d < c.head_dim; ++d)
      score += qkv[c.at(b, i, h, KindsCase::q, d)] * qkv[c.at(b, j, h, KindsCase::k, d)];
    p.push_back(std::exp(score * scale));
    sum += p.back();
  }
  to.log_sum_exp[static_cast<std::size_t>((b * c.heads + h) * c.seq_len + i)] = std::log(sum);
  Values dp;
  double delta = 0;
  for (Index j = 0; j < end; ++j) {
    const double kept = c.keep(b, h, i, j), prob = p[static_cast<std::size_t>(j)] /= sum;
    double product = 0;
    for (Index d = 0; d < c.head_dim; ++d) {
      const double value = qkv[c.at(b, j, h, KindsCase::v, d)], gradient = dout[c.at_out(b, i, h, d)];
      to.out[c.at_out(b, i, h, d)] += prob * kept * value;
      to.dqkv[c.at(b, j, h, KindsCase::v, d)] += prob * kept * gradient;
      product += gradient * value;
    }
    dp.push_back(product * kept);
    delta += prob * dp.back();
  }
  for (Index j = 0; j < end; ++j) {
    const double ds = p[static_cast<std::size_t>(j)] * (dp[static_cast<std::size_t>(j)] - delta) * scale;
    for (Index d = 0; d < c.head_dim; ++d) {
      to.dqkv[c.at(b, i, h, KindsCase::q, d)] += ds * qkv[c.at(b, j, h, KindsCase::k, d)];
      to.dqkv[c.at(b, j, h, KindsCase::k, d)] += ds * qkv[c.at(b, i, h, KindsCase::q, d)];
    }
  }
}

ExpectedKind by_loops(const KindsCase& c, const Values& qkv, const Values& dout) {
  const auto zeros = [](Index count) { return Values(static_cast<std::size_t>(count), 0.0); };
  ExpectedKind to{zeros(c.tokens() * c.width()), zeros(c.batch * c.heads * c.seq_len), zeros(c.tokens() * c.columns())};
  for (Index b = 0; b < c.batch; ++b)
    for (Index h = 0; h < c.heads; ++h)
      for (Index i = 0; i < c.length(b); ++i) attend(c, qkv, dout, to, b, h, i);
  return to;
}

std::vector<KindsCase> cases() {
  std::vector<KindsCase> all;
  const auto add = [&](KindsCase c) {
    for (const AttentionMask mask : {AttentionMask::causal, AttentionMask::full}) {
      for (const double probability : {0.0, kKindsProbability}) {
        c.mask = mask;
        c.probability = probability;
        all.push_back(c);
      }
    }
  };
  add({.batch = 0, .seq_len = 4, .heads = 2, .kv_heads = 1, .head_dim = 3});
  add({.batch = 2, .seq_len = 1, .heads = 2, .kv_heads = 1, .head_dim = 2, .lengths = {1, 0}});
  add({.batch = 2, .seq_len = 5, .heads = 3, .kv_heads = 3, .head_dim = 4});
  add({.batch = 4, .seq_len = 5, .heads = 4, .kv_heads = 2, .head_dim = 3, .lengths = {5, 1, 0, 3}});
  add({.batch = 1, .seq_len = 70, .heads = 4, .kv_heads = 1, .head_dim = 8});
  // Padding begins within the first block of queries, at the edge of one, and after the first block of keys.
  add({.batch = 4, .seq_len = 300, .heads = 2, .kv_heads = 1, .head_dim = 5, .lengths = {300, 30, 64, 257}});
  add({.batch = 2, .seq_len = 129, .heads = 2, .kv_heads = 2, .head_dim = 8, .lengths = {128, 2}});
  for (KindsCase c : std::vector(all)) {
    if (c.seq_len > 200) continue;  // differences take long
    c.order = QkvOrder::parts;
    all.push_back(c);
  }
  return all;
}

class AttentionKindsTest : public OpTest {
 protected:
  struct Result {
    Tensor out, log_sum_exp, dqkv;
  };
  Result run(const KindsCase& c, const Values& qkv, const Values& dout, const StepState& state = kKindsState) {
    const Tensor x = put({c.tokens(), c.columns()}, qkv);
    const Tensor lengths = c.lengths.empty() ? Tensor() : put_ids(c.lengths);
    const Dropout dropout{.probability = c.probability, .seed = 9, .site = 2, .step_state = put_state(state)};
    const Result r{empty({c.tokens(), c.width()}), empty({c.batch, c.heads, c.seq_len}),
                   empty({c.tokens(), c.columns()})};
    attention_forward(ex_, {.qkv = x,
                            .out = r.out,
                            .log_sum_exp = r.log_sum_exp,
                            .batch = c.batch,
                            .seq_len = c.seq_len,
                            .num_heads = c.heads,
                            .first_head = c.first_head,
                            .num_global_heads = c.num_global_heads,
                            .dropout = dropout,
                            .mask = c.mask,
                            .num_kv_heads = c.kv_heads,
                            .lengths = lengths,
                            .order = c.order});
    attention_backward(ex_, {.dout = put({c.tokens(), c.width()}, dout),
                             .qkv = x,
                             .out = r.out,
                             .log_sum_exp = r.log_sum_exp,
                             .dqkv = r.dqkv,
                             .batch = c.batch,
                             .seq_len = c.seq_len,
                             .num_heads = c.heads,
                             .first_head = c.first_head,
                             .num_global_heads = c.num_global_heads,
                             .dropout = dropout,
                             .mask = c.mask,
                             .num_kv_heads = c.kv_heads,
                             .lengths = lengths,
                             .order = c.order});
    return r;
  }
  static Values qkv_of(const KindsCase& c) { return random_values(c.tokens() * c.columns(), 1, 2); }
  static Values dout_of(const KindsCase& c) { return random_values(c.tokens() * c.width(), 2); }
};
MEGALITH_OPS_PRECISIONS(AttentionKindsTest);

void expect_equal(const Tensor& got, const Tensor& want, const char* what) {
  ASSERT_EQ(got.bytes(), want.bytes()) << what;
  EXPECT_EQ(std::memcmp(got.raw(), want.raw(), static_cast<std::size_t>(got.bytes())), 0) << what;
}

TEST_P(AttentionKindsTest, EqualsLoops) {
  for (const KindsCase& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const Values qkv = qkv_of(c), dout = dout_of(c);
    const Result got = run(c, qkv, dout);
    const ExpectedKind want = by_loops(c, qkv, dout);
    expect_near(got.out, want.out, "out");
    expect_near(got.log_sum_exp, want.log_sum_exp, "log_sum_exp");
    expect_near(got.dqkv, want.dqkv, "dqkv");
  }
}

TEST_P(AttentionKindsTest, BackwardEqualsDifferences) {
  if (dtype() != DType::f64) GTEST_SKIP() << "f32 is held against the loops";
  for (const AttentionMask mask : {AttentionMask::causal, AttentionMask::full}) {
    for (const double probability : {0.0, kKindsProbability}) {
      const KindsCase c{.batch = 3,
                        .seq_len = 6,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 2,
                        .mask = mask,
                        .lengths = {6, 0, 4},
                        .probability = probability};
      SCOPED_TRACE(::testing::Message() << c);
      const Values dout = dout_of(c);
      const Values want = numeric_gradient(qkv_of(c), [&](const Values& x) {
        const Values out = values_of(run(c, x, dout).out);
        ex_.release();
        return weighted(out, dout);
      });
      EXPECT_LT(relative_error(values_of(run(c, qkv_of(c), dout).dqkv), want), 1e-8);
    }
  }
}

TEST_P(AttentionKindsTest, NothingOfPaddingComesThrough) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const AttentionMask mask : {AttentionMask::causal, AttentionMask::full}) {
    const KindsCase c{.batch = 3,
                      .seq_len = 80,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 4,
                      .mask = mask,
                      .lengths = {70, 0, 5},
                      .probability = kKindsProbability};
    Values qkv = qkv_of(c), dout = dout_of(c);
    const Result want = run(c, qkv, dout);
    for (Index b = 0; b < c.batch; ++b) {
      const auto spoil = [&](Values& values, Index columns) {
        const auto row = [&](Index i) { return values.begin() + (b * c.seq_len + i) * columns; };
        std::fill(row(c.length(b)), row(c.seq_len), kNan);
      };
      spoil(qkv, c.columns());
      spoil(dout, c.width());
    }
    const Result got = run(c, qkv, dout);
    expect_equal(got.out, want.out, "out");
    expect_equal(got.log_sum_exp, want.log_sum_exp, "log_sum_exp");
    expect_equal(got.dqkv, want.dqkv, "dqkv");
    for (Index b = 0; b < c.batch; ++b) {
      const Index padding = c.seq_len - c.length(b);
      for (const Tensor& tensor : {got.out, got.dqkv}) {
        for (const double value : values_of(tensor.rows(b * c.seq_len + c.length(b), padding))) EXPECT_EQ(value, 0);
      }
      const Values sums = values_of(got.log_sum_exp);
      for (Index h = 0; h < c.heads; ++h)
        for (Index i = c.length(b); i < c.seq_len; ++i)
          EXPECT_EQ(sums[static_cast<std::size_t>((b * c.heads + h) * c.seq_len + i)], 0);
    }
  }
}

TEST_P(AttentionKindsTest, FullLengthsAndGroupsOfOneHeadChangeNoBit) {
  for (const AttentionMask mask : {AttentionMask::causal, AttentionMask::full}) {
    KindsCase c{.batch = 2, .seq_len = 130, .heads = 3, .kv_heads = 3, .head_dim = 8, .mask = mask};
    c.probability = kKindsProbability;
    const Values qkv = qkv_of(c), dout = dout_of(c);
    const Result want = run(c, qkv, dout);
    const auto expect_same = [&](const Result& got) {
      expect_equal(got.out, want.out, "out");
      expect_equal(got.log_sum_exp, want.log_sum_exp, "log_sum_exp");
      expect_equal(got.dqkv, want.dqkv, "dqkv");
    };
    c.lengths = {130, 131};  // beyond the end counts as the end
    expect_same(run(c, qkv, dout));
  }
}

TEST_P(AttentionKindsTest, ALengthBelowNothingIsNothing) {
  KindsCase c{.batch = 2, .seq_len = 9, .heads = 2, .kv_heads = 1, .head_dim = 4, .lengths = {0, 9}};
  const Values qkv = qkv_of(c), dout = dout_of(c);
  const Result want = run(c, qkv, dout);
  c.lengths = {-3, 9};
  expect_equal(run(c, qkv, dout).dqkv, want.dqkv, "dqkv");
}

/// Columns of a rank's share of a whole run.
Values columns_of(const Values& all, Index width, Index begin, Index count) {
  Values part;
  for (std::size_t row = 0; row < all.size(); row += static_cast<std::size_t>(width)) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(row) + begin;
    part.insert(part.end(), first, first + count);
  }
  return part;
}

TEST_P(AttentionKindsTest, AShardOfGroupsEqualsItsSliceOfTheFullRun) {
  KindsCase full{.batch = 2,
                 .seq_len = 75,
                 .heads = 8,
                 .kv_heads = 4,
                 .head_dim = 6,
                 .mask = AttentionMask::full,
                 .lengths = {75, 40},
                 .probability = kKindsProbability,
                 .first_head = 0,
                 .num_global_heads = 8};
  KindsCase shard = full;
  shard.heads = 4;
  shard.kv_heads = 2;
  shard.first_head = 4;
  const Values qkv = qkv_of(full), dout = dout_of(full);
  const Result whole = run(full, qkv, dout);
  const auto half = [&](const Values& all, Index width) { return columns_of(all, width, width / 2, width / 2); };
  const Result part = run(shard, half(qkv, full.columns()), half(dout, full.width()));
  expect_near(part.out, half(values_of(whole.out), full.width()), "out");
  expect_near(part.dqkv, half(values_of(whole.dqkv), full.columns()), "dqkv");
}

TEST_P(AttentionKindsTest, ASampleEqualsItsSliceOfTheFullRun) {
  const KindsCase full{.batch = 3,
                       .seq_len = 20,
                       .heads = 2,
                       .kv_heads = 1,
                       .head_dim = 4,
                       .mask = AttentionMask::full,
                       .lengths = {20, 3, 13},
                       .probability = kKindsProbability};
  KindsCase one = full;
  one.batch = 1;
  one.lengths = {13};
  const Values qkv = qkv_of(full), dout = dout_of(full);
  const Result whole = run(full, qkv, dout);
  const Result last = run(one, Values(qkv.end() - 20 * full.columns(), qkv.end()),
                          Values(dout.end() - 20 * full.width(), dout.end()), {.step = 4, .first_sample = 8});
  EXPECT_EQ(values_of(last.out), values_of(whole.out.rows(40, 20)));
  EXPECT_EQ(values_of(last.dqkv), values_of(whole.dqkv.rows(40, 20)));
}

TEST_P(AttentionKindsTest, SameBitsForAnyTeam) {
  const KindsCase c{.batch = 2,
                    .seq_len = 130,
                    .heads = 6,
                    .kv_heads = 2,
                    .head_dim = 16,
                    .mask = AttentionMask::full,
                    .lengths = {130, 70},
                    .probability = kKindsProbability};
  expect_same_bits_for_any_team([&] {
    const Result r = run(c, qkv_of(c), dout_of(c));
    Values all = values_of(r.out);
    for (const Tensor& tensor : {r.log_sum_exp, r.dqkv}) {
      const Values more = values_of(tensor);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  });
}

TEST_P(AttentionKindsTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor qkv = empty({6, 24}), out = empty({6, 12}), lse = empty({2, 4, 3}), dqkv = empty({6, 24});
  const AttentionForward good{.qkv = qkv,
                              .out = out,
                              .log_sum_exp = lse,
                              .batch = 2,
                              .seq_len = 3,
                              .num_heads = 4,
                              .dropout = {},
                              .num_kv_heads = 2,
                              .lengths = put_ids({3, 2})};
  const auto error_of = [&](const AttentionForward& args) { return error_text([&] { attention_forward(ex_, args); }); };
  AttentionForward bad = good;
  bad.num_kv_heads = 3;
  EXPECT_EQ(error_of(bad), "[attention] num_kv_heads = 3: must divide num_heads = 4 (0: as many)");
  bad.num_kv_heads = 8;
  EXPECT_EQ(error_of(bad), "[attention] num_kv_heads = 8: must divide num_heads = 4 (0: as many)");
  bad.num_kv_heads = -1;
  EXPECT_EQ(error_of(bad), "[attention] num_kv_heads = -1: must divide num_heads = 4 (0: as many)");
  bad = good;
  bad.num_heads = 6;
  EXPECT_EQ(error_of(bad),
            "[attention.qkv] shape = [6, 24]: columns must be (num_heads + 2 * num_kv_heads) * head_dim with "
            "num_heads, num_kv_heads = 6, 2");
  bad = good;
  bad.lengths = put_ids({3, 2, 1});
  EXPECT_EQ(error_of(bad), "[attention.lengths] shape = [3]: must be [2]");
  bad.lengths = put({2}, {3, 2}, DType::f32);
  EXPECT_EQ(error_of(bad), "[attention.lengths] dtype = f32: must be i32");
  AttentionBackward backward{.dout = out,
                             .qkv = qkv,
                             .out = out,
                             .log_sum_exp = lse,
                             .dqkv = dqkv,
                             .batch = 2,
                             .seq_len = 3,
                             .num_heads = 4,
                             .dropout = {},
                             .num_kv_heads = 2,
                             .lengths = put_ids({1})};
  EXPECT_EQ(error_text([&] { attention_backward(ex_, backward); }),
            "[attention_backward.lengths] shape = [1]: must be [2]");
  backward.num_kv_heads = 3;
  EXPECT_EQ(error_text([&] { attention_backward(ex_, backward); }),
            "[attention_backward] num_kv_heads = 3: must divide num_heads = 4 (0: as many)");
}

/// `rows` with the heads of each in parts.
Values in_parts(const Values& rows, const KindsCase& c) {
  Values out(rows.size());
  const Index sharing = c.heads / c.kv_heads;
  for (Index row = 0; row < c.tokens(); ++row) {
    for (Index place = 0; place < c.heads + 2 * c.kv_heads; ++place) {
      const auto from = rows.begin() + row * c.columns() + place * c.head_dim;
      const Index to = row * c.columns() + place_in_parts(place, sharing, c.kv_heads) * c.head_dim;
      std::copy(from, from + c.head_dim, out.begin() + to);
    }
  }
  return out;
}

TEST_P(AttentionKindsTest, TheOrderOfHeadsChangesNoBit) {
  for (const Index kv_heads : {1, 2, 3, 6}) {
    KindsCase c{.batch = 2, .seq_len = 70, .heads = 6, .kv_heads = kv_heads, .head_dim = 5, .lengths = {70, 66}};
    c.probability = kKindsProbability;
    const Values qkv = qkv_of(c), dout = dout_of(c);
    const Result want = run(c, qkv, dout);
    c.order = QkvOrder::parts;
    const Result got = run(c, in_parts(qkv, c), dout);
    expect_equal(got.out, want.out, "out");
    expect_equal(got.log_sum_exp, want.log_sum_exp, "log_sum_exp");
    EXPECT_EQ(values_of(got.dqkv), in_parts(values_of(want.dqkv), c));
  }
}

TEST(AttentionKinds, AreAttendedInPartsWhereThatSparesCalls) {
  constexpr AttentionBuild kWithCudnn = {.has_cuda = true, .has_cudnn = true};
  AttentionShape shape{
      .dtype = DType::bf16, .batch = 2, .seq_len = 200, .num_heads = 8, .head_dim = 64, .num_kv_heads = 4};
  const auto order = [&](const AttentionShape& of) { return attended_order(Device::cuda, of, kWithCudnn); };
  EXPECT_EQ(order(shape), QkvOrder::parts);
  EXPECT_EQ(attended_order(Device::cpu, shape, kWithCudnn), QkvOrder::groups);
  EXPECT_EQ(attended_order(Device::cuda, shape, {.has_cuda = true}), QkvOrder::groups) << "no library";
  const auto changed = [&](auto change) {
    AttentionShape other = shape;
    change(other);
    return order(other);
  };
  EXPECT_EQ(changed([](AttentionShape& s) { s.num_kv_heads = 8; }), QkvOrder::groups) << "every head has its own";
  EXPECT_EQ(changed([](AttentionShape& s) { s.num_kv_heads = 1; }), QkvOrder::groups) << "all share one";
  EXPECT_EQ(changed([](AttentionShape& s) { s.batch = 1; }), QkvOrder::groups) << "one call";
  EXPECT_EQ(changed([](AttentionShape& s) { s.dropout = 0.1; }), QkvOrder::groups) << "our own kernel";
  EXPECT_EQ(changed([](AttentionShape& s) { s.dtype = DType::f32; }), QkvOrder::groups) << "our own kernel";
  EXPECT_EQ(changed([](AttentionShape& s) { s.head_dim = 72; }), QkvOrder::groups) << "half a head is 4.5 vectors";
  EXPECT_EQ(changed([](AttentionShape& s) { s.num_heads = 252, s.num_kv_heads = 2; }), QkvOrder::parts);
  EXPECT_EQ(changed([](AttentionShape& s) { s.num_heads = 254, s.num_kv_heads = 2; }), QkvOrder::groups) << "too wide";
  shape.order = QkvOrder::parts;
  EXPECT_EQ(num_library_calls(shape), 1);
  EXPECT_EQ(deterministic_attention_bytes(shape, kWithCudnn), 2 * 2 * 8 * 256 * 256) << "of all samples";
}

TEST(AttentionKinds, OfGroupsAreSeveralCallsOfTheLibrary) {
  AttentionShape shape{.dtype = DType::bf16, .batch = 2, .seq_len = 200, .num_heads = 8, .head_dim = 64};
  constexpr AttentionBuild kWithCudnn = {.has_cuda = true, .has_cudnn = true};
  EXPECT_EQ(num_library_calls(shape), 1);
  EXPECT_EQ(deterministic_attention_bytes(shape, kWithCudnn), 2 * 16 * 256 * 256);
  shape.num_kv_heads = 8;
  EXPECT_EQ(num_library_calls(shape), 1) << "every head has its own";
  shape.num_kv_heads = 1;
  EXPECT_EQ(num_library_calls(shape), 1) << "all share one";
  shape.num_kv_heads = 4;
  EXPECT_EQ(num_library_calls(shape), 2) << "one per sample";
  EXPECT_EQ(deterministic_attention_bytes(shape, kWithCudnn), 2 * 8 * 256 * 256) << "of one call";
  EXPECT_TRUE(is_for_attention_library(shape, kWithCudnn));
  shape.num_heads = 6;
  shape.num_kv_heads = 3;
  shape.seq_len = 201;
  EXPECT_FALSE(is_for_attention_library(shape, kWithCudnn)) << "log_sum_exp of the second sample at 8 bytes of 16";
  shape.seq_len = 202;
  EXPECT_TRUE(is_for_attention_library(shape, kWithCudnn));
  shape.seq_len = 201;
  shape.num_kv_heads = 0;
  shape.mask = AttentionMask::full;
  shape.lengths = SampleLengths::given;
  EXPECT_TRUE(is_for_attention_library(shape, kWithCudnn));
}

}  // namespace
}  // namespace megalith::ops
