#include "megalith/comm/mpi/shared_memory.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "megalith/base/text.h"

namespace megalith::comm {
namespace {

std::filesystem::path path_of(std::uint64_t word) {
  return "/dev/shm/megalith-positions-" + std::to_string(::getuid()) + "-" + hex64(word);
}

class SharedPositions : public testing::Test {
 protected:
  std::random_device random_;
  std::uint64_t word_ = std::uint64_t{random_()} << 32 | random_() | 1;
};

TEST_F(SharedPositions, AreOneMemoryWithoutANameSoon) {
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

TEST_F(SharedPositions, OfAKilledProcessAreRemovedByTheNextAndThoseOfALivingOneStay) {
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

}  // namespace
}  // namespace megalith::comm
