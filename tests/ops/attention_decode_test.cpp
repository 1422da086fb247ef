// Attention to a cache against loops in f64, and against attention over whole sequences.
#include "megalith/ops/attention_decode.h"

#include <cmath>

#include "megalith/base/str.h"
#include "megalith/ops/attention.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct Case {
  Index heads = 1, kv_heads = 1, head_dim = 1;
  Index capacity = 1, tokens = 1;           ///< new ones of each sequence
  std::vector<std::int32_t> lengths = {0};  ///< before them, of each sequence

  Index batch() const { return static_cast<Index>(lengths.size()); }
  Index rows() const { return batch() * tokens; }
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
  Index width() const { return heads * head_dim; }
  Shape cache() const { return {batch(), kv_heads, capacity, head_dim}; }
  Index position(Index row) const { return lengths[static_cast<std::size_t>(row / tokens)] + row % tokens; }
  std::vector<std::int32_t> positions() const {
    std::vector<std::int32_t> all;
    for (Index row = 0; row < rows(); ++row) all.push_back(static_cast<std::int32_t>(position(row)));
    return all;
  }
  /// Where head `place` of a group (its q heads, its k, its v) stands in qkv.
  std::size_t at(Index row, Index group, Index place, Index d) const {
    return static_cast<std::size_t>(row * columns() + (group * (heads / kv_heads + 2) + place) * head_dim + d);
  }
  std::size_t cached(Index sequence, Index group, Index position, Index d) const {
    return static_cast<std::size_t>(((sequence * kv_heads + group) * capacity + position) * head_dim + d);
  }
};

std::ostream& operator<<(std::ostream& to, const Case& c) {
  to << c.heads << " heads in " << c.kv_heads << " groups of " << c.head_dim << ", " << c.tokens << " tokens after";
  for (const std::int32_t length : c.lengths) to << ' ' << length;
  return to << " in " << c.capacity;
}

// One token and several, the first of a sequence, the last that fits; several blocks of keys; groups of more heads than
// are read at once; heads that are no multiple of a vector.
const Case kCases[] = {{1, 1, 1, 1, 1, {0}},
                       {2, 2, 4, 9, 1, {0, 3, 8}},
                       {4, 2, 6, 40, 3, {0, 37, 11, 5}},
                       {12, 1, 16, 300, 2, {299 - 1, 0, 128, 127}},
                       {20, 2, 8, 150, 2, {0, 129, 31}},
                       {34, 2, 8, 20, 1, {3, 19}},
                       {6, 3, 64, 520, 1, {256, 255, 519, 1}},
                       {2, 1, 160, 260, 5, {200}},
                       {3, 3, 34, 12, 4, {8, 0}}};

class AttentionDecodeTest : public OpTest {
 protected:
  /// A cache of NaN but for what stands before the new tokens.
  struct Cache {
    Values keys, values;
  };
  Cache cache_of(const Case& c) const {
    Cache cache{Values(static_cast<std::size_t>(c.cache().numel()), std::nan("")), {}};
    cache.values = cache.keys;
    const Values random = random_values(2 * c.cache().numel(), 5);
    for (Index b = 0; b < c.batch(); ++b) {
      for (Index g = 0; g < c.kv_heads; ++g) {
        for (Index p = 0; p < c.lengths[static_cast<std::size_t>(b)]; ++p) {
          for (Index d = 0; d < c.head_dim; ++d) {
            const std::size_t at = c.cached(b, g, p, d);
            cache.keys[at] = random[at];
            cache.values[at] = random[random.size() / 2 + at];
          }
        }
      }
    }
    return cache;
  }
  static void append(const Case& c, const Values& qkv, Cache& cache) {
    const Index sharing = c.heads / c.kv_heads;
    for (Index row = 0; row < c.rows(); ++row) {
      for (Index g = 0; g < c.kv_heads; ++g) {
        for (Index d = 0; d < c.head_dim; ++d) {
          const std::size_t at = c.cached(row / c.tokens, g, c.position(row), d);
          cache.keys[at] = qkv[c.at(row, g, sharing, d)];
          cache.values[at] = qkv[c.at(row, g, sharing + 1, d)];
        }
      }
    }
  }
  static Values attended(const Case& c, const Values& qkv, const Cache& cache) {
    const Index sharing = c.heads / c.kv_heads;
    Values out(static_cast<std::size_t>(c.rows() * c.width()));
    for (Index row = 0; row < c.rows(); ++row) {
      for (Index h = 0; h < c.heads; ++h) {
        const Index g = h / sharing, sequence = row / c.tokens;
        Values p;
        double sum = 0;
        for (Index key = 0; key <= c.position(row); ++key) {
          double score = 0;
          for (Index d = 0; d < c.head_dim; ++d)
            score += qkv[c.at(row, g, h % sharing, d)] * cache.keys[c.cached(sequence, g, key, d)];
          p.push_back(std::exp(score / std::sqrt(static_cast<double>(c.head_dim))));
          sum += p.back();
        }
        for (Index d = 0; d < c.head_dim; ++d) {
          double weighted = 0;
          for (std::size_t key = 0; key < p.size(); ++key)
            weighted += p[key] / sum * cache.values[c.cached(sequence, g, static_cast<Index>(key), d)];
          out[static_cast<std::size_t>(row * c.width() + h * c.head_dim + d)] = weighted;
        }
      }
    }
    return out;
  }
  static void expect_finite_near(const Tensor& got, const Values& want, double tolerance) {
    const Values found = values_of(got);
    double most = 1e-3;
    for (const double one : want) most = std::isnan(one) ? most : std::max(most, std::abs(one));
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i])) {
        EXPECT_TRUE(std::isnan(found[i])) << i << ": nothing is written where no token stands";
      } else {
        EXPECT_LE(std::abs(found[i] - want[i]), tolerance * most) << i;
      }
    }
  }
};
MEGALITH_OPS_PRECISIONS(AttentionDecodeTest);

TEST_P(AttentionDecodeTest, FollowsTheLoops) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c);
    const Values in = random_values(c.rows() * c.columns(), 1, 2);
    Cache cache = cache_of(c);
    const Tensor qkv = put({c.rows(), c.columns()}, in), positions = put_ids(c.positions());
    const Tensor keys = put(c.cache(), cache.keys), values = put(c.cache(), cache.values);
    const Tensor out = empty({c.rows(), c.width()});
    append(c, in, cache);
    cache_append(ex_, {.qkv = qkv, .positions = positions, .keys = keys, .values = values, .num_heads = c.heads});
    expect_finite_near(keys, cache.keys, 0);
    expect_finite_near(values, cache.values, 0);
    attention_decode(
        ex_, {.qkv = qkv, .positions = positions, .keys = keys, .values = values, .out = out, .num_heads = c.heads});
    expect_near(out, attended(c, in, cache), "out");
    ex_.release();
  }
}

/// What attention over the whole sequences gives, token by token from an empty cache.
TEST_P(AttentionDecodeTest, OneTokenAtATimeGivesAttentionOverTheWhole) {
  constexpr Index kTokens = 150, kBatch = 2, kHeads = 6, kKvHeads = 2, kDim = 16;
  constexpr Index kColumns = (kHeads + 2 * kKvHeads) * kDim, kWidth = kHeads * kDim;
  const Values in = random_values(kBatch * kTokens * kColumns, 3, 2);
  const Tensor whole = put({kBatch * kTokens, kColumns}, in), want = empty({kBatch * kTokens, kWidth});
  const Tensor log_sum_exp = ex_.tensor({kBatch, kHeads, kTokens}, statistics_dtype(dtype()));
  attention_forward(ex_, {.qkv = whole,
                          .out = want,
                          .log_sum_exp = log_sum_exp,
                          .batch = kBatch,
                          .seq_len = kTokens,
                          .num_heads = kHeads,
                          .dropout = {},
                          .num_kv_heads = kKvHeads});
  const Tensor keys = empty({kBatch, kKvHeads, kTokens, kDim}), values = empty(keys.shape());
  Values found(static_cast<std::size_t>(kBatch * kTokens * kWidth));
  for (Index i = 0; i < kTokens; ++i) {
    Values rows;
    for (Index b = 0; b < kBatch; ++b) {
      const auto from = in.begin() + (b * kTokens + i) * kColumns;
      rows.insert(rows.end(), from, from + kColumns);
    }
    const auto at = static_cast<std::int32_t>(i);
    const Tensor qkv = put({kBatch, kColumns}, rows), positions = put_ids({at, at}), out = empty({kBatch, kWidth});
    cache_append(ex_, {.qkv = qkv, .positions = positions, .keys = keys, .values = values, .num_heads = kHeads});
    attention_decode(
        ex_, {.qkv = qkv, .positions = positions, .keys = keys, .values = values, .out = out, .num_heads = kHeads});
    const Values some = values_of(out);
    for (Index b = 0; b < kBatch; ++b) {
      std::copy_n(some.begin() + b * kWidth, kWidth, found.begin() + (b * kTokens + i) * kWidth);
    }
  }
  expect_near(put({kBatch * kTokens, kWidth}, found), values_of(want), "out");
}

TEST_P(AttentionDecodeTest, BitsDependOnNoOtherRow) {
  const Case all{.heads = 6, .kv_heads = 2, .head_dim = 16, .capacity = 200, .tokens = 2, .lengths = {3, 190, 64}};
  const auto attended_bits = [&](const Case& c, const Values& in, const Cache& cache) {
    const Tensor out = empty({c.rows(), c.width()});
    attention_decode(ex_, {.qkv = put({c.rows(), c.columns()}, in),
                           .positions = put_ids(c.positions()),
                           .keys = put(c.cache(), cache.keys),
                           .values = put(c.cache(), cache.values),
                           .out = out,
                           .num_heads = c.heads});
    return values_of(out);
  };
  const Values in = random_values(all.rows() * all.columns(), 1, 2);
  Cache cache = cache_of(all);
  append(all, in, cache);
  const Values together = attended_bits(all, in, cache);
  expect_same_bits_for_any_team([&] { return attended_bits(all, in, cache); });
  for (Index b = 0; b < all.batch(); ++b) {
    Case one = all;
    one.lengths = {all.lengths[static_cast<std::size_t>(b)]};
    const auto part = [](const Values& of, Index which, Index parts) {
      const auto size = static_cast<std::ptrdiff_t>(of.size()) / parts;
      return Values(of.begin() + which * size, of.begin() + (which + 1) * size);
    };
    const Cache alone{part(cache.keys, b, all.batch()), part(cache.values, b, all.batch())};
    EXPECT_EQ(attended_bits(one, part(in, b, all.batch()), alone), part(together, b, all.batch())) << b;
  }
}

TEST(AttentionDecodeErrors, NameTheArgument) {
  Exec ex;
  const auto f64 = [&](const Shape& shape) { return ex.tensor(shape, DType::f64); };
  const Tensor qkv = f64({4, 32}), keys = f64({2, 2, 5, 4}), values = f64({2, 2, 5, 4}), out = f64({4, 16});
  const Tensor positions = ex.tensor({4}, DType::i32);
  const auto error = [&](const AttentionDecode& args) { return error_text([&] { attention_decode(ex, args); }); };
  const AttentionDecode good{qkv, positions, keys, values, out, 4};
  const auto with = [&](auto change) {
    AttentionDecode args = good;
    change(args);
    return error(args);
  };
  EXPECT_EQ(with([&](auto& a) { a.num_heads = 3; }),
            "[attention_decode] num_heads, num_kv_heads = 3, 2: both must be at least 1, and num_heads a multiple of "
            "num_kv_heads");
  EXPECT_EQ(with([&](auto& a) { a.num_heads = 2; }), "[attention_decode.qkv] shape = [4, 32]: must be [4, 24]");
  EXPECT_EQ(with([&](auto& a) {
              a.values = f64({2, 2, 6, 4});
            }),
            "[attention_decode.values] shape = [2, 2, 6, 4]: must be [2, 2, 5, 4]");
  EXPECT_EQ(with([&](auto& a) { a.out = f64({4, 12}); }), "[attention_decode.out] shape = [4, 12]: must be [4, 16]");
  EXPECT_EQ(with([&](auto& a) { a.positions = ex.tensor({2}, DType::i32); }),
            "[attention_decode.positions] shape = [2]: must be [4]");
  EXPECT_EQ(with([&](auto& a) {
              a.keys = a.values = f64({3, 2, 5, 4});
            }),
            "[attention_decode.qkv] rows = 4: must be a multiple of the sequences of the cache, 3");
  EXPECT_EQ(with([&](auto& a) {
              a.num_heads = 2;
              a.keys = a.values = f64({1, 2, 1, 1025});
              a.qkv = f64({1, 6 * 1025});
              a.positions = ex.tensor({1}, DType::i32);
            }),
            "[attention_decode.keys] head_dim = 1025: must be from 1 to 1024");
  for (const std::int32_t at : {-1, 5}) {
    std::fill_n(positions.data<std::int32_t>(), 4, at);
    EXPECT_EQ(error(good), str("[cache] position = ", at, ": must be from 0 to 4"));
    EXPECT_EQ(error_text([&] {
                cache_append(ex, {qkv, positions, keys, values, 4});
              }),
              str("[cache] position = ", at, ": must be from 0 to 4"));
  }
}

}  // namespace
}  // namespace megalith::ops
