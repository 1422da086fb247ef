#include "megalith/ops/embedding.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

constexpr Index kVocab = 11, kHeld = 4, kFirst = 4;  // this rank holds ids 4..7

class EmbeddingTest : public OpTest {};
MEGALITH_OPS_PRECISIONS(EmbeddingTest);

TEST_P(EmbeddingTest, LooksUpWhatItHoldsAndAddsItsGradient) {
  for (const Index hidden : {Index{1}, Index{7}, Index{130}}) {
    const std::vector<std::int32_t> ids{4, 0, 7, 7, 10, 5, 7};
    const Values table = random_values(kHeld * hidden, 1), dy = random_values(7 * hidden, 2),
                 start = random_values(kHeld * hidden, 3);
    Values want(static_cast<std::size_t>(7 * hidden), 0.0), grad = start;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const Index row = ids[i / static_cast<std::size_t>(hidden)] - kFirst;
      if (row < 0 || row >= kHeld) continue;
      const auto at = static_cast<std::size_t>(row * hidden) + i % static_cast<std::size_t>(hidden);
      want[i] = table[at];
      grad[at] += dy[i];
    }
    const Tensor y = empty({7, hidden}), table_grad = put({kHeld, hidden}, start), t_ids = put_ids(ids);
    embedding_forward(
        ex_, {.ids = t_ids, .table = put({kHeld, hidden}, table), .y = y, .first_id = kFirst, .vocab_size = kVocab});
    EXPECT_EQ(values_of(y), want);
    embedding_backward(ex_, {.ids = t_ids, .dy = put({7, hidden}, dy), .table_grad = table_grad, .first_id = kFirst});
    expect_near(table_grad, grad, "table gradient");
  }
}

TEST_P(EmbeddingTest, NoTokens) {
  const Tensor y = empty({0, 5}), table = put({kHeld, 5}, random_values(kHeld * 5, 1));
  embedding_forward(ex_, {.ids = put_ids({}), .table = table, .y = y, .first_id = 0, .vocab_size = kVocab});
  const Values before = values_of(table);
  embedding_backward(ex_, {.ids = put_ids({}), .dy = y, .table_grad = table, .first_id = 0});
  EXPECT_EQ(values_of(table), before);
}

TEST_P(EmbeddingTest, NamesTheIdOutsideTheVocabulary) {
  const Tensor table = empty({kHeld, 5}), y = empty({3, 5});
  const auto look_up = [&](std::int32_t id) {
    return error_text([&] {
      embedding_forward(ex_, {.ids = put_ids({1, id, 2}), .table = table, .y = y, .first_id = 0, .vocab_size = kVocab});
    });
  };
  EXPECT_EQ(look_up(11), "[embedding] ids[1] = 11: must be in [0, 11), the vocabulary");
  EXPECT_EQ(look_up(-1), "[embedding] ids[1] = -1: must be in [0, 11), the vocabulary");
}

TEST_P(EmbeddingTest, PositionGradientAddsOverSamples) {
  const Index batch = 3, seq_len = 5, hidden = 9;
  const Values dy = random_values(batch * seq_len * hidden, 1), start = random_values(seq_len * hidden, 2);
  Values want = start;
  for (std::size_t i = 0; i < dy.size(); ++i) want[i % want.size()] += dy[i];
  const Tensor grad = put({seq_len, hidden}, start);
  position_backward(ex_, put({batch * seq_len, hidden}, dy), grad);
  expect_near(grad, want, "position gradient");
}

TEST_P(EmbeddingTest, SameBitsForAnyTeam) {
  const Index tokens = 512, hidden = 100, seq_len = 128;
  std::vector<std::int32_t> ids;
  for (Index t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(t * t % kVocab));
  expect_same_bits_for_any_team([&] {
    const Tensor dy = put({tokens, hidden}, random_values(tokens * hidden, 1)),
                 grad = put({kVocab, hidden}, random_values(kVocab * hidden, 2));
    const Tensor position_grad = put({seq_len, hidden}, random_values(seq_len * hidden, 3));
    embedding_backward(ex_, {.ids = put_ids(ids), .dy = dy, .table_grad = grad, .first_id = 0});
    position_backward(ex_, dy, position_grad);
    Values all = values_of(grad);
    const Values more = values_of(position_grad);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

TEST_P(EmbeddingTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor x = empty({6, 4}), position = empty({4, 4});
  EXPECT_EQ(error_text([&] {
              add_position(ex_, {.x = x, .position = empty({0, 4}), .y = x, .dropout = {}});
            }),
            "[add_position.position] has no rows: x has 6");
  const Tensor position_grad(nullptr, {4, 4}, statistics_dtype(dtype()));
  EXPECT_EQ(error_text([&] { position_backward(ex_, x, position_grad); }),
            "[position_backward.dy] rows = 6: must be a multiple of the 4 positions");
  EXPECT_EQ(error_text([&] { embedding_forward(ex_, {.ids = put({6}, Values(6, 0)), .table = position, .y = x}); }),
            "[embedding.ids] dtype = " + std::string(name_of(dtype())) + ": must be i32");
}

}  // namespace
}  // namespace megalith::ops
