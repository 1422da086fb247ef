#include "megalith/checkpoint/state_digest.h"

#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/checkpoint/fixture.h"

namespace megalith::checkpoint {
namespace {

Digest128 digest_whole(std::vector<Global> state) {
  StateDigest digest;
  for (Global& global : state) digest.add_tensor(global.slice(), global.tensor());
  return digest.value();
}

Digest128 digest_parts(std::vector<std::vector<Part>> parts) {
  Digest128 sum;
  for (std::vector<Part>& of_rank : parts) {
    StateDigest digest;
    for (Part& part : of_rank) digest.add_tensor(part.slice, part.tensor());
    sum += digest.value();
  }
  return sum;
}

TEST(StateDigest, EqualForEverySharding) {
  const std::vector<Global> state = random_state(5);
  const Digest128 want = digest_whole(state);
  std::mt19937_64 random(17);
  for (int round = 0; round < 500; ++round) {
    ASSERT_EQ(digest_parts(shard_randomly(state, 1 + round % 8, random)), want) << "round " << round;
  }
}

TEST(StateDigest, LargeTensorEqualForShardsOfAnySize) {  // several blocks of the parallel loop
  std::mt19937_64 random(1);
  const std::vector<Global> state = {random_global("w", DType::f32, {700, 501}, random)};
  const Digest128 want = digest_whole(state);
  for (int round = 0; round < 5; ++round) ASSERT_EQ(digest_parts(shard_randomly(state, 4, random)), want);
}

TEST(StateDigest, AnyChangedBitOfAnyElementIsSeen) {
  std::vector<Global> state = random_state(5);
  std::set<std::string> seen = {digest_whole(state).hex()};
  std::size_t flips = 0;
  for (Global& global : state) {
    for (std::byte& byte : global.values) {
      for (int bit = 0; bit < 8; ++bit) {
        byte ^= std::byte{1} << bit;
        seen.insert(digest_whole({global}).hex());
        byte ^= std::byte{1} << bit;
        ++flips;
      }
    }
  }
  EXPECT_EQ(seen.size(), flips + 1);  // all different, from the original and from one another
}

TEST(StateDigest, SeesNameShapeDtypeAndPlace) {
  std::mt19937_64 random(2);
  const Global a = random_global("a", DType::f32, {4, 6}, random);
  const Digest128 want = digest_whole({a});
  Global b = a;
  b.name = "b";
  EXPECT_NE(digest_whole({b}), want);
  b = a;
  b.shape = {6, 4};
  EXPECT_NE(digest_whole({b}), want);
  b = a;
  b.shape = {24};
  EXPECT_NE(digest_whole({b}), want);
  b = a;
  b.dtype = DType::i32;
  EXPECT_NE(digest_whole({b}), want);
  for (std::size_t i = 0; i + 1 < 24; ++i) {  // two neighbours swapped
    b = a;
    std::swap_ranges(b.values.begin() + static_cast<std::ptrdiff_t>(4 * i),
                     b.values.begin() + static_cast<std::ptrdiff_t>(4 * i + 4),
                     b.values.begin() + static_cast<std::ptrdiff_t>(4 * i + 4));
    EXPECT_NE(digest_whole({b}), want) << i;
  }
}

TEST(StateDigest, ExchangedTensorsAreSeen) {
  std::mt19937_64 random(2);
  Global a = random_global("a", DType::f32, {8}, random), b = random_global("b", DType::f32, {8}, random);
  const Digest128 want = digest_whole({a, b});
  std::swap(a.values, b.values);
  EXPECT_NE(digest_whole({a, b}), want);
}

TEST(StateDigest, ZerosCount) {  // an absent tensor differs from one of zeros
  const Global zeros{"z", DType::f32, {4}, std::vector<std::byte>(16)};
  EXPECT_NE(digest_whole({zeros}), Digest128{});
}

TEST(StateDigest, Scalars) {
  const auto digest = [](auto&& add) {
    StateDigest made;
    add(made);
    return made.value().hex();
  };
  const std::set<std::string> all = {digest([](StateDigest& d) { d.add_integer("step", 1); }),
                                     digest([](StateDigest& d) { d.add_integer("step", 2); }),
                                     digest([](StateDigest& d) { d.add_integer("steps", 1); }),
                                     digest([](StateDigest& d) { d.add_real("step", 1.0); }),
                                     digest([](StateDigest& d) { d.add_real("step", 0.0); }),
                                     digest([](StateDigest& d) { d.add_real("step", -0.0); }),
                                     digest([](StateDigest&) {})};
  EXPECT_EQ(all.size(), 7u);
}

TEST(StateDigest, HexReadsBack) {
  const Digest128 digest = digest_whole(random_state(1));
  EXPECT_EQ(Digest128::from_hex(digest.hex()), digest);
  EXPECT_EQ(Digest128::from_hex("12"), std::nullopt);
}

// Checkpoints hold digests, so a change of the algorithm must be noticed (and would need a new manifest version).
TEST(StateDigest, StaysTheSame) {
  std::vector<float> values = {0.0f, 1.0f, -2.5f, 1e-30f, 3e30f, 0.1f};
  StateDigest digest;
  digest.add_tensor(TensorSlice::whole("golden", {2, 3}), Tensor(values.data(), {2, 3}, DType::f32));
  digest.add_integer("step", 42);
  digest.add_real("scale", 0.5);
  EXPECT_EQ(digest.value().hex(), "b32fa7bd40ed8bb0f78a996f849e3ca0");
}

TEST(StateDigest, RefusesWhatDoesNotFit) {
  std::vector<float> values(6);
  StateDigest digest;
  EXPECT_THROW(digest.add_tensor({"a", {4}, {2}, {3}}, Tensor(values.data(), {3}, DType::f32)), ShapeError);
  EXPECT_THROW(digest.add_tensor({"a", {4}, {0}, {3}}, Tensor(values.data(), {2}, DType::f32)), ShapeError);
}

}  // namespace
}  // namespace megalith::checkpoint
