#include "megalith/ops/argmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

class ArgmaxTest : public OpTest {
 protected:
  /// By shards of `held` columns, whose pairs are then compared.
  std::vector<std::int32_t> by_shards(const Values& logits, Index rows, Index vocab_size, Index shards) {
    const Index columns = static_cast<Index>(logits.size()) / rows, held = columns / shards;
    const Tensor pairs = ex_.tensor({shards * rows, 2}, DType::f64);
    for (Index shard = 0; shard < shards; ++shard) {
      Values own;
      for (Index t = 0; t < rows; ++t) {
        const auto begin = logits.begin() + t * columns + shard * held;
        own.insert(own.end(), begin, begin + held);
      }
      argmax(ex_, {.logits = put({rows, held}, own),
                   .best = pairs.rows(shard * rows, rows),
                   .first_id = shard * held,
                   .vocab_size = vocab_size});
    }
    const Tensor ids = ex_.tensor({rows}, DType::i32);
    argmax_of_shards(ex_, {.best = pairs, .ids = ids});
    const auto found = ids.span<std::int32_t>();
    return {found.begin(), found.end()};
  }
};

TEST_P(ArgmaxTest, FindsTheLargestOfRealColumns) {
  const Values logits = random_values(5 * 12, 3);
  std::vector<std::int32_t> want;
  for (Index t = 0; t < 5; ++t) {
    const auto begin = logits.begin() + t * 12;
    want.push_back(static_cast<std::int32_t>(std::max_element(begin, begin + 10) - begin));
  }
  for (const Index shards : {1, 2, 3, 4, 12}) EXPECT_EQ(by_shards(logits, 5, 10, shards), want) << shards;
}

TEST_P(ArgmaxTest, CountsTheIdsThatAreTheTargets) {
  std::int32_t ids[] = {0, 1, 1, -1, 2, 1}, targets[] = {0, 1, 0, -1, -1, 1};
  double sum = 5;
  const auto count = [&](Index rows) {
    count_matches(ex_, {.ids = Tensor(ids, {rows}, DType::i32),
                        .targets = Tensor(targets, {rows}, DType::i32),
                        .sum = Tensor(&sum, {1}, DType::f64)});
    return sum;
  };
  EXPECT_EQ(count(6), 8) << "an id of -1 matches no target";
  EXPECT_EQ(count(3), 10) << "it adds";
  EXPECT_EQ(count(0), 10);
  EXPECT_EQ(error_text([&] {
              count_matches(ex_, {.ids = Tensor(ids, {6}, DType::i32),
                                  .targets = Tensor(targets, {5}, DType::i32),
                                  .sum = Tensor(&sum, {1}, DType::f64)});
            }),
            "[count_matches.targets] shape = [5]: must be [6]");
}

TEST_P(ArgmaxTest, TiesGoToTheLowerId) {
  const Values logits = {0, 2, 2, 1, 2, 0, kMinusInfinity, kMinusInfinity, kMinusInfinity, 7, 7, 7};
  for (const Index shards : {1, 2, 3, 6})
    EXPECT_EQ(by_shards(logits, 2, 6, shards), (std::vector<std::int32_t>{1, 3})) << shards;
  EXPECT_EQ(by_shards(Values(6, kMinusInfinity), 1, 6, 3), std::vector<std::int32_t>{0});
}

TEST_P(ArgmaxTest, NaNIsNeverTheLargest) {
  const double nan = std::nan("");
  const Values logits = {nan, 1, nan, 2, nan, nan, nan, nan};
  for (const Index shards : {1, 2, 4})
    EXPECT_EQ(by_shards(logits, 2, 4, shards), (std::vector<std::int32_t>{3, -1})) << shards;
}

TEST_P(ArgmaxTest, APairHoldsTheLogit) {
  const Tensor best = ex_.tensor({2, 2}, DType::f64);
  const Tensor logits = put({2, 3}, {0.25, -1, 9, -3, -2, 9});
  argmax(ex_, {.logits = logits, .best = best, .first_id = 40, .vocab_size = 42});
  EXPECT_EQ(values_of(best), (Values{0.25, 40, -2, 41}));
  argmax(ex_, {.logits = logits, .best = best, .first_id = 40, .vocab_size = 30});
  EXPECT_EQ(values_of(best), (Values{kMinusInfinity, -1, kMinusInfinity, -1})) << "padding only";
}

TEST_P(ArgmaxTest, ShapesAreChecked) {
  const Tensor logits = empty({2, 3}), best = ex_.tensor({3, 2}, DType::f64), ids = ex_.tensor({2}, DType::i32);
  EXPECT_EQ(error_text([&] { argmax(ex_, {.logits = logits, .best = best, .vocab_size = 3}); }),
            "[argmax.best] shape = [3, 2]: must be [2, 2]");
  EXPECT_EQ(
      error_text([&] { argmax(ex_, {.logits = logits, .best = best.rows(0, 2), .first_id = -1, .vocab_size = 3}); }),
      "[argmax] first_id, vocab_size = -1, 3: first_id must be at least 0, vocab_size at least 1");
  EXPECT_EQ(error_text([&] { argmax_of_shards(ex_, {.best = best, .ids = ids}); }),
            "[argmax_of_shards.best] pairs = 3: must be a positive multiple of the 2 rows");
}

MEGALITH_OPS_PRECISIONS(ArgmaxTest);

}  // namespace
}  // namespace megalith::ops
