#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "megalith/grid/group_catalog.h"
#include "megalith/grid/rank_generator.h"

namespace megalith::grid {

/// A set of axes of one grid.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr bool has(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool contain(Axes other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr Axes operator|(Axes other) const { return Axes(bits_ | other.bits_); }
  constexpr Axes without(Axes other) const { return Axes(bits_ & ~other.bits_); }
  constexpr bool operator==(const Axes&) const = default;

 private:
  static constexpr unsigned bit(Axis axis) { return 1u << static_cast<unsigned>(axis); }
  explicit constexpr Axes(unsigned bits) : bits_(bits) {}

  unsigned bits_ = 0;
};

/// One of the two grids over one world.
enum class GridKind : std::uint8_t { dense, expert };

/// The axes along which ranks hold the same parameters and see other data, on either grid: dp and cp on the dense grid;
/// dp on the expert grid, where it is edp (its cp has one rank).
inline constexpr Axes kDataAxes{Axis::dp, Axis::cp};

/// Which ranks hold copies of a parameter, and which part of its gradient each has seen. From it follow the group that
/// sums its gradient, the rank that counts it in the gradient norm and writes it to a checkpoint, and the optimizer's
/// shards: see the functions below.
struct Placement {
  GridKind grid = GridKind::dense;
  /// Ranks that differ only in these coordinates hold the same values. Along pp only the first and the last stage hold
  /// them (the tied word embedding); stages between them hold none.
  Axes replicated = kDataAxes;
  /// Along these axes the passes of a rank give the sum over its own rows only, so gradients must be summed. A subset
  /// of `replicated` that contains all data axes. Examples: the tensor-parallel ranks of a layer norm with sequence
  /// parallelism; the ends of the pipeline.
  Axes partial = kDataAxes;

  constexpr bool operator==(const Placement&) const = default;
};

/// One rank of a model copy holds it: a shard of a matrix.
inline constexpr Placement kSharded{};
/// The tied word embedding of a model whose first stage is not its last.
inline constexpr Placement kTiedEnds{.replicated = kDataAxes | Axes{Axis::pp}, .partial = kDataAxes | Axes{Axis::pp}};
/// The same on all tensor-parallel ranks, which process the same rows.
inline constexpr Placement kReplicated{.replicated = kDataAxes | Axes{Axis::tp}};
/// The same on all tensor-parallel ranks, each of which processes rows of its own (sequence parallelism).
inline constexpr Placement kReplicatedPartial{.replicated = kDataAxes | Axes{Axis::tp},
                                              .partial = kDataAxes | Axes{Axis::tp}};

/// Throws InternalError unless `partial` contains the data axes and is a subset of `replicated`, and a replica_group()
/// exists.
void check(const Placement& placement);

/// The ranks over which gradients are reduce-scattered and optimizers are sharded: dp-cp or edp.
GroupKind reduction_group(const Placement& placement);
/// The ranks of one model copy that hold the same values: tp, embd or etp; nothing if only one rank holds them. Throws
/// InternalError if the catalogue has no such group.
std::optional<GroupKind> replica_group(const Placement& placement);
/// Whether ranks of the model copy hold parts of the gradient that must be summed, in addition to those along data
/// axes.
inline bool is_partial_in_copy(const Placement& placement) { return !placement.partial.without(kDataAxes).empty(); }
/// The same among tensor-parallel ranks.
inline bool is_partial_along_tp(const Placement& placement) { return placement.partial.has(Axis::tp); }

/// Exactly one rank of a model copy owns a parameter: the one with coordinate 0 along the replicated axes. It counts
/// the parameter in the gradient norm and writes it to checkpoints. `coordinates`: the rank's coordinates on
/// placement.grid.
bool owns_in_copy(const Placement& placement, const PerAxis& coordinates);
/// Whether a rank belongs to the first model copy. The norm is computed over the parameters of its ranks, and its ranks
/// write everything that is not sharded over copies.
bool is_in_first_copy(const PerAxis& coordinates);
/// The shard of a sharded optimizer that the rank has, and the number of shards: its index in reduction_group().
struct Shard {
  int index = 0, count = 1;
  bool operator==(const Shard&) const = default;
};
Shard optimizer_shard(const Placement& placement, const ResolvedSizes& sizes, int rank);

}  // namespace megalith::grid
