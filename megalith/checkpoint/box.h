#pragma once
#include <array>
#include <optional>

#include "megalith/tensor/tensor_slice.h"

namespace megalith::checkpoint {

/// A box of elements of a global tensor, without its name: what manifests list and resharding intersects.
struct Box {
  std::array<Index, Shape::kMaxRank> offset{};
  Shape shape;
  bool operator==(const Box&) const = default;
};
inline Box box_of(const TensorSlice& slice) { return {slice.offset, slice.local}; }

/// True when the box has the rank of `global` and lies in it. No sum overflows for any input.
bool is_inside(const Box& box, const Shape& global);

/// The common elements; nothing when there are none. Same rank.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Cuts `part`, a box inside `whole`, into runs of elements that are contiguous in the row-major memory of both.
/// Inner dimensions that `part` covers fully are merged, so that a block of rows is one run.
class Runs {
 public:
  Runs(const Box& part, const Box& whole);
  Index length() const { return length_; }  ///< elements of a run
  Index count() const { return count_; }
  /// Elements from the start of whole's memory to the run's first.
  Index start(Index run) const;

 private:
  std::array<Index, Shape::kMaxRank> sizes_{}, strides_{};  // of the dimensions that count runs
  int outer_ = 0;
  Index first_ = 0, length_ = 1, count_ = 1;
};

/// Copies the elements that both boxes hold. `from` and `to` are their row-major memories.
void copy_common(const Box& from_box, const std::byte* from, const Box& to_box, std::byte* to, Index element_bytes);

}  // namespace megalith::checkpoint
