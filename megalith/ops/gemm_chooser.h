#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "megalith/ops/gemm_table.h"

namespace megalith::ops {

/// The library behind a GPU's matrix products, as far as the choice of algorithms goes. Until use() says otherwise a
/// product runs by the library's first choice.
class GemmChooser {
 public:
  virtual ~GemmChooser() = default;
  /// What every product met so far runs by.
  virtual GemmTable current() const = 0;
  virtual bool offers(const GemmProblem& problem, const GemmAlgorithm& algorithm) = 0;
  /// The library's first choice, unless another that it offers is clearly faster when timed on made-up operands that
  /// are not in the cache. They, and memory of twice the cache's size, overwrite `scratch` (device memory). Where all
  /// that does not fit there it takes memory of its own until the call returns; where that is missing too, the first
  /// choice stays, with a warning. Throws BackendError when nothing is offered.
  virtual GemmAlgorithm fastest(const GemmProblem& problem, std::span<std::byte> scratch) = 0;
  /// From here on products run by the table, and those that it leaves out by the library's first choice. An entry that
  /// is not offered counts as left out.
  virtual void use(const GemmTable& table) = 0;
};

/// Where a GPU's products would run.
GemmPlatform gemm_platform(const device::Gpu& gpu);
/// Of an Exec on a GPU. Throws BackendError on any other.
GemmChooser& gemm_chooser(Exec& ex);

/// A table from elsewhere, with its name for warnings: "the checkpoint".
struct KnownGemms {
  std::string source;
  GemmTable table;
};

struct GemmChoices {
  GemmTable table;                    ///< of all products wanted
  GemmTable timed;                    ///< those of them that no known table had
  std::vector<std::string> warnings;  ///< known tables of another platform, or with entries that are not offered
};

/// An algorithm for every product of `wanted` (whose own ones do not matter): from the first known table that has one
/// which the library offers, else by fastest().
GemmChoices choose_gemms(GemmChooser& chooser, const GemmTable& wanted, std::span<const KnownGemms> known,
                         std::span<std::byte> scratch);

}  // namespace megalith::ops
