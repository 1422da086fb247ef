#include "megalith/ops/qk_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct Heads {
  Index rows, heads, kv_heads, head_dim;
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
  Index of_group() const { return heads / kv_heads + 2; }
  Index size() const { return rows * columns(); }
  Index q_columns() const { return heads * head_dim; }
  Index k_columns() const { return kv_heads * head_dim; }
};
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

struct Gammas {
  Values q, k;
};
struct Reference {
  Values out, rstd;
};

/// Of the D numbers of each head; gammas [D].
Reference head_norm(const Values& qkv, const Gammas& gammas, const Heads& heads, double eps = 1e-6) {
  Reference want{.out = qkv, .rstd = {}};
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

/// Of all of a row's q, and of all of its k; gammas [A D] and [G D].
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

double weighted(const Values& y, const Values& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
  return sum;
}

/// Columns [first, first + count) of rows of `columns`.
Values slice(const Values& matrix, Index columns, Index first, Index count) {
  Values part;
  for (auto row = matrix.begin(); row != matrix.end(); row += columns)
    part.insert(part.end(), row + first, row + first + count);
  return part;
}
void append(Values& all, const Values& more) { all.insert(all.end(), more.begin(), more.end()); }

class QkNormTest : public OpTest {
 protected:
  QkHeadNorm head_args(const Heads& heads, const Values& qkv, const Gammas& gammas, double eps = 1e-6) {
    return {.qkv = put({heads.rows, heads.columns()}, qkv),
            .gamma_q = put({heads.head_dim}, gammas.q),
            .gamma_k = put({heads.head_dim}, gammas.k),
            .out = empty({heads.rows, heads.columns()}),
            .rstd = empty({heads.rows, heads.heads + heads.kv_heads}),
            .num_heads = heads.heads,
            .num_kv_heads = heads.kv_heads,
            .eps = eps};
  }
  QkHeadNormBackward head_backward_args(const QkHeadNorm& forward, const Tensor& dout, const Tensor& dqkv) {
    const Index d = forward.gamma_q.dim(0);
    return {.dout = dout,
            .qkv = forward.qkv,
            .gamma_q = forward.gamma_q,
            .gamma_k = forward.gamma_k,
            .rstd = forward.rstd,
            .dqkv = dqkv,
            .gamma_q_grad = put({d}, random_values(d, 8)),
            .gamma_k_grad = put({d}, random_values(d, 9)),
            .num_heads = forward.num_heads,
            .num_kv_heads = forward.num_kv_heads};
  }
  /// `total`: the heads of all ranks.
  QkNorm args_of(const Heads& heads, const Heads& total, const Values& qkv, const Gammas& gammas) {
    return {.qkv = put({heads.rows, heads.columns()}, qkv),
            .square_sums = empty({heads.rows, 2}),
            .gamma_q = put({heads.q_columns()}, gammas.q),
            .gamma_k = put({heads.k_columns()}, gammas.k),
            .out = empty({heads.rows, heads.columns()}),
            .num_heads = heads.heads,
            .num_kv_heads = heads.kv_heads,
            .total_num_heads = total.heads,
            .total_num_kv_heads = total.kv_heads};
  }
  QkNormBackward backward_args(const QkNorm& forward, const Tensor& dout) {
    const Index q = forward.gamma_q.dim(0), k = forward.gamma_k.dim(0);
    return {.dout = dout,
            .qkv = forward.qkv,
            .square_sums = forward.square_sums,
            .g_xhat_sums = empty(forward.square_sums.shape()),
            .gamma_q = forward.gamma_q,
            .gamma_k = forward.gamma_k,
            .dqkv = empty(forward.qkv.shape()),
            .gamma_q_grad = put({q}, Values(static_cast<std::size_t>(q), 1.0)),
            .gamma_k_grad = put({k}, Values(static_cast<std::size_t>(k), 1.0)),
            .num_heads = forward.num_heads,
            .num_kv_heads = forward.num_kv_heads,
            .total_num_heads = forward.total_num_heads,
            .total_num_kv_heads = forward.total_num_kv_heads};
  }
  void square_sums(const QkNorm& args) {
    qk_square_sums(ex_, {.qkv = args.qkv,
                         .square_sums = args.square_sums,
                         .num_heads = args.num_heads,
                         .num_kv_heads = args.num_kv_heads});
  }
  void backward_sums(const QkNormBackward& args) {
    qk_norm_backward_sums(ex_, {.dout = args.dout,
                                .qkv = args.qkv,
                                .square_sums = args.square_sums,
                                .gamma_q = args.gamma_q,
                                .gamma_k = args.gamma_k,
                                .g_xhat_sums = args.g_xhat_sums,
                                .num_heads = args.num_heads,
                                .num_kv_heads = args.num_kv_heads,
                                .total_num_heads = args.total_num_heads,
                                .total_num_kv_heads = args.total_num_kv_heads});
  }
  /// What an all-reduce does to the tensors of some ranks.
  void all_reduce(const std::vector<Tensor>& of_ranks) {
    const Tensor sum = put(of_ranks[0].shape(), Values(static_cast<std::size_t>(of_ranks[0].numel()), 0.0));
    for (const Tensor& tensor : of_ranks) add(ex_, sum, tensor, sum);
    for (const Tensor& tensor : of_ranks) ex_.copy(tensor.raw(), sum.raw(), sum.bytes());
  }
  double of_differences() const { return dtype() == DType::f32 ? 1e-5 : 1e-8; }
};
MEGALITH_OPS_PRECISIONS(QkNormTest);

Gammas head_gammas(const Heads& heads) { return {random_values(heads.head_dim, 2), random_values(heads.head_dim, 3)}; }
Gammas whole_gammas(const Heads& heads) {
  return {random_values(heads.q_columns(), 2), random_values(heads.k_columns(), 3)};
}

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
      const Reference want = head_norm(qkv, gammas, heads, eps);
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

TEST_P(QkNormTest, PerHeadNamesWhatDoesNotFit) {
  const Heads heads{3, 4, 2, 5};
  const QkHeadNorm good = head_args(heads, random_values(heads.size(), 1), head_gammas(heads));
  const QkHeadNormBackward good_back = head_backward_args(good, good.out, good.out);
  const auto error = [&](const auto& change) {
    QkHeadNorm args = good;
    change(args);
    return error_text([&] { qk_head_norm(ex_, args); });
  };
  const auto back_error = [&](const auto& change) {
    QkHeadNormBackward args = good_back;
    change(args);
    return error_text([&] { qk_head_norm_backward(ex_, args); });
  };
  const Tensor six = empty({6}), narrow = empty({3, 39}), ids = ex_.tensor({3, 40}, DType::i32);
  const auto heads_of = [](Index num_heads, Index num_kv_heads) {
    return [=](auto& args) {
      args.num_heads = num_heads;
      args.num_kv_heads = num_kv_heads;
    };
  };
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_EQ(back_error([](auto&) {}), "");
  EXPECT_EQ(error(heads_of(3, 2)),
            "[qk_head_norm] num_heads, num_kv_heads = 3, 2: both must be at least 1, and num_heads a multiple of "
            "num_kv_heads");
  EXPECT_EQ(back_error(heads_of(2, 0)),
            "[qk_head_norm_backward] num_heads, num_kv_heads = 2, 0: both must be at least 1, and num_heads a multiple "
            "of num_kv_heads");
  EXPECT_EQ(error(heads_of(3, 3)),
            "[qk_head_norm.qkv] columns = 40: must be a positive multiple of num_heads + 2 num_kv_heads = 9");
  EXPECT_EQ(error([&](auto& args) {
              args.qkv = empty({3, 0});
            }),
            "[qk_head_norm.qkv] columns = 0: must be a positive multiple of num_heads + 2 num_kv_heads = 8");
  EXPECT_EQ(error([&](auto& args) { args.qkv = six; }), "[qk_head_norm.qkv] shape = [6]: must have 2 dimensions");
  EXPECT_EQ(error([&](auto& args) { args.qkv = ids; }),
            "[qk_head_norm] dtype = i32: needs f64, f32, bf16 or f16 on the CPU");
  EXPECT_EQ(error([&](auto& args) { args.gamma_q = six; }), "[qk_head_norm.gamma_q] shape = [6]: must be [5]");
  EXPECT_EQ(error([&](auto& args) { args.gamma_k = six; }), "[qk_head_norm.gamma_k] shape = [6]: must be [5]");
  EXPECT_EQ(error([&](auto& args) { args.out = narrow; }), "[qk_head_norm.out] shape = [3, 39]: must be [3, 40]");
  EXPECT_EQ(error([&](auto& args) { args.rstd = narrow; }), "[qk_head_norm.rstd] shape = [3, 39]: must be [3, 6]");
  EXPECT_EQ(back_error([&](auto& args) { args.dout = narrow; }),
            "[qk_head_norm_backward.dout] shape = [3, 39]: must be [3, 40]");
  EXPECT_EQ(back_error([&](auto& args) { args.gamma_q = six; }),
            "[qk_head_norm_backward.gamma_q] shape = [6]: must be [5]");
  EXPECT_EQ(back_error([&](auto& args) { args.gamma_k = six; }),
            "[qk_head_norm_backward.gamma_k] shape = [6]: must be [5]");
  EXPECT_EQ(back_error([&](auto& args) { args.rstd = narrow; }),
            "[qk_head_norm_backward.rstd] shape = [3, 39]: must be [3, 6]");
  EXPECT_EQ(back_error([&](auto& args) { args.dqkv = {}; }),
            "[qk_head_norm_backward.dqkv] there is no tensor: must have shape [3, 40]");
  EXPECT_EQ(back_error([&](auto& args) { args.gamma_q_grad = six; }),
            "[qk_head_norm_backward.gamma_q_grad] shape = [6]: must be [5]");
  EXPECT_EQ(back_error([&](auto& args) { args.gamma_k_grad = six; }),
            "[qk_head_norm_backward.gamma_k_grad] shape = [6]: must be [5]");
}

TEST_P(QkNormTest, OverAllHeadsNamesWhatDoesNotFit) {
  const Heads heads{3, 4, 2, 5};
  const QkNorm good = args_of(heads, heads, random_values(heads.size(), 1), whole_gammas(heads));
  const QkNormBackward good_back = backward_args(good, good.out);
  const Tensor six = empty({6}), narrow = empty({3, 39});
  const auto error = [&](const auto& change) {
    QkNorm args = good;
    change(args);
    return error_text([&] { qk_norm(ex_, args); });
  };
  const auto sums_error = [&](const auto& change) {
    QkNormBackward args = good_back;
    change(args);
    return error_text([&] { backward_sums(args); });
  };
  const auto back_error = [&](const auto& change) {
    QkNormBackward args = good_back;
    change(args);
    return error_text([&] { qk_norm_backward(ex_, args); });
  };
  const auto squares_error = [&](const Tensor& qkv, const Tensor& sums, Index num_heads) {
    return error_text(
        [&] { qk_square_sums(ex_, {.qkv = qkv, .square_sums = sums, .num_heads = num_heads, .num_kv_heads = 2}); });
  };
  EXPECT_EQ(squares_error(good.qkv, good.square_sums, 3),
            "[qk_square_sums] num_heads, num_kv_heads = 3, 2: both must be at least 1, and num_heads a multiple of "
            "num_kv_heads");
  EXPECT_EQ(squares_error(narrow, good.square_sums, 4),
            "[qk_square_sums.qkv] columns = 39: must be a positive multiple of num_heads + 2 num_kv_heads = 8");
  EXPECT_EQ(squares_error(good.qkv, six, 4), "[qk_square_sums.square_sums] shape = [6]: must be [3, 2]");
  EXPECT_EQ(squares_error(good.qkv, good.square_sums, 4), "");
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_EQ(error([](auto& args) { args.total_num_heads = 3; }),
            "[qk_norm] total_num_heads, total_num_kv_heads = 3, 2: must be at least num_heads, num_kv_heads = 4, 2");
  EXPECT_EQ(error([&](auto& args) { args.square_sums = six; }), "[qk_norm.square_sums] shape = [6]: must be [3, 2]");
  EXPECT_EQ(error([&](auto& args) { args.gamma_q = six; }), "[qk_norm.gamma_q] shape = [6]: must be [20]");
  EXPECT_EQ(error([&](auto& args) { args.gamma_k = six; }), "[qk_norm.gamma_k] shape = [6]: must be [10]");
  EXPECT_EQ(error([&](auto& args) { args.out = narrow; }), "[qk_norm.out] shape = [3, 39]: must be [3, 40]");
  EXPECT_EQ(error([&](auto& args) { args.num_heads = 5; }),
            "[qk_norm] num_heads, num_kv_heads = 5, 2: both must be at least 1, and num_heads a multiple of "
            "num_kv_heads");
  EXPECT_EQ(sums_error([](auto&) {}), "");
  EXPECT_EQ(sums_error([](auto& args) { args.total_num_kv_heads = 1; }),
            "[qk_norm_backward_sums] total_num_heads, total_num_kv_heads = 4, 1: must be at least num_heads, "
            "num_kv_heads = 4, 2");
  EXPECT_EQ(sums_error([&](auto& args) { args.qkv = narrow; }),
            "[qk_norm_backward_sums.qkv] columns = 39: must be a positive multiple of num_heads + 2 num_kv_heads = 8");
  EXPECT_EQ(sums_error([&](auto& args) { args.dout = narrow; }),
            "[qk_norm_backward_sums.dout] shape = [3, 39]: must be [3, 40]");
  EXPECT_EQ(sums_error([&](auto& args) { args.square_sums = six; }),
            "[qk_norm_backward_sums.square_sums] shape = [6]: must be [3, 2]");
  EXPECT_EQ(sums_error([&](auto& args) { args.gamma_q = six; }),
            "[qk_norm_backward_sums.gamma_q] shape = [6]: must be [20]");
  EXPECT_EQ(sums_error([&](auto& args) { args.gamma_k = six; }),
            "[qk_norm_backward_sums.gamma_k] shape = [6]: must be [10]");
  EXPECT_EQ(sums_error([&](auto& args) { args.g_xhat_sums = six; }),
            "[qk_norm_backward_sums.g_xhat_sums] shape = [6]: must be [3, 2]");
  EXPECT_EQ(back_error([](auto&) {}), "");
  EXPECT_EQ(back_error([](auto& args) { args.total_num_heads = 0; }),
            "[qk_norm_backward] total_num_heads, total_num_kv_heads = 0, 2: must be at least num_heads, num_kv_heads = "
            "4, 2");
  EXPECT_EQ(back_error([&](auto& args) { args.dout = narrow; }),
            "[qk_norm_backward.dout] shape = [3, 39]: must be [3, 40]");
  EXPECT_EQ(back_error([&](auto& args) { args.square_sums = six; }),
            "[qk_norm_backward.square_sums] shape = [6]: must be [3, 2]");
  EXPECT_EQ(back_error([&](auto& args) { args.g_xhat_sums = six; }),
            "[qk_norm_backward.g_xhat_sums] shape = [6]: must be [3, 2]");
  EXPECT_EQ(back_error([&](auto& args) { args.gamma_q = six; }),
            "[qk_norm_backward.gamma_q] shape = [6]: must be [20]");
  EXPECT_EQ(back_error([&](auto& args) { args.gamma_k = six; }),
            "[qk_norm_backward.gamma_k] shape = [6]: must be [10]");
  EXPECT_EQ(back_error([&](auto& args) { args.dqkv = narrow; }),
            "[qk_norm_backward.dqkv] shape = [3, 39]: must be [3, 40]");
  EXPECT_EQ(back_error([&](auto& args) { args.gamma_q_grad = six; }),
            "[qk_norm_backward.gamma_q_grad] shape = [6]: must be [20]");
  EXPECT_EQ(back_error([&](auto& args) { args.gamma_k_grad = six; }),
            "[qk_norm_backward.gamma_k_grad] shape = [6]: must be [10]");
}

}  // namespace
}  // namespace megalith::ops
