#include "megalith/comm/nccl/process_memory.h"

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/host.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/peer/mailbox.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/shared_memory.h"

namespace megalith::comm {
namespace {

// The addresses that the processes of a host use, one range each. CUDA itself, the heap and libraries are elsewhere. A
// range is several times the memory of a GPU, so that freed parts of odd sizes do no harm.
constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 44;
constexpr Index kRangeBytes = Index{1} << 39;
constexpr Index kTrialBytes = Index{2} << 20;

std::byte* range_of(int member) {
  return reinterpret_cast<std::byte*>(kFirstAddress + static_cast<std::uint64_t>(member) * kRangeBytes);
}

/// Maps for the GPU of the thread that made it, at addresses that it has reserved.
class GpuMapper final : public PeerMapper {
 public:
  GpuMapper() { cuda::check(cudaGetDevice(&gpu_)); }
  /// False if they are not free.
  bool reserve(int members) {
    for (int member = 0; member < members; ++member) {
      reserved_.push_back(cuda::reserve_addresses(range_of(member), kRangeBytes));
      if (reserved_.back() == nullptr) return false;
    }
    return true;
  }
  void begin_thread() override {
    static_cast<void>(cudaSetDevice(gpu_));
    auto mode = cudaStreamCaptureModeRelaxed;  // the rank's thread may capture a graph meanwhile
    static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
  }
  void map(std::byte* address, Index bytes, int descriptor) override {
    cuda::map_published(address, bytes, descriptor);
  }
  void unmap(std::byte* address, Index bytes) noexcept override { cuda::unmap_published(address, bytes); }

 private:
  int gpu_ = 0;
  std::vector<std::shared_ptr<void>> reserved_;
};

/// The first reason of a member, the same on all; empty if none has one.
std::string first_reason(const Group& host, const std::string& own) {
  std::array<char, 200> text{};
  own.copy(text.data(), text.size() - 1);
  for (const auto& reason : gather_values(host, text)) {
    if (reason[0] != '\0') return reason.data();
  }
  return "";
}

std::vector<int> ranks_of_this_host(const World& host) {
  std::vector<int> ranks;
  for (int rank = 0; rank < host.size(); ++rank) {
    if (rank == host.rank() || host.shares_memory_with(rank)) ranks.push_back(rank);
  }
  return ranks;
}

/// Why this process cannot share memory with the processes that use these GPUs; empty: nothing is known against it.
std::string refusal_of(std::span<const device::GpuId> gpus) {
  if (const std::string refusal = refusal_of_peers(); !refusal.empty()) return refusal;
  if (!cuda::can_export_memory()) return "this GPU or its driver cannot share memory between processes";
  int own = 0;
  cuda::check(cudaGetDevice(&own));
  for (const device::GpuId& gpu : gpus) {
    const int other = device::number_of_gpu(gpu);
    if (other < 0) return "a rank does not see the GPUs of the others (CUDA_VISIBLE_DEVICES, srun --gpus-per-task)";
    if (!is_reached(own, other) || !has_nvlink(own, other)) return "NVLink does not connect all of their GPUs";
  }
  return "";
}

/// Takes memory that the others map, and gives it back. Why that fails; empty: it does not.
std::string failure_of_trial(const std::shared_ptr<PeerMemory>& memory) {
  std::string failure;
  int gpu = 0;
  cuda::check(cudaGetDevice(&gpu));
  cuda::publish_memory_by(memory);
  try {
    if (cuda::take_shared_memory(kTrialBytes, {&gpu, 1}) == nullptr) failure = "a GPU has no memory left";
  } catch (const std::exception& error) {
    failure = error.what();
  }
  cuda::publish_memory_by(nullptr);
  return failure;
}

}  // namespace

ProcessMemory share_process_memory(World& host, double timeout_s) {
  const std::vector<int> ranks = ranks_of_this_host(host);
  if (ranks.size() == 1) return {};
  const Group group = host.group("host", ranks);
  int gpu = 0;
  cuda::check(cudaGetDevice(&gpu));
  std::string why_not = first_reason(group, refusal_of(gather_values(group, device::id_of_gpu(gpu))));
  if (!why_not.empty()) return {nullptr, why_not};

  std::unique_ptr<ProcessLinks> links = ProcessLinks::connect(group);
  if (links == nullptr) return {nullptr, "its processes cannot connect to each other, as in containers of their own"};
  auto mapper = std::make_unique<GpuMapper>();
  why_not = first_reason(group, mapper->reserve(group.size()) ? "" : "the same addresses are not free in all of them");
  if (!why_not.empty()) return {nullptr, why_not};
  const std::uint64_t space = gather_values(group, random_word()).front();
  PeerMemory::Options options{AddressRange(range_of(group.rank()), kRangeBytes), space, timeout_s, ranks};
  const auto memory = std::make_shared<PeerMemory>(std::move(links), std::move(mapper), std::move(options));
  why_not = first_reason(group, failure_of_trial(memory));
  if (!why_not.empty()) return {nullptr, why_not};
  return {memory, ""};
}

}  // namespace megalith::comm
