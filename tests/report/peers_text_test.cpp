#include "megalith/report/peers_text.h"

#include <vector>

#include <gtest/gtest.h>

#include "megalith/tensor/gpu_facts.h"
#include "megalith/tensor/gpu_pretence.h"

namespace megalith::report {
namespace {

std::string text_of(const std::vector<PeersOfGpu>& gpus, const std::string& refusal = "") {
  const PeersText text = peers_text(gpus, refusal);
  return text.state + ' ' + text.note;
}

TEST(PeersText, NamesWhatGpusReachEachOtherOver) {
  EXPECT_EQ(text_of({{3, 3}, {3, 3}, {3, 3}, {3, 3}}),
            "yes over NVLink or alike: copy engines and kernels carry what is large");
  const std::string pcie =
      "yes over PCIe: copy engines carry what is large where waits can flush, else NCCL; no kernel reaches over";
  EXPECT_EQ(text_of({{1, 0}, {1, 0}}), pcie);
  EXPECT_EQ(text_of({{3, 1}, {3, 1}, {3, 1}, {3, 1}}), pcie) << "pairs with NVLink, and PCIe between the pairs";
  EXPECT_EQ(text_of({{1, 1}, {1, 1}, {0, 0}}),
            "some ranks whose GPUs do not reach each other: NCCL carries what goes between them");
  EXPECT_EQ(text_of({{1, 1}, {1, 1}}, "this build has no NCCL"),
            "no this build has no NCCL: NCCL carries what goes between GPUs");
}

TEST(PeersText, NamesWhatCarriesCallsBetweenProcesses) {
  const auto of_processes = [](const std::vector<PeersOfGpu>& gpus, const std::string& refusal, Exports exports) {
    const PeersText text = process_peers_text(gpus, refusal, exports);
    return text.state + ' ' + text.note;
  };
  const std::vector<PeersOfGpu> linked = {{2, 2}, {2, 2}, {2, 2}};
  const std::string nccl = ": NCCL carries what goes between GPUs of processes";
  EXPECT_EQ(of_processes(linked, "", Exports::all),
            "yes under mpirun and srun as between threads, if every process sees all GPUs");
  EXPECT_EQ(of_processes(linked, "NCCL_P2P_DISABLE=1", Exports::all), "no NCCL_P2P_DISABLE=1" + nccl);
  EXPECT_EQ(of_processes(linked, "", Exports::not_all),
            "no a GPU or its driver cannot share memory between processes" + nccl);
  EXPECT_EQ(of_processes({{2, 2}, {2, 1}, {2, 1}}, "", Exports::all), "no NVLink does not connect all GPUs" + nccl);
  EXPECT_EQ(of_processes({{1, 1}, {1, 1}, {0, 0}}, "", Exports::all), "no NVLink does not connect all GPUs" + nccl);
}

// MEGALITH_GPU_PRETENCE = pcie: what `megalith doctor` reads of the links.
TEST(PeersText, PretendedLinksArePcie) {
  const device::Pretence before = device::pretended();
  device::pretend({.links_are_pcie = true});
  std::vector<PeersOfGpu> gpus;
  for (int gpu = 0; gpu < 2; ++gpu) gpus.push_back({1, device::linked_gpus(gpu).size()});
  device::pretend(before);
  EXPECT_NE(text_of(gpus).find("over PCIe"), std::string::npos);
}

}  // namespace
}  // namespace megalith::report
