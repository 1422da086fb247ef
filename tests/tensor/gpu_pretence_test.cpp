#include "megalith/tensor/gpu_pretence.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::device {
namespace {

TEST(GpuPretence, IsAListOfWords) {
  const Pretence none = parse_pretence("");
  EXPECT_FALSE(none.no_library_forward || none.no_library_backward || none.links_are_pcie);
  const Pretence some = parse_pretence("no-cudnn-backward,pcie");
  EXPECT_FALSE(some.no_library_forward);
  EXPECT_TRUE(some.no_library_backward && some.links_are_pcie);
  EXPECT_TRUE(parse_pretence("no-cudnn-forward").no_library_forward);
  EXPECT_TRUE(parse_pretence("ampere").is_ampere);
  try {
    parse_pretence("pcie,nvlink");
    FAIL() << "took an unknown word";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "MEGALITH_GPU_PRETENCE: nvlink: must be no-cudnn-forward, no-cudnn-backward, pcie or ampere, with commas");
  }
}

}  // namespace
}  // namespace megalith::device
