#include "megalith/comm/mpi/shared_memory.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "megalith/base/text.h"

namespace megalith::comm {
namespace {

std::filesystem::path path_of(std::uint64_t word) {
  return "/dev/shm/megalith-shared-" + std::to_string(::getuid()) + "-" + hex64(word);
}

class NamedMemory : public testing::Test {
 protected:
  std::random_device random_;
  std::uint64_t word_ = std::uint64_t{random_()} << 32 | random_() | 1;
};

TEST_F(NamedMemory, IsOneMemoryWithoutANameSoon) {
  const auto made = SharedMemory::create(word_, 5000);
  ASSERT_NE(made, nullptr);
  const auto opened = SharedMemory::open(word_, 5000);
  ASSERT_NE(opened, nullptr);
  EXPECT_EQ(SharedMemory::open(word_, 5001), nullptr) << "of another size";
  made->remove_name();
  EXPECT_FALSE(std::filesystem::exists(path_of(word_)));
  EXPECT_EQ(SharedMemory::open(word_, 5000), nullptr);
  std::memcpy(made->memory().get(), "seen", 5);
  EXPECT_STREQ(reinterpret_cast<const char*>(opened->memory().get()), "seen");
}

TEST_F(NamedMemory, OfAKilledProcessIsRemovedByTheNextAndThatOfALivingOneStays) {
  const std::filesystem::path killed = path_of(word_ + 2), living = path_of(word_ + 4);
  std::ofstream(killed) << "x";
  std::ofstream(living) << "x";
  const int held = ::open(living.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  EXPECT_NE(SharedMemory::create(word_, 100), nullptr);
  EXPECT_FALSE(std::filesystem::exists(killed));
  EXPECT_TRUE(std::filesystem::exists(living));
  EXPECT_FALSE(std::filesystem::exists(path_of(word_))) << "its owner has gone";
  ::close(held);
  std::filesystem::remove(living);
}

// Groups make memory at the same time, and each removes what killed processes have left: here the same name again and
// again, so that it is often taken before its maker has locked it.
TEST_F(NamedMemory, IsMadeWhileOthersClean) {
  std::atomic<bool> ends = false;
  std::thread cleans([&] {
    while (!ends) {
      const int fd = ::open(path_of(word_).c_str(), O_RDWR | O_CLOEXEC);
      if (fd < 0) continue;
      struct stat file {};
      if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &file) == 0 && file.st_nlink > 0)
        ::unlink(path_of(word_).c_str());
      ::close(fd);
    }
  });
  int lost = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto made = SharedMemory::create(word_, 1);
    if (made == nullptr || SharedMemory::open(word_, 1) == nullptr) ++lost;
  }
  ends = true;
  cleans.join();
  EXPECT_EQ(lost, 0);
}

}  // namespace
}  // namespace megalith::comm
