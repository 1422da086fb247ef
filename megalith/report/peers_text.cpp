#include "megalith/report/peers_text.h"

#include <algorithm>

#include "megalith/base/str.h"

namespace megalith::report {

PeersText peers_text(std::span<const PeersOfGpu> gpus, const std::string& refusal) {
  if (!refusal.empty()) return {"no", str(refusal, ": NCCL carries what goes between GPUs")};
  const std::size_t others = gpus.size() - 1;
  if (!std::ranges::all_of(gpus, [&](const PeersOfGpu& gpu) { return gpu.reached == others; }))
    return {"some", "ranks whose GPUs do not reach each other: NCCL carries what goes between them"};
  if (std::ranges::all_of(gpus, [&](const PeersOfGpu& gpu) { return gpu.linked == others; }))
    return {"yes", "over NVLink or alike: copy engines and kernels carry what is large"};
  return {"yes",
          "over PCIe: copy engines carry what is large where waits can flush, else NCCL; no kernel reaches over"};
}

PeersText process_peers_text(std::span<const PeersOfGpu> gpus, const std::string& refusal, Exports exports) {
  const std::size_t others = gpus.size() - 1;
  const auto is_linked = [&](const PeersOfGpu& gpu) { return gpu.reached == others && gpu.linked == others; };
  std::string why_not = refusal;
  if (why_not.empty() && exports == Exports::not_all)
    why_not = "a GPU or its driver cannot share memory between processes";
  if (why_not.empty() && !std::ranges::all_of(gpus, is_linked)) why_not = "NVLink does not connect all GPUs";
  if (!why_not.empty()) return {"no", why_not + ": NCCL carries what goes between GPUs of processes"};
  return {"yes", "under mpirun and srun as between threads, if every process sees all GPUs"};
}

}  // namespace megalith::report
