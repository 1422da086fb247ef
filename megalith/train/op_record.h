#pragma once
#include <compare>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "megalith/runtime/exec.h"
#include "megalith/train/engine.h"

namespace megalith::train {

/// OpKey::sample of what is compared for all microbatches together.
inline constexpr Index kAllSamples = std::numeric_limits<Index>::max();

/// Which op of a step: the same on every grid that runs it.
struct OpKey {
  StepPhase phase = StepPhase::other;
  Index sample = 0;  ///< the first one of its microbatch, in the batch
  Index layer = 0;   ///< number of the model's layer; -1: before the layers; their number: after them
  std::string op = {};
  std::vector<std::string> parameters = {};  ///< that it reads: they tell the seams of a layer apart
  int occurrence = 0;                        ///< among ops with all of this
  auto operator<=>(const OpKey&) const = default;
};
/// "forward, sample 0, layer 3": without the op.
std::string describe(const OpKey& key, Index num_layers);

/// A result of an op on one rank, as f64.
struct OpValue {
  std::string gradient_of = {};  ///< the parameter whose gradient it is: what the op has added to it
  TensorSlice slice = {};        ///< the part of the parameter; without a name if it is not rows of it
  Shape shape;
  std::vector<double> values;
};

/// Rows [begin, begin + count) of one expert; expert -1: of a clone.
struct RowsOfExpert {
  Index expert = 0, begin = 0, count = 0;
};

/// One op that a rank ran.
struct OpRecord {
  OpKey key;
  OpKind kind = OpKind::local;
  std::vector<std::size_t> sources;  ///< numbers of this rank's ops that have written what it reads, ascending
  /// Of local ops of passes: activations, and what is added to gradients. Without values where it is neither.
  std::vector<OpValue> results;
  /// Of a product over the rows of experts; else empty. Other rows are undefined.
  std::vector<RowsOfExpert> groups = {};
};

/// What one rank did in a step.
struct RankOps {
  grid::PerAxis on_dense = {}, on_experts = {};  ///< coordinates on both grids
  std::vector<OpRecord> ops = {};
  std::map<std::string, grid::Placement> placements = {};  ///< of the parameters with gradients
  /// By name of a tensor, as in StepValues: the ops that wrote last to the elements that this rank updates.
  std::map<std::string, std::set<std::string>> last_writers = {};
};

/// Records the ops of one step of an Engine (Exec::watched), on the CPU. Gradients must be 0 before the step. Memory:
/// all results of all ops, in f64.
class OpRecorder final : public OpWatcher {
 public:
  OpRecorder(Engine& engine, RankOps& ops);
  void run(Exec& ex, const OpInfo& op, const Capture::Call& call) override;
  /// After the step: sets last_writers.
  void note_last_writers();

 private:
  /// A range of memory: of a parameter, of its gradient, or what an op has written.
  struct Extent {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    const Param* param = nullptr;
    const std::string& name() const { return param->name(); }
  };
  OpKey key_of(const CallSite& site, const OpInfo& op);
  std::vector<std::size_t> writers_of(const Tensor& tensor) const;
  void note_write(const Tensor& tensor, std::size_t op);
  /// The extent in which a tensor lies; null if there is none.
  static const Extent* extent_of(const std::vector<Extent>& extents, const Tensor& tensor);
  /// Of a gradient, at the present call site.
  const Extent* gradient_of(const Tensor& tensor) const;
  /// Whether an op adds to a gradient, rather than to overwrite what a window held before.
  static bool adds_to(const Extent& gradient, const OpInfo& op);
  std::vector<RowsOfExpert> groups_of(const OpInfo& op) const;
  /// The rows that a tensor in an extent holds; without a name if it has parts of rows.
  static TensorSlice slice_of(const Extent& extent, const Tensor& tensor);

  Engine& engine_;
  RankOps& ops_;
  std::vector<Extent> parameters_, gradients_;  // ascending
  /// By layer: of gradients in windows, which several layers write.
  std::map<Index, std::vector<Extent>> gradients_in_windows_;
  /// By first byte: the end, and the op that has written the range last.
  std::map<const std::byte*, std::pair<const std::byte*, std::size_t>> written_;
  std::map<OpKey, int> occurrences_;                             // keys of occurrence 0
  std::map<std::tuple<StepPhase, int, int>, bool> seen_layers_;  // of a pass: phase, chunk, microbatch
};

}  // namespace megalith::train
