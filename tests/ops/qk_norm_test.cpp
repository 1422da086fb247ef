#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ops/qk_norms.h"

namespace megalith::ops {
namespace {

using Heads = QkvHeads;
using Gammas = QkGammas;

constexpr Heads kHeads[] = {{0, 2, 1, 4}, {1, 1, 1, 3}, {5, 4, 2, 8}, {3, 6, 2, 37}, {7, 2, 2, 64}, {261, 4, 4, 16}};

enum class Kind { q, k, v };
Kind kind_of(const Heads& heads, Index head) {
  const Index place = head % heads.of_group();
  return place == heads.of_group() - 1 ? Kind::v : place == heads.of_group() - 2 ? Kind::k : Kind::q;
}
/// A q head's number among the q heads, a k's among the k.
Index number_of(const Heads& heads, Index head) {
  const Index group = head / heads.of_group();
  return kind_of(heads, head) == Kind::q ? head - 2 * group : group;
}
/// visit(row, head, the first of its elements)
template <class Visit>
void for_heads(const Heads& heads, const Visit& visit) {
  for (Index row = 0; row < heads.rows; ++row) {
    for (Index head = 0; head < heads.heads + 2 * heads.kv_heads; ++head)
      visit(row, head, static_cast<std::size_t>(row * heads.columns() + head * heads.head_dim));
  }
}

struct QkNormReference {
  Values out, rstd;
};

/// A norm of the D numbers of each head; gammas [D].
QkNormReference head_norm(const Values& qkv, const Gammas& gammas, const Heads& heads, double eps = 1e-6) {
  QkNormReference want{.out = qkv, .rstd = {}};
  const auto d = static_cast<std::size_t>(heads.head_dim);
  for_heads(heads, [&](Index, Index head, std::size_t at) {
    const Kind kind = kind_of(heads, head);
    if (kind == Kind::v) return;
    double squares = 0;
    for (std::size_t i = 0; i < d; ++i) squares += qkv[at + i] * qkv[at + i];
    want.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(d) + eps));
    for (std::size_t i = 0; i < d; ++i)
      want.out[at + i] *= want.rstd.back() * (kind == Kind::q ? gammas.q : gammas.k)[i];
  });
  return want;
}

/// A norm of all of a row's q, and one of all of its k; gammas [A D] and [G D].
Values whole_norm(const Values& qkv, const Gammas& gammas, const Heads& heads, double eps = 1e-5) {
  Values out = qkv;
  const auto d = static_cast<std::size_t>(heads.head_dim);
  for (const Kind kind : {Kind::q, Kind::k}) {
    const Values& gamma = kind == Kind::q ? gammas.q : gammas.k;
    Values squares(static_cast<std::size_t>(heads.rows), 0.0);
    const auto visit = [&](const auto& use) {
      for_heads(heads, [&](Index row, Index head, std::size_t at) {
        if (kind_of(heads, head) != kind) return;
        const auto weight = static_cast<std::size_t>(number_of(heads, head)) * d;
        for (std::size_t i = 0; i < d; ++i) use(static_cast<std::size_t>(row), at + i, weight + i);
      });
    };
    visit([&](std::size_t row, std::size_t at, std::size_t) { squares[row] += qkv[at] * qkv[at]; });
    visit([&](std::size_t row, std::size_t at, std::size_t weight) {
      out[at] *= gamma[weight] / std::sqrt(squares[row] / static_cast<double>(gamma.size()) + eps);
    });
  }
  return out;
}

/// Columns [first, first + count) of rows of `columns`.
Values slice(const Values& matrix, Index columns, Index first, Index count) {
  Values part;
  for (auto row = matrix.begin(); row != matrix.end(); row += columns)
    part.insert(part.end(), row + first, row + first + count);
  return part;
}
void append(Values& all, const Values& more) { all.insert(all.end(), more.begin(), more.end()); }

class QkNormTest : public QkNormOps {};
MEGALITH_OPS_PRECISIONS(QkNormTest);

void expect_v_is(const Tensor& got, const Values& want, const Heads& heads) {
  const Values values = values_of(got);
  for_heads(heads, [&](Index, Index head, std::size_t at) {
    if (kind_of(heads, head) != Kind::v) return;
    for (std::size_t i = at; i < at + static_cast<std::size_t>(heads.head_dim); ++i) ASSERT_EQ(values[i], want[i]);
  });
}

TEST_P(QkNormTest, PerHead) {
  for (const double eps : {1e-6, 0.5}) {
    for (const Heads& heads : kHeads) {
      const Values qkv = random_values(heads.size(), 1, 4);
      const Gammas gammas = head_gammas(heads);
      const QkHeadNorm args = head_args(heads, qkv, gammas, eps);
      qk_head_norm(ex_, args);
      const QkNormReference want = head_norm(qkv, gammas, heads, eps);
      expect_near(args.out, want.out, "out");
      expect_near(args.rstd, want.rstd, "rstd");
      expect_v_is(args.out, qkv, heads);
    }
  }
}

TEST_P(QkNormTest, PerHeadBackwardEqualsDifferences) {
  for (const Heads& heads : {Heads{1, 1, 1, 3}, Heads{3, 4, 2, 8}, Heads{4, 6, 2, 5}}) {
    const Values qkv = random_values(heads.size(), 1, 2), dout = random_values(heads.size(), 4);
    const Gammas gammas = head_gammas(heads);
    const auto loss = [&](const Values& at, const Gammas& with) {
      return weighted(head_norm(at, with, heads).out, dout);
    };
    const Values dqkv = numeric_gradient(qkv, [&](const Values& at) { return loss(at, gammas); });
    Values dq = numeric_gradient(gammas.q, [&](const Values& at) { return loss(qkv, {at, gammas.k}); });
    Values dk = numeric_gradient(gammas.k, [&](const Values& at) { return loss(qkv, {gammas.q, at}); });
    const QkHeadNorm forward = head_args(heads, qkv, gammas);
    qk_head_norm(ex_, forward);
    const Tensor over_dout = put(forward.qkv.shape(), dout);
    QkHeadNormBackward args = head_backward_args(forward, put(forward.qkv.shape(), dout), empty(forward.qkv.shape()));
    qk_head_norm_backward(ex_, args);
    EXPECT_LT(relative_error(values_of(args.dqkv), dqkv), of_differences());
    expect_v_is(args.dqkv, dout, heads);
    const Values apart = values_of(args.dqkv);
    args.dout = args.dqkv = over_dout;
    qk_head_norm_backward(ex_, args);
    EXPECT_EQ(values_of(over_dout), apart);
    const Values before_q = random_values(heads.head_dim, 8), before_k = random_values(heads.head_dim, 9);
    for (std::size_t i = 0; i < dq.size(); ++i) {  // twice added
      dq[i] = before_q[i] + 2 * dq[i];
      dk[i] = before_k[i] + 2 * dk[i];
    }
    EXPECT_LT(relative_error(values_of(args.gamma_q_grad), dq), of_differences());
    EXPECT_LT(relative_error(values_of(args.gamma_k_grad), dk), of_differences());
  }
}

/// A rank of more tensor-parallel ranks has fewer heads, with the same bits.
TEST_P(QkNormTest, PerHeadBitsAreTheSameForAnyNumberOfHeads) {
  const Heads all{9, 12, 4, 24};
  const Values qkv = random_values(all.size(), 1), dout = random_values(all.size(), 4);
  const Gammas gammas = head_gammas(all);
  const auto run = [&](const Heads& heads, const Values& x, const Values& d) {
    const QkHeadNorm forward = head_args(heads, x, gammas);
    qk_head_norm(ex_, forward);
    const QkHeadNormBackward args =
        head_backward_args(forward, put(forward.qkv.shape(), d), empty(forward.qkv.shape()));
    qk_head_norm_backward(ex_, args);
    return std::array{values_of(forward.out), values_of(forward.rstd), values_of(args.dqkv)};
  };
  const auto want = run(all, qkv, dout);
  for (const Index ranks : {2, 4}) {
    const Heads part{all.rows, all.heads / ranks, all.kv_heads / ranks, all.head_dim};
    const auto cut = [&](const Values& matrix, Index rank) {
      return slice(matrix, all.columns(), rank * part.columns(), part.columns());
    };
    for (Index rank = 0; rank < ranks; ++rank) {
      const auto got = run(part, cut(qkv, rank), cut(dout, rank));
      const Index normed = part.heads + part.kv_heads;
      EXPECT_EQ(got[0], cut(want[0], rank));
      EXPECT_EQ(got[1], slice(want[1], normed * ranks, normed * rank, normed));
      EXPECT_EQ(got[2], cut(want[2], rank));
    }
  }
}

TEST_P(QkNormTest, OverAllHeads) {
  for (const Heads& heads : kHeads) {
    const Values qkv = random_values(heads.size(), 1, 4);
    const Gammas gammas = whole_gammas(heads);
    const QkNorm args = args_of(heads, heads, qkv, gammas);
    square_sums(args);
    qk_norm(ex_, args);
    expect_near(args.out, whole_norm(qkv, gammas, heads), "out");
    expect_v_is(args.out, qkv, heads);
  }
}

TEST_P(QkNormTest, OverAllHeadsTakesItsEps) {
  const Heads heads = kHeads[2];
  const Values qkv = random_values(heads.size(), 1);
  const Gammas gammas = whole_gammas(heads);
  QkNorm args = args_of(heads, heads, qkv, gammas);
  args.eps = 0.5;
  square_sums(args);
  qk_norm(ex_, args);
  expect_near(args.out, whole_norm(qkv, gammas, heads, 0.5), "out");
}

/// Each rank has its heads, and adds the sums of all ranks between two ops: the result is that of one rank, and its
/// derivatives are those by differences.
TEST_P(QkNormTest, OverAllHeadsOfAllRanks) {
  for (const Heads& all : {Heads{3, 8, 4, 6}, Heads{2, 4, 4, 8}, Heads{5, 16, 4, 3}}) {
    const Values qkv = random_values(all.size(), 1, 2), dout = random_values(all.size(), 4);
    const Gammas gammas = whole_gammas(all);
    const Values out = whole_norm(qkv, gammas, all);
    const auto loss = [&](const Values& at, const Gammas& with) { return weighted(whole_norm(at, with, all), dout); };
    const Values dqkv = numeric_gradient(qkv, [&](const Values& at) { return loss(at, gammas); });
    Values dq = numeric_gradient(gammas.q, [&](const Values& at) { return loss(qkv, {at, gammas.k}); });
    Values dk = numeric_gradient(gammas.k, [&](const Values& at) { return loss(qkv, {gammas.q, at}); });
    for (Values* grad : {&dq, &dk}) {
      for (double& value : *grad) value += 1;  // what the gradients held before
    }
    for (const Index ranks : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, head_dim " << all.head_dim);
      const Heads part{all.rows, all.heads / ranks, all.kv_heads / ranks, all.head_dim};
      const auto cut = [&](const Values& matrix, Index rank) {
        return slice(matrix, static_cast<Index>(matrix.size()) / all.rows, rank * part.columns(), part.columns());
      };
      const auto shard = [&](const Values& weights, Index rank) {
        const auto size = static_cast<Index>(weights.size()) / ranks;
        return slice(weights, static_cast<Index>(weights.size()), rank * size, size);
      };
      std::vector<QkNorm> forward;
      std::vector<Tensor> sums;
      for (Index rank = 0; rank < ranks; ++rank) {
        forward.push_back(args_of(part, all, cut(qkv, rank), {shard(gammas.q, rank), shard(gammas.k, rank)}));
        square_sums(forward.back());
        sums.push_back(forward.back().square_sums);
      }
      all_reduce(sums);
      std::vector<QkNormBackward> backward;
      sums.clear();
      for (Index rank = 0; rank < ranks; ++rank) {
        const QkNorm& of_rank = forward[static_cast<std::size_t>(rank)];
        qk_norm(ex_, of_rank);
        expect_near(of_rank.out, cut(out, rank), "out");
        backward.push_back(backward_args(of_rank, put(of_rank.qkv.shape(), cut(dout, rank))));
        backward_sums(backward.back());
        sums.push_back(backward.back().g_xhat_sums);
      }
      all_reduce(sums);
      for (Index rank = 0; rank < ranks; ++rank) {
        QkNormBackward args = backward[static_cast<std::size_t>(rank)];
        qk_norm_backward(ex_, args);
        EXPECT_LT(relative_error(values_of(args.dqkv), cut(dqkv, rank)), of_differences());
        EXPECT_LT(relative_error(values_of(args.gamma_q_grad), shard(dq, rank)), of_differences());
        EXPECT_LT(relative_error(values_of(args.gamma_k_grad), shard(dk, rank)), of_differences());
        expect_v_is(args.dqkv, cut(dout, rank), part);
        const Values apart = values_of(args.dqkv);
        args.dqkv = args.dout;
        qk_norm_backward(ex_, args);
        EXPECT_EQ(values_of(args.dout), apart);
      }
    }
  }
}

TEST_P(QkNormTest, SameBitsForAnyTeam) {
  const Heads heads{300, 6, 3, 20};
  const Values qkv = random_values(heads.size(), 1), dout = random_values(heads.size(), 4);
  expect_same_bits_for_any_team([&] {
    Values all;
    const QkHeadNorm head = head_args(heads, qkv, head_gammas(heads));
    qk_head_norm(ex_, head);
    const QkHeadNormBackward head_back = head_backward_args(head, head.out, head.out);
    append(all, values_of(head.out));
    qk_head_norm_backward(ex_, head_back);
    const QkNorm whole = args_of(heads, heads, qkv, whole_gammas(heads));
    square_sums(whole);
    qk_norm(ex_, whole);
    const QkNormBackward back = backward_args(whole, put(whole.qkv.shape(), dout));
    backward_sums(back);
    qk_norm_backward(ex_, back);
    for (const Tensor& tensor :
         {head.rstd, head_back.dqkv, head_back.gamma_q_grad, head_back.gamma_k_grad, whole.square_sums, whole.out,
          back.g_xhat_sums, back.dqkv, back.gamma_q_grad, back.gamma_k_grad})
      append(all, values_of(tensor));
    return all;
  });
}

/// As of a row of an RMS norm: zeros stay zeros and have 1/sqrt(eps), and a NaN spreads as far as its mean reaches.
TEST_P(QkNormTest, ZerosAndNans) {
  const Heads heads{2, 2, 1, 4};  // a row: q, q, k, v
  Values qkv = random_values(heads.size(), 1);
  std::fill_n(qkv.begin(), 4, 0.0);                         // q 0 of row 0
  qkv[4] = std::numeric_limits<double>::quiet_NaN();        // in q 1 of row 0
  qkv[16 + 12] = std::numeric_limits<double>::quiet_NaN();  // in v of row 1
  const QkHeadNorm head = head_args(heads, qkv, head_gammas(heads));
  qk_head_norm(ex_, head);
  const Values rstd = values_of(head.rstd), out = values_of(head.out);
  EXPECT_NEAR(rstd[0], 1000, 1e-3);
  EXPECT_TRUE(std::isnan(rstd[1]));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool is_nan = (i >= 4 && i < 8) || i == 28;
    EXPECT_EQ(std::isnan(out[i]), is_nan) << i;
    if (i < 4) {
      EXPECT_EQ(out[i], 0);
    }
  }
  const QkNorm whole = args_of(heads, heads, qkv, whole_gammas(heads));
  square_sums(whole);
  qk_norm(ex_, whole);
  const Values of_all = values_of(whole.out);
  for (std::size_t i = 0; i < of_all.size(); ++i) {
    const bool is_nan = i < 8 || i == 28;  // q of row 0, its k not
    EXPECT_EQ(std::isnan(of_all[i]), is_nan) << i;
  }
}

}  // namespace
}  // namespace megalith::ops
