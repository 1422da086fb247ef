#pragma once
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <cublasLt.h>

#include "megalith/ops/cuda/gemm_operands.h"
#include "megalith/ops/cuda/side_streams.h"
#include "megalith/ops/gemm_chooser.h"
#include "megalith/runtime/exec.h"

namespace megalith::ops::cuda {

class MadeUpOperands;

/// Whose algorithms a GEMM may run by.
enum class GemmSource : std::uint8_t { any, library };

/// The cuBLASLt of one Exec: handle, workspace, and for every problem so far the offered algorithms and the one in
/// use. For operands in E4M3 the forms of our own kernel (scaled_product.h) are among the algorithms.
class GemmLibrary final : public GemmChooser {
 public:
  explicit GemmLibrary(Exec& ex);
  ~GemmLibrary() override;
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  /// GEMMs that run beside communication leave this many SMs free. Call it before the first GEMM.
  void set_sm_margin(int multiprocessors) { sm_margin_ = multiprocessors; }
  int sm_margin() const { return sm_margin_; }
  /// Whether there is an algorithm for it.
  bool has_algorithm(const GemmProblem& problem, GemmSource source = GemmSource::any);
  /// Runs the GEMM. Returns false when there is no algorithm for it.
  bool run(Stream stream, const GemmProblem& problem, const GemmOperands& operands,
           GemmSource source = GemmSource::any);
  /// The same for `count` problems whose operands lie one behind the other. By the library's first choice, in no table.
  bool run_batched(Stream stream, const GemmProblem& problem, Index count, const GemmOperands& operands);
  /// The same for a problem whose shape follows from a step's routing. It is not timed, not agreed on and in no table.
  /// A query of the library takes longer than the GEMM. So it runs by the library's first choice for `like`, a problem
  /// of about its size that stands for many. Where that choice does not fit, it runs by the first choice for itself. It
  /// runs in lanes().at(lane), with that lane's share of the workspace.
  bool run_passing(std::size_t lane, const GemmProblem& problem, const GemmProblem& like, const GemmOperands& operands);
  /// The streams in which passing problems run concurrently.
  SideStreams& lanes() { return lanes_; }
  /// AllGroupSizes: whether all sizes up to this problem's are to be run now. True once for each.
  bool begin_all_sizes(const GemmProblem& largest) { return runs_all_sizes_ && sizes_run_.insert(largest).second; }
  void set_runs_all_sizes(bool on) { runs_all_sizes_ = on; }
  /// How many times the library was queried for algorithms. For tests.
  Index times_asked() const { return times_asked_; }

  GemmTable current() const override;
  bool offers(const GemmProblem& problem, const GemmAlgorithm& algorithm) override;
  GemmAlgorithm fastest(const GemmProblem& problem, std::span<std::byte> scratch) override;
  void use(const GemmTable& table) override;

 private:
  struct Prepared;
  struct Offered;
  using PreparedProblems = std::map<GemmProblem, std::unique_ptr<Prepared>>;
  Prepared& prepare(const GemmProblem& problem);
  bool run(Stream stream, const Prepared& prepared, const GemmOperands& operands, std::span<std::byte> workspace,
           GemmSource source = GemmSource::any) const;
  Prepared& prepare_passing(const GemmProblem& problem, const GemmProblem& like);
  std::unique_ptr<Prepared> described(const GemmProblem& problem) const;
  /// Queries the library's algorithms for the problem within this workspace, at most `most`, its own first choice
  /// first.
  void list(Prepared& prepared, const GemmProblem& problem, Index workspace_bytes, int most);
  /// Adds the forms of our kernel to what is offered: before the library's algorithms where they are expected to be
  /// faster.
  void list_own(Prepared& prepared, const GemmProblem& problem);
  /// Whether the algorithm, which was offered for another problem, computes this one within a lane's workspace.
  bool fits(const Prepared& prepared, const cublasLtMatmulAlgo_t& algorithm) const;
  void choose(Prepared& prepared, const GemmProblem& problem) const;
  cublasStatus_t launch(Stream stream, const Prepared& prepared, const GemmOperands& operands, const Offered& algorithm,
                        std::span<std::byte> workspace) const;
  std::span<std::byte> whole_workspace() const {
    return {workspace_.data(), static_cast<std::size_t>(workspace_.bytes())};
  }
  std::size_t time(const Prepared& prepared, const MadeUpOperands& operands) const;

  Exec& ex_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  GemmPlatform platform_;
  int multiprocessors_ = 0, sm_margin_ = 0;
  Index cache_bytes_ = 0;
  GemmTable table_;
  PreparedProblems prepared_, passing_, passing_alike_;
  std::map<std::pair<GemmProblem, Index>, std::unique_ptr<Prepared>> batched_;
  SideStreams lanes_;
  bool runs_all_sizes_ = false;
  std::set<GemmProblem> sizes_run_;
  Index times_asked_ = 0;
};

}  // namespace megalith::ops::cuda
