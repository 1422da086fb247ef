#include "megalith/ops/gemm_chooser.h"

#include <optional>

#include "megalith/base/str.h"
#include "megalith/ops/cuda/gemm.h"
#include "megalith/ops/dispatch.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith::ops {
namespace {

/// The known tables of this platform, and how many entries of each were not offered.
class Known {
 public:
  Known(std::span<const KnownGemms> known, const GemmPlatform& platform, std::vector<std::string>& warnings) {
    for (const KnownGemms& one : known) {
      if (one.table.platform == platform) {
        usable_.push_back({&one});
      } else {
        warnings.push_back(str(one.source, ": its GEMM algorithms are those of ", one.table.platform.text(),
                               ", this is ", platform.text(), ": not used; results may differ in the last bits"));
      }
    }
  }

  std::optional<GemmAlgorithm> find(GemmChooser& chooser, const GemmProblem& problem) {
    for (Usable& one : usable_) {
      const auto found = one.known->table.products.find(problem);
      if (found == one.known->table.products.end()) continue;
      if (chooser.offers(problem, found->second)) return found->second;
      ++one.not_offered;
    }
    return std::nullopt;
  }

  void report(std::vector<std::string>& warnings) const {
    for (const Usable& one : usable_) {
      if (one.not_offered == 0) continue;
      warnings.push_back(str(one.known->source, ": ", one.not_offered, " of its GEMM algorithms are not offered by ",
                             one.known->table.platform.library,
                             " here: chosen again; results may differ in the last bits"));
    }
  }

 private:
  struct Usable {
    const KnownGemms* known;
    int not_offered = 0;
  };
  std::vector<Usable> usable_;
};

}  // namespace

GemmPlatform gemm_platform(const device::Gpu& gpu) {
  GemmPlatform platform{.gpu = gpu.name, .capability = gpu.capability, .library = {}};
  if constexpr (build::has_cuda) platform.library = cuda::gemm_library_name();
  return platform;
}

GemmChooser& gemm_chooser(Exec& ex) {
  if constexpr (build::has_cuda) {
    if (ex.device() == Device::cuda) return cuda::gemm_chooser(ex);
  }
  throw_not_built(ex.device(), "gemm_chooser");
}

GemmChoices choose_gemms(GemmChooser& chooser, const GemmTable& wanted, std::span<const KnownGemms> known,
                         std::span<std::byte> scratch) {
  GemmChoices choices;
  choices.table.platform = choices.timed.platform = wanted.platform;
  Known tables(known, wanted.platform, choices.warnings);
  for (const auto& [problem, first_choice] : wanted.products) {
    std::optional<GemmAlgorithm> algorithm = tables.find(chooser, problem);
    if (!algorithm) {
      algorithm = chooser.fastest(problem, scratch);
      choices.timed.products[problem] = *algorithm;
    }
    choices.table.products[problem] = *algorithm;
  }
  tables.report(choices.warnings);
  return choices;
}

}  // namespace megalith::ops
