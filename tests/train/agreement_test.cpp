#include "megalith/train/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/io/temp_dir.h"

namespace megalith::train {
namespace {

/// The error that all of three ranks come to, or "".
std::string refusal(const std::function<Facts(int rank)>& facts_of_rank, Start start = Start::fresh) {
  std::vector<std::string> texts(3);
  comm::run_ranks(3, [&](comm::World& world) {
    std::string& text = texts[static_cast<std::size_t>(world.rank())];
    try {
      require_same(world, facts_of_rank(world.rank()), start);
    } catch (const Error& error) {
      text = str(static_cast<int>(error.code()), ' ', error.what());
    }
  });
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
  return texts[0];
}

TEST(Agreement, SameFactsPass) {
  EXPECT_EQ(refusal([](int) { return Facts{{"a", "1"}, {"b", ""}}; }), "");
  EXPECT_EQ(refusal([](int) { return Facts(); }), "");
}

TEST(Agreement, EveryDifferenceIsNamedWithItsRanksAndBothValues) {
  const auto differ = [](int rank) {
    Facts facts = {{"same", "0"}, {"lr", rank == 2 ? "0.01" : "0.1"}, {"seed", rank == 0 ? "1" : "2"}};
    if (rank == 1) facts.emplace_back("extra", "yes");
    return facts;
  };
  const std::string text =
      "ranks were started with different settings; all must have the same:\n"
      "  lr = 0.01 on rank 2, 0.1 on rank 0\n"
      "  seed = 2 on rank 1, rank 2, 1 on rank 0\n"
      "  extra = yes on rank 1, unset on rank 0";
  EXPECT_EQ(refusal(differ), "64 " + text);
  EXPECT_EQ(refusal(differ, Start::resumed), "66 " + text);
}

TEST(Agreement, OfManyDifferencesTheFirstAreNamed) {
  const std::string text = refusal([](int rank) {
    Facts facts;
    for (int i = 0; i < 20; ++i) facts.emplace_back(str("key", i), str(rank / 2));
    return facts;
  });
  EXPECT_THAT(text, ::testing::HasSubstr("key7 = 1 on rank 2, 0 on rank 0\n  and 12 more"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("key8")));
}

TEST(Agreement, AFolderOfItsOwnIsRefused) {
  const TempDir one, other;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const auto see = [&](const io::Path& of_last) {
    comm::run_ranks(
        3, [&](comm::World& world) { require_shared(world, *fs, world.rank() == 2 ? of_last : one.path(), "--out"); });
  };
  see(one.path());
  try {
    see(other.path());
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith(str("--out = ", other.path().string(), ": rank 2 on ")));
  }
  EXPECT_TRUE(fs->list(one.path()).empty());
}

}  // namespace
}  // namespace megalith::train
