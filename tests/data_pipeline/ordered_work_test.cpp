#include "megalith/data/ordered_work.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"

namespace megalith::data {
namespace {

/// Numbers 0 .. count - 1.
auto counter(int count) {
  return [count, at = 0]() mutable -> std::optional<int> { return at < count ? std::optional(at++) : std::nullopt; };
}

TEST(OrderedWork, WritesInOrderWhateverAThreadTakes) {
  for (const int threads : {1, 2, 7}) {
    std::vector<int> got;
    const auto make_worker = [] {
      return [](int block, int& result) {
        std::this_thread::sleep_for(
            std::chrono::microseconds(RandomSite{}.word(static_cast<std::uint64_t>(block)) % 300));
        result = 3 * block;
      };
    };
    work_in_order<int>(threads, counter(400), make_worker, [&](int result) { got.push_back(result); });
    ASSERT_EQ(got.size(), 400u);
    for (int i = 0; i < 400; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], 3 * i) << threads << " threads";
  }
}

/// A block that says how large it is.
struct SizedBlock {
  int number = 0;
  std::size_t bytes = 0;
};
std::size_t held_bytes(const SizedBlock& block) { return block.bytes; }

TEST(OrderedWork, OneLargeBlockAtATimeIsWorkedOn) {
  constexpr std::size_t kLarge = std::size_t{5} << 20;
  for (const int threads : {1, 2, 7}) {
    std::atomic<int> large_now = 0, most = 0;
    std::vector<int> got;
    const auto next = [at = 0]() mutable -> std::optional<SizedBlock> {
      if (at == 300) return std::nullopt;
      ++at;
      return SizedBlock{at - 1, RandomSite{}.word(static_cast<std::uint64_t>(at)) % 3 == 0 ? kLarge : 100};
    };
    const auto make_worker = [&] {
      return [&, kept = std::string()](const SizedBlock& block, std::string& result) mutable {
        EXPECT_LT(kept.capacity(), kLarge) << "the memory of a large block is given back";
        EXPECT_LT(result.capacity(), kLarge);
        if (block.bytes == kLarge) most = std::max(most.load(), ++large_now);
        std::this_thread::sleep_for(std::chrono::microseconds(block.number % 7 * 20));
        result = std::to_string(block.number);
        if (block.bytes == kLarge) {
          kept.reserve(kLarge);
          result.reserve(kLarge);
        }
      };
    };
    work_in_order<std::string>(threads, next, make_worker, [&](const std::string& result) {
      if (result.capacity() >= kLarge) --large_now;
      got.push_back(std::stoi(result));
    });
    ASSERT_EQ(got.size(), 300u);
    for (int i = 0; i < 300; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], i) << threads << " threads";
    EXPECT_EQ(most, 1) << threads << " threads";
  }
}

TEST(OrderedWork, AWorkerThatCannotBeMadeIsAFailure) {
  for (const int threads : {1, 4}) {
    std::atomic<int> made = 0;
    const auto make_worker = [&] {
      if (++made == threads) throw std::bad_alloc();
      return [](int block, int& result) { result = block; };
    };
    EXPECT_THROW(work_in_order<int>(threads, counter(100'000), make_worker, [](int) {}), std::bad_alloc) << threads;
  }
}

/// Waits until `reached` is at least `wanted`; false after ten seconds.
bool wait_for(const std::atomic<int>& reached, int wanted) {
  for (int i = 0; i < 10000 && reached < wanted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return reached >= wanted;
}

TEST(OrderedWork, AThreadWorksOnWhileAnotherWritesOrIsSlow) {
  std::atomic<int> worked = 0;
  bool went_on = true;
  const auto make_worker = [&] {
    return [&](int block, int& result) {
      if (block == 20) went_on = wait_for(worked, 22) && went_on;  // 0 to 19, 21 and 22
      result = block;
      ++worked;
    };
  };
  work_in_order<int>(2, counter(40), make_worker, [&](int result) {
    if (result == 0) went_on = wait_for(worked, 3) && went_on;
  });
  EXPECT_TRUE(went_on);
  EXPECT_EQ(worked, 40);
}

TEST(OrderedWork, ThrowsTheFailureThatIsFirstInTheOrder) {
  for (const int threads : {1, 2, 7})
    for (const std::string at : {"next", "work", "write"}) {
      int written = 0;
      const auto next = [&, count = counter(100)]() mutable {
        const auto block = count();
        if (at == "next" && block == 30) throw InputError("30");
        return block;
      };
      const auto make_worker = [&] {
        return [&](int block, int& result) {
          result = block;
          if (block == 30) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          if (block > 30 || (at == "work" && block == 30)) throw InputError(str(block));
        };
      };
      const auto write = [&](int result) {
        if (at == "write" && result == 30) throw InputError("30");
        ++written;
      };
      try {
        work_in_order<int>(threads, next, make_worker, write);
        ADD_FAILURE() << "must throw";
      } catch (const InputError& error) {
        EXPECT_STREQ(error.what(), "30") << at << ", " << threads << " threads";
      }
      EXPECT_EQ(written, 30) << at << ", " << threads << " threads";
    }
}

}  // namespace
}  // namespace megalith::data
