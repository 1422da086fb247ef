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
