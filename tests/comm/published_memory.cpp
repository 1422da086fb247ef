#include "tests/comm/published_memory.h"

#include <cerrno>
#include <numeric>

#include <sys/mman.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/peer/peer_memory.h"

namespace megalith::comm {
namespace {

constexpr Index kRangeOfProcess = Index{1} << 20, kPieceOfProcess = 4096;

std::byte* range_of_process(int rank) {
  return reinterpret_cast<std::byte*>(std::uint64_t{1} << 44) + rank * kRangeOfProcess;
}

void check_mapped(const void* at, const std::byte* wanted) {
  if (at != wanted) throw InternalError(str("mmap: error ", errno));
}

/// At addresses that it has reserved.
class FileMapper final : public PeerMapper {
 public:
  explicit FileMapper(int processes) {
    for (int rank = 0; rank < processes; ++rank) take_back(range_of_process(rank), kRangeOfProcess);
  }
  void map(std::byte* address, Index bytes, int descriptor) override {
    check_mapped(
        ::mmap(address, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0),
        address);
  }
  void unmap(std::byte* address, Index bytes) noexcept override { take_back(address, bytes); }

 private:
  static void take_back(std::byte* address, Index bytes) {
    check_mapped(::mmap(address, static_cast<std::size_t>(bytes), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0),
                 address);
  }
};

}  // namespace

void write_into_published_memory(World& world) {
  const int rank = world.rank(), size = world.size();
  std::unique_ptr<ProcessLinks> links = ProcessLinks::connect(world.all());
  if (links == nullptr) throw InternalError("processes of one host cannot connect to each other");
  PeerMemory::Options options{AddressRange(range_of_process(rank), kRangeOfProcess), 1, 30, {}};
  options.world_ranks.resize(static_cast<std::size_t>(size));
  std::iota(options.world_ranks.begin(), options.world_ranks.end(), 0);
  auto mapper = std::make_unique<FileMapper>(size);
  FileMapper& here = *mapper;
  Exec ex;
  barrier(ex, world.all());  // all have reserved
  PeerMemory memory(std::move(links), std::move(mapper), std::move(options));
  for (int turn = 0; turn < 20; ++turn) {
    const Descriptor file(::memfd_create("piece", MFD_CLOEXEC));
    if (::ftruncate(file.number(), kPieceOfProcess) != 0) throw InternalError("ftruncate");
    std::byte* const own = memory.take_addresses(kPieceOfProcess);
    here.map(own, kPieceOfProcess, file.number());
    memory.publish(own, kPieceOfProcess, file.number());
    for (std::byte* const theirs : gather_values(world.all(), own))
      reinterpret_cast<int*>(theirs)[rank] = 1000 * turn + 10 * rank + static_cast<int>(theirs == own);
    barrier(ex, world.all());
    for (int other = 0; other < size; ++other) {
      const int found = reinterpret_cast<const int*>(own)[other];
      if (found != 1000 * turn + 10 * other + static_cast<int>(other == rank))
        throw InternalError(str("published memory: turn ", turn, ", from rank ", other, ": ", found));
    }
    barrier(ex, world.all());
    if (turn % 2 == 0) continue;
    here.unmap(own, kPieceOfProcess);
    memory.withdraw(own, kPieceOfProcess, MemoryPublisher::Published::yes);
  }
  barrier(ex, world.all());
}

}  // namespace megalith::comm
