#include "megalith/checkpoint/difference.h"

#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/checkpoint/fixture.h"
#include "tests/io/temp_dir.h"

namespace megalith::checkpoint {
namespace {

using Kind = TensorDifference::Kind;

class Differences : public testing::Test {
 protected:
  io::Path save(const std::string& name, const std::vector<Global>& state, int ranks) {
    const io::StepFolder folder = save_checkpoint(*fs_, dir_ / name, 5, state, ranks);
    return dir_ / name / folder.name();
  }
  std::map<std::string, TensorDifference> compared(const std::vector<Global>& a, const std::vector<Global>& b) {
    ++round_;
    CheckpointReader left(*fs_, save("a" + std::to_string(round_), a, 3));
    CheckpointReader right(*fs_, save("b" + std::to_string(round_), b, 2));
    std::map<std::string, TensorDifference> found;
    compare_tensors(left, right, [&](const TensorDifference& tensor) {
      TensorDifference kept = tensor;
      kept.a = kept.b = nullptr;  // they end with the readers
      found.emplace(tensor.name, kept);
    });
    return found;
  }
  static Global numbers(const std::string& name, const std::vector<float>& values, const Shape& shape) {
    Global made{name, DType::f32, shape, {}};
    made.values.resize(values.size() * sizeof(float));
    std::memcpy(made.values.data(), values.data(), made.values.size());
    return made;
  }

  const std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  const TempDir dir_;
  int round_ = 0;
};

TEST_F(Differences, EveryDtypeIsEqualOnOtherGrids) {
  const auto found = compared(random_state(1), random_state(1));
  EXPECT_EQ(found.size(), random_state(1).size());
  for (const auto& [name, tensor] : found) EXPECT_EQ(tensor.kind, Kind::equal) << name;
}

TEST_F(Differences, OneFlippedBitIsFoundInEveryDtype) {
  for (std::size_t i = 0; i < random_state(1).size(); ++i) {
    std::vector<Global> other = random_state(1);
    other[i].values.back() ^= std::byte{1};
    const auto found = compared(random_state(1), other);
    for (const auto& [name, tensor] : found)
      EXPECT_EQ(tensor.kind, name == other[i].name ? Kind::values : Kind::equal) << other[i].name << ", " << name;
    EXPECT_EQ(found.at(other[i].name).different, 1);
  }
}

TEST_F(Differences, TheLargestDifferenceHasItsIndexAndValues) {
  const auto found =
      compared({numbers("w", {1, 2, 3, 4, -8, 6}, {2, 3})}, {numbers("w", {1, 2.5, 3, 4, -8, 7}, {2, 3})});
  const TensorDifference& w = found.at("w");
  EXPECT_EQ(w.different, 2);
  EXPECT_EQ(w.largest, 1);
  EXPECT_EQ(w.at[0], 1);
  EXPECT_EQ(w.at[1], 2);
  EXPECT_EQ(w.value_a, 6);
  EXPECT_EQ(w.value_b, 7);
  EXPECT_EQ(w.scale, 8);
  EXPECT_TRUE(w.is_within(0.125));
  EXPECT_FALSE(w.is_within(0.124));
}

TEST_F(Differences, WhatIsNoNumberOnOneSideIsTheLargestDifference) {
  const float nan = std::nanf(""), inf = HUGE_VALF;
  const auto found = compared({numbers("n", {nan, 1, nan, 5}, {4}), numbers("z", {0.F, inf}, {2})},
                              {numbers("n", {nan, 9, 2, 50}, {4}), numbers("z", {-0.F, inf}, {2})});
  const TensorDifference& n = found.at("n");
  EXPECT_EQ(n.different, 3) << "NaN on both sides is equal";
  EXPECT_TRUE(std::isnan(n.largest));
  EXPECT_EQ(n.at[0], 2);
  EXPECT_FALSE(n.is_within(1e9));
  const TensorDifference& z = found.at("z");
  EXPECT_EQ(z.kind, Kind::values) << "the state digest tells -0 from 0, too";
  EXPECT_TRUE(z.is_within(0));
}

TEST_F(Differences, OtherNamesAndShapesAreNamed) {
  const auto found = compared({numbers("both", {1, 2}, {2}), numbers("mine", {1}, {1})},
                              {numbers("both", {1, 2}, {2, 1}), numbers("theirs", {1}, {1})});
  EXPECT_EQ(found.at("both").kind, Kind::shape);
  EXPECT_EQ(found.at("mine").kind, Kind::only_in_a);
  EXPECT_EQ(found.at("theirs").kind, Kind::only_in_b);
}

TEST_F(Differences, TheMeanIsRoundedOnce) {
  std::vector<std::unique_ptr<CheckpointReader>> readers;
  for (const float value : {1.F, 2.F, 4.F}) {
    const io::Path folder = save("mean" + std::to_string(value), {numbers("w", {value, 0, -value}, {3})}, 2);
    readers.push_back(std::make_unique<CheckpointReader>(*fs_, folder));
  }
  std::array<float, 3> mean{};
  read_mean(readers, TensorSlice::whole("w", {3}), Tensor(mean.data(), {3}, DType::f32));
  EXPECT_THAT(mean, testing::ElementsAre(static_cast<float>(7.0 / 3), 0.F, static_cast<float>(-7.0 / 3)));
}

TEST_F(Differences, DamageIsAnErrorThatNamesTheTensor) {
  const io::Path a = save("a", random_state(1), 1), b = save("b", random_state(1), 1);
  const io::Path file = b / shard_file_name(0);
  std::string bytes = read_all(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_all(file, bytes);
  CheckpointReader left(*fs_, a), right(*fs_, b);
  EXPECT_THROW(compare_tensors(left, right, [](const TensorDifference&) {}), InputError);
}

}  // namespace
}  // namespace megalith::checkpoint
