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

/// Which of the two grids over one world.
enum class GridKind : std::uint8_t { dense, expert };

/// The axes along which ranks hold the same parameters and see other data, on either grid: on the dense one dp and cp,
/// on the experts' one dp, which is edp there (its cp is of one rank).
inline constexpr Axes kDataAxes{Axis::dp, Axis::cp};

/// Where the copies of a parameter are, and how much of its gradient each has seen. From it follow the group that sums
/// its gradient, the rank that counts it in the gradient norm and writes it to a checkpoint, and the optimizer's
/// shards: see the functions below.
struct Placement {
  GridKind grid = GridKind::dense;
  /// Ranks that differ in these coordinates only hold the same values. Along pp the first and the last stage do (the
  /// tied word embedding), those between them hold none.
  Axes replicated = kDataAxes;
  /// Along these a rank's passes leave the sum over its own rows only: gradients are added up. A subset of
  /// `replicated`, with all data axes. Tensor-parallel ranks of a layer norm under sequence parallelism; the ends of
  /// the pipeline.
  Axes partial = kDataAxes;

  constexpr bool operator==(const Placement&) const = default;
};

/// One rank of one model copy holds it: a shard of a matrix.
inline constexpr Placement kSharded{};
/// The tied word embedding of a model whose first stage is not its last.
inline constexpr Placement kTiedEnds{.replicated = kDataAxes | Axes{Axis::pp}, .partial = kDataAxes | Axes{Axis::pp}};
/// The same on all tensor-parallel ranks, which meet the same rows.
inline constexpr Placement kReplicated{.replicated = kDataAxes | Axes{Axis::tp}};
/// The same, where each of those ranks meets rows of its own (sequence parallelism).
inline constexpr Placement kReplicatedPartial{.replicated = kDataAxes | Axes{Axis::tp},
                                              .partial = kDataAxes | Axes{Axis::tp}};

/// Throws InternalError unless `partial` has the data axes and is a subset of `replicated`, and a replica_group()
/// exists.
void check(const Placement& placement);

/// Over which ranks gradients are reduce-scattered and optimizers are sharded: dp-cp or edp.
GroupKind reduction_group(const Placement& placement);
/// The ranks of one model copy that hold the same values: tp, embd or etp; nothing where one rank does. Throws
/// InternalError where the catalogue has no such group.
std::optional<GroupKind> replica_group(const Placement& placement);
/// Whether the model copy's ranks hold parts of the gradient that must be summed, besides those along data axes.
inline bool is_partial_in_copy(const Placement& placement) { return !placement.partial.without(kDataAxes).empty(); }
/// The same among tensor-parallel ranks.
inline bool is_partial_along_tp(const Placement& placement) { return placement.partial.has(Axis::tp); }

/// Exactly one rank of a model copy owns a parameter: that of coordinate 0 along the replicated axes. It counts it in
/// the gradient norm and writes it to checkpoints. `place`: the rank's coordinates on placement.grid.
bool owns_in_copy(const Placement& placement, const PerAxis& place);
/// Whether a rank is of the first of all model copies: of its ranks' parameters the norm is made, and what is not
/// sharded over copies is written by them.
bool is_in_first_copy(const PerAxis& place);
/// Which shard of a sharded optimizer is the rank's, and of how many: its index in reduction_group().
struct Shard {
  int index = 0, count = 1;
  bool operator==(const Shard&) const = default;
};
Shard optimizer_shard(const Placement& placement, const ResolvedSizes& sizes, int rank);

}  // namespace megalith::grid
