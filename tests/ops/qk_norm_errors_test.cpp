#include "tests/ops/qk_norms.h"

namespace megalith::ops {
namespace {

class QkNormErrors : public QkNormOps {};
MEGALITH_OPS_PRECISIONS(QkNormErrors);

TEST_P(QkNormErrors, PerHeadNamesWhatDoesNotFit) {
  const QkvHeads heads{3, 4, 2, 5};
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

TEST_P(QkNormErrors, OverAllHeadsNamesWhatDoesNotFit) {
  const QkvHeads heads{3, 4, 2, 5};
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
