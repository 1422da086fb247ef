#include "megalith/ops/rope.h"

#include <cmath>

#include "megalith/base/str.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct RopeHeads {
  Index samples, seq_len, heads, kv_heads, head_dim;
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
};
constexpr RopeHeads kRopeHeads[] = {
    {0, 3, 1, 1, 2}, {1, 1, 1, 1, 2}, {2, 5, 4, 2, 6}, {1, 9, 6, 3, 64}, {3, 70, 3, 1, 34}};

/// Hugging Face's apply_rotary_pos_emb, written out: x cos + rotate_half(x) sin for each q and k head.
Values turned(const Values& qkv, const RopeHeads& heads, const RopeFrequencies& frequencies, Index start = 0,
              Index first_row = 0) {
  Values out = qkv;
  const Index half = heads.head_dim / 2, group = heads.heads / heads.kv_heads + 2;
  const Index rows = static_cast<Index>(qkv.size()) / heads.columns();
  for (Index row = 0; row < rows; ++row) {
    const auto position = static_cast<double>(start + (first_row + row) % heads.seq_len);
    for (Index head = 0; head < heads.heads + 2 * heads.kv_heads; ++head) {
      if (head % group == group - 1) continue;  // a v
      for (Index i = 0; i < half; ++i) {
        const auto a = static_cast<std::size_t>(row * heads.columns() + head * heads.head_dim + i),
                   b = a + static_cast<std::size_t>(half);
        const double angle = position * frequencies.of(i);
        out[a] = qkv[a] * std::cos(angle) - qkv[b] * std::sin(angle);
        out[b] = qkv[b] * std::cos(angle) + qkv[a] * std::sin(angle);
      }
    }
  }
  return out;
}

class RopeTest : public OpTest {
 protected:
  Tensor table_of(const RopeFrequencies& frequencies, Index positions) {
    const Tensor table = empty({positions, 2, frequencies.head_dim / 2});
    rope_table(ex_, frequencies, table);
    return table;
  }
  Rope args_of(const Tensor& qkv, const Tensor& table, const RopeHeads& heads) {
    return {
        .qkv = qkv, .table = table, .num_heads = heads.heads, .num_kv_heads = heads.kv_heads, .seq_len = heads.seq_len};
  }
};
MEGALITH_OPS_PRECISIONS(RopeTest);

TEST_P(RopeTest, TurnsQAndKAndLeavesV) {
  for (const RopeHeads& heads : kRopeHeads) {
    const RopeFrequencies frequencies{.head_dim = heads.head_dim};
    const Values in = random_values(heads.samples * heads.seq_len * heads.columns(), 1, 3);
    const Tensor qkv = put({heads.samples * heads.seq_len, heads.columns()}, in);
    rope(ex_, args_of(qkv, table_of(frequencies, heads.seq_len), heads));
    expect_near(qkv, turned(in, heads, frequencies), "qkv");
    const Values out = values_of(qkv);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const Index head = static_cast<Index>(i) % heads.columns() / heads.head_dim;
      const Index group = heads.heads / heads.kv_heads + 2;
      if (head % group == group - 1) {
        EXPECT_EQ(out[i], in[i]);
      }
    }
  }
}

TEST_P(RopeTest, PartsOfAMicrobatchAndLaterPositions) {
  const RopeHeads heads{2, 7, 2, 1, 8};
  const RopeFrequencies frequencies{.head_dim = 8, .theta = 500};
  const Values in = random_values(5 * heads.columns(), 1);
  Rope args = args_of(put({5, heads.columns()}, in), table_of(frequencies, 20), heads);
  args.first_row = 4;
  args.start_position = 13;
  rope(ex_, args);  // positions 17, 18, 19, 13, 14
  expect_near(args.qkv, turned(in, heads, frequencies, 13, 4), "qkv");
}

TEST_P(RopeTest, RowsAtPositionsOfTheirOwn) {
  const RopeHeads heads{3, 1, 4, 2, 6};
  const RopeFrequencies frequencies{.head_dim = 6, .theta = 100};
  const std::vector<std::int32_t> at = {11, 0, 4};
  const Values in = random_values(3 * heads.columns(), 1);
  Values want;
  for (Index row = 0; row < 3; ++row) {
    const auto begin = in.begin() + row * heads.columns();
    const Values one = turned({begin, begin + heads.columns()}, heads, frequencies, at[static_cast<std::size_t>(row)]);
    want.insert(want.end(), one.begin(), one.end());
  }
  Rope args = args_of(put({3, heads.columns()}, in), table_of(frequencies, 12), heads);
  args.positions = put_ids(at);
  rope(ex_, args);
  expect_near(args.qkv, want, "qkv");
  for (const std::int32_t outside : {-1, 12}) {
    args.positions = put_ids({0, outside, 0});
    EXPECT_EQ(error_text([&] { rope(ex_, args); }), str("[rope] position = ", outside, ": must be from 0 to 11"));
  }
  args.positions = put_ids({0, 1});
  EXPECT_EQ(error_text([&] { rope(ex_, args); }), "[rope.positions] shape = [2]: must be [3]");
}

TEST_P(RopeTest, BackwardIsTheTransposeAndTheInverse) {
  const RopeHeads heads{2, 5, 4, 2, 6};
  const RopeFrequencies frequencies{.head_dim = 6, .theta = 100};
  const Index rows = 10;
  const Values in = random_values(rows * heads.columns(), 1), dout = random_values(rows * heads.columns(), 2);
  const Values want = numeric_gradient(in, [&](const Values& at) {
    const Values out = turned(at, heads, frequencies);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  });
  Rope args = args_of(put({rows, heads.columns()}, dout), table_of(frequencies, 5), heads);
  args.direction = RopeDirection::backward;
  rope(ex_, args);
  EXPECT_LT(relative_error(values_of(args.qkv), want), dtype() == DType::f32 ? 1e-6 : 1e-9);
  args.direction = RopeDirection::forward;
  rope(ex_, args);
  expect_near(args.qkv, dout, "there and back");
}

TEST_P(RopeTest, BringsHeadsIntoPartsAndBack) {
  for (const RopeHeads& heads :
       {RopeHeads{2, 5, 4, 2, 6}, {1, 9, 6, 3, 64}, {3, 2, 12, 4, 2}, {1, 3, 8, 1, 4}, {1, 3, 5, 5, 4}}) {
    SCOPED_TRACE(::testing::Message() << heads.heads << " heads in " << heads.kv_heads);
    const Index rows = heads.samples * heads.seq_len, sharing = heads.heads / heads.kv_heads;
    const auto in_parts = [&](const Values& from) {
      Values to;
      for (Index row = 0; row < rows; ++row) {
        for (const Index kind : {Index{0}, sharing, sharing + 1}) {  // q, k, v
          for (Index group = 0; group < heads.kv_heads; ++group) {
            const auto first = from.begin() + row * heads.columns() + (group * (sharing + 2) + kind) * heads.head_dim;
            to.insert(to.end(), first, first + (kind == 0 ? sharing : 1) * heads.head_dim);
          }
        }
      }
      return to;
    };
    const Values in = random_values(rows * heads.columns(), 1, 3);
    const Tensor table = table_of({.head_dim = heads.head_dim}, heads.seq_len);
    Rope plain = args_of(put({rows, heads.columns()}, in), table, heads), moving = plain;
    rope(ex_, plain);
    moving.qkv = put({rows, heads.columns()}, in);
    moving.attended = QkvOrder::parts;
    rope(ex_, moving);
    EXPECT_EQ(values_of(moving.qkv), in_parts(values_of(plain.qkv))) << "forward";
    plain.direction = moving.direction = RopeDirection::backward;
    rope(ex_, plain);
    rope(ex_, moving);
    EXPECT_EQ(values_of(moving.qkv), values_of(plain.qkv)) << "backward";
  }
}

TEST_P(RopeTest, TableHoldsCosinesThenSines) {
  const RopeFrequencies frequencies{.head_dim = 10, .theta = 1000};
  const Tensor table = table_of(frequencies, 300);
  Values want;
  for (Index p = 0; p < 300; ++p) {
    for (const bool sine : {false, true}) {
      for (Index i = 0; i < 5; ++i) {
        const double angle = static_cast<double>(p) / std::pow(1000, static_cast<double>(i) / 5);
        want.push_back(sine ? std::sin(angle) : std::cos(angle));
      }
    }
  }
  expect_near(table, want, "table");
}

TEST_P(RopeTest, SameBitsForAnyTeam) {
  const RopeHeads heads{3, 70, 3, 1, 34};
  expect_same_bits_for_any_team([&] {
    const Tensor qkv = put({210, heads.columns()}, random_values(210 * heads.columns(), 1));
    rope(ex_, args_of(qkv, table_of({.head_dim = 34}, 70), heads));
    return values_of(qkv);
  });
}

/// Linear scaling is a slower clock; llama3 keeps the fast pairs, slows the slow ones down and goes smoothly between.
TEST(RopeFrequenciesTest, Scaling) {
  const RopeFrequencies plain{.head_dim = 128, .theta = 500000};
  RopeFrequencies linear = plain, llama = plain;
  linear.scaling = RopeScaling::linear;
  linear.factor = 4;
  llama.scaling = RopeScaling::llama3;
  llama.factor = 8;
  EXPECT_DOUBLE_EQ(plain.of(0), 1);
  EXPECT_NEAR(plain.of(32), std::sqrt(1 / 500000.0), 1e-15);
  int fast = 0, between = 0, slow = 0;
  for (Index i = 0; i < 64; ++i) {
    EXPECT_DOUBLE_EQ(linear.of(i), plain.of(i) / 4);
    const double turns = 8192 * plain.of(i) / (2 * std::acos(-1.0));  // in the first 8192 positions
    if (turns > 4) {
      ++fast;
      EXPECT_EQ(llama.of(i), plain.of(i));
    } else if (turns < 1) {
      ++slow;
      EXPECT_EQ(llama.of(i), plain.of(i) / 8);
    } else {
      ++between;
      EXPECT_NEAR(llama.of(i), plain.of(i) * (1.0 / 8 + 7.0 / 8 * (turns - 1) / 3), 1e-12);
    }
  }
  // Counts of Llama 3.1 8B, by hand: pairs with more than 4 turns end at i = 64 ln(8192 / 8 pi) / ln(500000) = 28.2,
  // those with fewer than 1 begin at 64 ln(8192 / 2 pi) / ln(500000) = 34.98.
  EXPECT_EQ(fast, 29);
  EXPECT_EQ(between, 6);
  EXPECT_EQ(slow, 29);
}

TEST_P(RopeTest, NamesWhatDoesNotFit) {
  const Tensor table = empty({4, 2, 3}), qkv = empty({8, 24});
  const auto table_error = [&](const RopeFrequencies& frequencies) {
    return error_text([&] { rope_table(ex_, frequencies, table); });
  };
  EXPECT_EQ(table_error({.head_dim = 7}), "[rope_table.head_dim] = 7: must be even, as rotary embedding turns pairs");
  EXPECT_EQ(table_error({.head_dim = 8}), "[rope_table.table] shape = [4, 2, 3]: must be [4, 2, 4]");
  EXPECT_EQ(table_error({.head_dim = 6, .theta = 0}), "[rope_table.theta] = 0: must be above 0");
  EXPECT_EQ(table_error({.head_dim = 6, .scaling = RopeScaling::linear, .factor = -1}),
            "[rope_table.factor] = -1: must be above 0");
  EXPECT_EQ(table_error({.head_dim = 6, .scaling = RopeScaling::llama3, .low_freq_factor = 0}),
            "[rope_table.low_freq_factor] = 0: must be above 0");
  EXPECT_EQ(table_error({.head_dim = 6, .scaling = RopeScaling::llama3, .low_freq_factor = 4}),
            "[rope_table.high_freq_factor] = 4: must be above low_freq_factor, which is 4");
  EXPECT_EQ(table_error({.head_dim = 6, .scaling = RopeScaling::llama3, .original_max_position = 0}),
            "[rope_table.original_max_position] = 0: must be above 0");
  const auto rope_error = [&](Index heads, Index kv_heads, Index seq_len, Index start) {
    return error_text([&] {
      rope(ex_, {.qkv = qkv,
                 .table = table,
                 .num_heads = heads,
                 .num_kv_heads = kv_heads,
                 .seq_len = seq_len,
                 .start_position = start});
    });
  };
  EXPECT_EQ(rope_error(3, 2, 4, 0),
            "[rope] num_heads, num_kv_heads = 3, 2: both must be at least 1, and num_heads a multiple of num_kv_heads");
  EXPECT_EQ(rope_error(4, 2, 4, 0), "[rope.qkv] shape = [8, 24]: must be [8, 48]");
  EXPECT_EQ(rope_error(2, 1, 0, 0),
            "[rope] seq_len, first_row, start_position = 0, 0, 0: seq_len must be at least 1, the others at least 0");
  EXPECT_EQ(rope_error(2, 1, 5, 0),
            "[rope.table] positions = 4: must be at least 5, start_position + the rows of a sample");
  EXPECT_EQ(rope_error(2, 1, 4, 1),
            "[rope.table] positions = 4: must be at least 5, start_position + the rows of a sample");
  EXPECT_EQ(rope_error(2, 1, 4, 0), "");
  EXPECT_EQ(rope_error(2, 1, Index{1} << 31, 0),
            "[rope] seq_len, first_row + rows = 2147483648, 8: must be below 2^31");
}

}  // namespace
}  // namespace megalith::ops
