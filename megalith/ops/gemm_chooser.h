#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "megalith/ops/gemm_table.h"

namespace megalith::ops {

/// The library of a GPU's GEMMs, as far as the choice of algorithms goes. Before use() is called, a GEMM runs by the
/// library's first choice.
class GemmChooser {
 public:
  virtual ~GemmChooser() = default;
  /// The algorithm of every GEMM that has run so far.
  virtual GemmTable current() const = 0;
  virtual bool offers(const GemmProblem& problem, const GemmAlgorithm& algorithm) = 0;
  /// The library's first choice, unless another that it offers is clearly faster. Candidates are timed on made-up
  /// operands that are not in the cache. The operands, and memory of twice the cache's size, overwrite `scratch`
  /// (device memory). Where they do not fit there, the call allocates memory until it returns. Where that fails too,
  /// the first choice stays, with a warning. Throws BackendError when nothing is offered.
  virtual GemmAlgorithm fastest(const GemmProblem& problem, std::span<std::byte> scratch) = 0;
  /// From here on GEMMs run by the table. A GEMM that the table leaves out runs by the library's first choice, and so
  /// does one whose entry is not offered.
  virtual void use(const GemmTable& table) = 0;
};

/// The platform on which a GPU's GEMMs would run.
GemmPlatform gemm_platform(const device::Gpu& gpu);
/// The chooser of an Exec on a GPU. Throws BackendError for any other Exec.
GemmChooser& gemm_chooser(Exec& ex);

/// A table from elsewhere, with its name for warnings: "the checkpoint".
struct KnownGemms {
  std::string source;
  GemmTable table;
};

struct GemmChoices {
  GemmTable table;                    ///< all products wanted
  GemmTable timed;                    ///< those of them that no known table had
  std::vector<std::string> warnings;  ///< known tables of another platform, or with entries that are not offered
};

/// An algorithm for every product of `wanted`, whose own algorithms are ignored. It comes from the first known table
/// that has one which the library offers, else from fastest().
GemmChoices choose_gemms(GemmChooser& chooser, const GemmTable& wanted, std::span<const KnownGemms> known,
                         std::span<std::byte> scratch);

}  // namespace megalith::ops
