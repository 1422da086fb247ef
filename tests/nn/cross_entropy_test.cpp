#include <cmath>

#include <gtest/gtest.h>

#include "tests/nn/layer_harness.h"

namespace megalith {
namespace {

// Worked case: tp 2, V 4, logits [1, 2 | 3, 4], target 2.
TEST(VocabParallelCrossEntropy, WorkedCaseOfTwoRanks) {
  comm::run_ranks(2, [](comm::World& world) {
    const nn::VocabShard vocab = nn::vocab_shard(4, 4, world.all());
    const nn::VocabParallelCrossEntropy loss(vocab, world.all());
    const int rank = world.rank();
    double z[] = {1.0 + 2 * rank, 2.0 + 2 * rank}, sum = 0;
    std::int32_t target = 2;
    StepState state{.loss_scale = 1};
    const nn::Microbatch microbatch{1, 1, Tensor(&state, {sizeof(state)}, DType::u8)};
    const Tensor logits(z, {1, 2}, DType::f64), targets(&target, {1}, DType::i32), loss_sum(&sum, {1}, DType::f64);
    Exec ex;
    nn::VocabParallelCrossEntropy::Saved saved;
    const Tensor l = loss.forward(ex, microbatch, logits, targets, loss_sum, saved);
    EXPECT_NEAR(l.data<double>()[0], 1.440189699, 1e-9);
    EXPECT_NEAR(sum, 1.440189699, 1e-9);
    EXPECT_NEAR(saved.sums.data<double>()[0], 1.553001793, 1e-9);
    EXPECT_NEAR(saved.sums.data<double>()[1], -1.0, 1e-12);
    const Tensor dz = loss.backward(ex, microbatch, targets, saved);
    const double want[2][2] = {{0.03205860328, 0.08714431874}, {-0.7631171819, 0.6439142599}};
    for (int i = 0; i < 2; ++i) EXPECT_NEAR(dz.data<double>()[i], want[rank][i], 1e-9);
  });
}

}  // namespace
}  // namespace megalith
