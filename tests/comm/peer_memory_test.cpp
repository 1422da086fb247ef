#include "megalith/comm/peer/peer_memory.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::comm {
namespace {

TEST(AddressRange, GivesTheFirstPartThatFitsAndJoinsWhatComesBack) {
  auto* const begin = reinterpret_cast<std::byte*>(0x1000);
  AddressRange range(begin, 100);
  EXPECT_EQ(range.take(40), begin);
  EXPECT_EQ(range.take(30), begin + 40);
  EXPECT_EQ(range.take(31), nullptr);
  EXPECT_EQ(range.take(30), begin + 70);
  EXPECT_EQ(range.take(1), nullptr);
  range.give_back(begin, 40);
  range.give_back(begin + 70, 30);
  EXPECT_EQ(range.take(50), nullptr) << "what lies between is used";
  EXPECT_EQ(range.take(10), begin);
  range.give_back(begin + 40, 30);
  EXPECT_EQ(range.take(90), begin + 10);
  range.give_back(begin + 10, 90);
  range.give_back(begin, 10);
  EXPECT_EQ(range.take(100), begin);
}

/// What a process has mapped: the contents of the files by address.
struct Mapped {
  std::mutex mutex;
  std::map<std::byte*, std::string> contents;
  std::function<void()> before;  ///< in the serving thread, before each map()

  std::map<std::byte*, std::string> now() {
    const std::lock_guard lock(mutex);
    return contents;
  }
};

class ReadingMapper final : public PeerMapper {
 public:
  explicit ReadingMapper(Mapped& mapped) : mapped_(mapped) {}
  void map(std::byte* address, Index bytes, int descriptor) override {
    if (mapped_.before) mapped_.before();
    std::string text(static_cast<std::size_t>(bytes), '\0');
    EXPECT_EQ(::pread(descriptor, text.data(), text.size(), 0), bytes);
    const std::lock_guard lock(mapped_.mutex);
    EXPECT_TRUE(mapped_.contents.emplace(address, text).second) << "mapped twice";
  }
  void unmap(std::byte* address, Index bytes) noexcept override {
    const std::lock_guard lock(mapped_.mutex);
    const auto found = mapped_.contents.find(address);
    ASSERT_NE(found, mapped_.contents.end());
    EXPECT_EQ(static_cast<Index>(found->second.size()), bytes);
    mapped_.contents.erase(found);
  }

 private:
  Mapped& mapped_;
};

/// A file in memory.
Descriptor file_of(const std::string& text) {
  Descriptor file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.number(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return file;
}

std::byte* range_of(int rank) { return reinterpret_cast<std::byte*>(0x10000000) + rank * 0x100000; }

std::unique_ptr<PeerMemory> share(World& world, Mapped& mapped, double timeout_s = 30) {
  std::unique_ptr<ProcessLinks> links = ProcessLinks::connect(world.all());
  EXPECT_NE(links, nullptr);
  PeerMemory::Options options{AddressRange(range_of(world.rank()), 0x1000), 77, timeout_s, {}};
  for (int rank = 0; rank < world.size(); ++rank) options.world_ranks.push_back(10 + rank);
  return std::make_unique<PeerMemory>(std::move(links), std::make_unique<ReadingMapper>(mapped), std::move(options));
}

void meet(World& world) {
  Exec ex;
  barrier(ex, world.all());
}

TEST(PeerMemory, IsInAllOthersWhenItIsPublishedAndGoneWhenItIsWithdrawn) {
  constexpr int kRanks = 3;
  std::array<Mapped, kRanks> mapped;
  run_ranks(kRanks, [&](World& world) {
    const int rank = world.rank();
    const auto memory = share(world, mapped[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(memory->space(), 77u);
    const std::string text = "of rank " + std::to_string(rank);
    const auto bytes = static_cast<Index>(text.size());
    std::byte* const first = memory->take_addresses(bytes);
    EXPECT_EQ(first, range_of(rank));
    memory->publish(first, bytes, file_of(text).number());
    for (int other = 0; other < kRanks; ++other) {
      if (other == rank) continue;
      const auto there = mapped[static_cast<std::size_t>(other)].now();
      ASSERT_TRUE(there.contains(first)) << "rank " << other;
      EXPECT_EQ(there.at(first), text);
    }
    std::byte* const second = memory->take_addresses(4);
    EXPECT_EQ(second, first + bytes);
    memory->withdraw(second, 4, MemoryPublisher::Published::no);
    memory->withdraw(first, bytes, MemoryPublisher::Published::yes);
    for (int other = 0; other < kRanks; ++other)
      EXPECT_FALSE(mapped[static_cast<std::size_t>(other)].now().contains(first)) << "rank " << other;
    EXPECT_EQ(memory->take_addresses(0x1000), first) << "all addresses are free again";
    try {
      memory->take_addresses(1);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const BackendError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("set parallel.transfers = \"kernels\""));
    }
    meet(world);
  });
}

/// A rank publishes while the other one computes, or publishes itself.
TEST(PeerMemory, IsPublishedWhateverTheOthersDo) {
  std::array<Mapped, 2> mapped;
  run_ranks(2, [&](World& world) {
    const auto memory = share(world, mapped[static_cast<std::size_t>(world.rank())]);
    for (int i = 0; i < 200; ++i) {
      std::byte* const part = memory->take_addresses(1);
      memory->publish(part, 1, file_of("x").number());
      if (i % 3 != 0) memory->withdraw(part, 1, MemoryPublisher::Published::yes);
    }
    meet(world);
    EXPECT_EQ(mapped[static_cast<std::size_t>(world.rank())].now().size(), 67u);
    meet(world);
    if (world.rank() == 0) {  // computes, while the other one works with its memory
      meet(world);
    } else {
      memory->publish(memory->take_addresses(1), 1, file_of("y").number());
      meet(world);
    }
  });
  EXPECT_TRUE(mapped[0].now().empty()) << "unmapped at the end";
}

TEST(PeerMemory, RefusedByOneIsAnErrorThatNamesIt) {
  std::array<Mapped, 3> mapped;
  mapped[2].before = [] { throw BackendError("no"); };
  run_ranks(3, [&](World& world) {
    const auto memory = share(world, mapped[static_cast<std::size_t>(world.rank())]);
    if (world.rank() == 1) {
      std::byte* const part = memory->take_addresses(3);
      try {
        memory->publish(part, 3, file_of("abc").number());
        ADD_FAILURE() << "nothing was thrown";
      } catch (const BackendError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 12 cannot map 3 B of rank 11's GPU: set parallel"));
      }
      memory->withdraw(part, 3, MemoryPublisher::Published::yes);
      EXPECT_TRUE(mapped[0].now().empty());
    }
    meet(world);
  });
}

TEST(PeerMemory, OfARankThatStandsStillIsAHangThatNamesIt) {
  std::array<Mapped, 2> mapped;
  std::atomic<bool> stands = true;
  mapped[1].before = [&] {
    while (stands) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  run_ranks(2, [&](World& world) {
    const auto memory = share(world, mapped[static_cast<std::size_t>(world.rank())], 0.5);
    if (world.rank() == 0) {
      for (int attempt = 0; attempt < 2; ++attempt) {
        try {
          memory->publish(memory->take_addresses(1), 1, file_of("x").number());
          ADD_FAILURE() << "nothing was thrown";
        } catch (const HangError& error) {
          EXPECT_THAT(error.what(), ::testing::ContainsRegex("rank 10 waited 0\\.[5-9] s for rank 11 to map 1 B"));
        }
      }
      stands = false;
    }
    meet(world);
  });
}

/// It needs the memory no more.
TEST(PeerMemory, OfARankThatHasEndedIsNotAskedFor) {
  std::array<Mapped, 2> mapped;
  run_ranks(2, [&](World& world) {
    const auto memory = share(world, mapped[static_cast<std::size_t>(world.rank())]);
    auto kept = std::make_shared<int>(1);
    memory->keep(kept);
    if (world.rank() == 1) {
      memory->close();
      EXPECT_EQ(kept.use_count(), 1) << "freed";
      meet(world);
    } else {
      EXPECT_EQ(kept.use_count(), 2);
      meet(world);
      memory->publish(memory->take_addresses(1), 1, file_of("x").number());
      memory->withdraw(range_of(0), 1, MemoryPublisher::Published::yes);
    }
  });
  EXPECT_TRUE(mapped[1].now().empty());
}

/// A rank that ends between a request and its answer needs the memory no more, as one that has ended before: it is
/// neither waited for nor an error. The other ranks must have answered.
TEST(PeerMemory, OfARankThatEndsWithoutAnAnswerIsNotWaitedFor) {
  enum class Ends { after_request, before_request };
  for (const Ends ends : {Ends::after_request, Ends::before_request}) {
    for (const bool mapped_before : {false, true}) {
      std::array<Mapped, 3> mapped;
      run_ranks(3, [&](World& world) {
        if (world.rank() == 1) {
          const std::unique_ptr<ProcessLinks> links = ProcessLinks::connect(world.all());
          std::array<std::byte, 64> request{};
          std::byte done{};
          if (mapped_before) {
            EXPECT_GT(::recv(links->from(0).number(), request.data(), request.size(), 0), 0);
            EXPECT_TRUE(ProcessLinks::send(links->from(0), {&done, 1}));
          }
          const bool reads = ends == Ends::after_request;
          EXPECT_GT(::recv(links->from(0).number(), request.data(), request.size(), reads ? 0 : MSG_PEEK), 0);
          links->from(0) = Descriptor();
          return meet(world);
        }
        const auto memory = share(world, mapped[static_cast<std::size_t>(world.rank())]);
        if (world.rank() == 0) {
          std::byte* const part = memory->take_addresses(1);
          memory->publish(part, 1, file_of("x").number());
          EXPECT_TRUE(mapped[2].now().contains(part));
          memory->withdraw(part, 1, MemoryPublisher::Published::yes);
          EXPECT_TRUE(mapped[2].now().empty());
          EXPECT_EQ(memory->take_addresses(0x1000), part) << "all addresses are free again";
        }
        meet(world);
      });
    }
  }
}

/// A rank that ends between its request and the answer: the others go on to serve.
TEST(PeerMemory, AnAnswerToARankThatHasEndedIsLost) {
  std::array<Mapped, 3> mapped;
  std::atomic<bool> has_ended = false;
  mapped[0].before = [&] {
    while (!has_ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  run_ranks(3, [&](World& world) {
    if (world.rank() == 1) {
      std::unique_ptr<ProcessLinks> links = ProcessLinks::connect(world.all());
      const Descriptor file = file_of("x");
      struct {
        std::uint32_t kind = 0, unused = 0;
        std::uint64_t address = reinterpret_cast<std::uint64_t>(range_of(1));
        Index bytes = 1;
      } map;
      EXPECT_TRUE(ProcessLinks::send(links->to(0), std::as_bytes(std::span(&map, 1)), file.number()));
      links.reset();
      has_ended = true;
      for (int meeting = 0; meeting < 3; ++meeting) meet(world);
      return;
    }
    const auto memory = share(world, mapped[static_cast<std::size_t>(world.rank())]);
    meet(world);
    if (world.rank() == 2) memory->publish(memory->take_addresses(1), 1, file_of("y").number());
    meet(world);
    EXPECT_EQ(mapped[0].now().size(), 2u) << "of ranks 1 and 2";
    meet(world);
  });
}

}  // namespace
}  // namespace megalith::comm
