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
